"""Layouts of whole models: balance, bounds, moves, next windows, micro-batches, and input that is refused."""

import numpy as np
import pytest
from expert_layouts import least_imbalance
from expert_loads import imbalance, zipf_loads

from planner.errors import PlannerError
from planner.experts.ahead import plan_ahead, uncertainty_of
from planner.experts.layout import Shares, plan_layout
from planner.experts.ranks import Ranks, linear_layout, make_ranks
from planner.experts.steps import StepPlanner

RANKS = make_ranks(16, 9, ranks_per_node=8)
LOADS = zipf_loads(4, 128)


def test_layouts_are_balanced_as_stated_and_within_a_thousandth_of_the_bound() -> None:
    layout = plan_layout(LOADS, RANKS)
    assert layout.expert_LP.shape == (4, 144)
    for layer in range(4):
        assert imbalance(RANKS, layout.expert_LP[layer], LOADS[layer]) == pytest.approx(layout.imbalance_L[layer])
    assert (layout.gap_L <= 1e-3).all()
    assert (layout.bound_L >= 1 - 1e-9).all()


def test_free_shares_are_at_least_as_balanced_and_add_up_to_one() -> None:
    ranks = make_ranks(64, 3)
    equal, free = plan_layout(LOADS, ranks), plan_layout(LOADS, ranks, shares="free")
    assert free.quota_LP is not None
    assert (free.imbalance_L <= equal.imbalance_L + 1e-9).all()
    for layer in range(4):
        carried = np.bincount(free.expert_LP[layer], weights=free.quota_LP[layer], minlength=128)
        assert carried == pytest.approx(np.ones(128))
        ratio = imbalance(ranks, free.expert_LP[layer], LOADS[layer], free.quota_LP[layer])
        assert ratio == pytest.approx(free.imbalance_L[layer])


@pytest.mark.parametrize("shares", ["equal", "free"])
def test_few_experts_on_few_ranks_are_laid_out_best_of_all_wherever_they_may_be(shares: Shares) -> None:
    compared = 0
    for seed in range(40):
        draws = np.random.default_rng(seed)
        experts, count = int(draws.integers(2, 6)), int(draws.integers(2, 4))
        slots_R, load_E = draws.integers(1, min(experts, 3) + 1, count), draws.lognormal(0.0, 1.0, experts)
        speed_R, allowed_ER = draws.choice([0.5, 1.0, 1.4], count), draws.random((experts, count)) < 0.8
        plain = (values.tolist() for values in (load_E, slots_R, speed_R, allowed_ER))
        best = least_imbalance(*plain, free=shares == "free")
        if np.isfinite(best):
            ranks = Ranks(slots_R, speed_R, np.zeros(count, np.int64))
            layout = plan_layout(load_E[None], ranks, shares=shares, allowed_ER=allowed_ER)
            assert layout.imbalance_L[0] == pytest.approx(best, rel=1e-5)
            assert layout.bound_L[0] <= best * (1 + 1e-9)
            compared += 1
    assert compared > 12


def test_layers_with_fewer_slots_leave_the_others_empty() -> None:
    slots_LR = np.full((4, 16), 9)
    slots_LR[2] = 8
    layout = plan_layout(LOADS, RANKS, slots_LR=slots_LR)
    assert (layout.expert_LP[2] < 0).sum() == 16
    assert (layout.expert_LP[[0, 1, 3]] >= 0).all()


def _drifted() -> np.ndarray:
    return LOADS * np.random.default_rng(1).lognormal(0, 0.3, LOADS.shape)


def test_a_budget_of_moves_is_kept_and_spent_on_balance() -> None:
    before = plan_layout(LOADS, RANKS)
    after = _drifted()
    staying = [imbalance(RANKS, before.expert_LP[layer], after[layer]) for layer in range(4)]
    reached = []
    for budget in (0, 10, 40):
        layout = plan_layout(after, RANKS, resident_LP=before.expert_LP, most_moves=budget)
        assert layout.moved_experts is not None
        assert layout.moved_experts <= budget
        reached.append(float(layout.imbalance_L.max()))
    assert reached[0] == pytest.approx(max(staying))
    assert reached[0] > reached[1] > reached[2]


def test_free_shares_need_fewer_moves_than_equal_ones() -> None:
    before = plan_layout(LOADS, RANKS).expert_LP
    moves = [
        plan_layout(_drifted(), RANKS, resident_LP=before, shares=shares, tolerance=0.01).moved_experts
        for shares in ("equal", "free")
    ]
    assert moves[1] is not None
    assert moves[0] is not None
    assert moves[1] <= moves[0]


def test_empty_slots_of_a_resident_layout_are_used() -> None:
    start = np.tile(linear_layout(RANKS, 128), (4, 1))
    assert (start < 0).sum() == 64
    layout = plan_layout(LOADS, RANKS, resident_LP=start, tolerance=0.01)
    assert (layout.expert_LP >= 0).all()
    assert float(layout.imbalance_L.max()) <= 1.01 * (1 + 1e-6)


def test_hedged_layouts_beat_plain_ones_on_windows_where_groups_rise_together() -> None:
    rng = np.random.default_rng(3)
    group_E = np.arange(128) // 16
    plain: list[float] = []
    hedged: list[float] = []
    for _ in range(4):
        window = zipf_loads(2, 128, seed=int(rng.integers(1000)), power=0.3)
        layouts = plan_layout(window, RANKS), plan_ahead(window[None], RANKS, groups=8)
        for _ in range(6):
            shock = rng.lognormal(0, 0.5, 8)
            served = window * shock[group_E]
            for ratios, layout in zip((plain, hedged), layouts, strict=True):
                ratios += [imbalance(RANKS, layout.expert_LP[layer], served[layer]) for layer in range(2)]
    assert np.mean(hedged) < np.mean(plain)


def test_changes_seen_before_are_common_factors_and_windows_are_scaled_alike() -> None:
    history = np.array([[1.0, 3.0], [6.0, 2.0]])
    uncertainty = uncertainty_of(history, 1)
    assert uncertainty.factor_FE.tolist() == [[4.0, -4.0]]


def test_planning_ahead_from_a_resident_layout_moves_less_with_more_slack() -> None:
    history = np.array([LOADS, _drifted()])
    resident = plan_layout(LOADS, RANKS).expert_LP
    moves = [
        plan_ahead(history, RANKS, resident_LP=resident, move_slack=slack).moved_experts or 0 for slack in (0.01, 0.1)
    ]
    assert moves[0] > moves[1]


def test_step_planner_keeps_homes_and_balances() -> None:
    planner = StepPlanner(RANKS, 128)
    rows = planner.plan_rows(LOADS)
    home_P = np.concatenate([np.append(np.arange(8 * rank, 8 * rank + 8), -1) for rank in range(16)])
    for layer in range(4):
        expert_P, quota_P = rows.expert_NP[layer], rows.quota_NP[layer]
        assert (expert_P[home_P >= 0] == home_P[home_P >= 0]).all()
        assert (quota_P >= -1e-12).all()
        carried = np.bincount(expert_P[expert_P >= 0], weights=quota_P[expert_P >= 0], minlength=128)
        assert carried == pytest.approx(np.ones(128))
        assert imbalance(RANKS, expert_P, LOADS[layer], quota_P) == pytest.approx(rows.imbalance_N[layer])
    assert float(rows.imbalance_N.mean()) < 1.01


def test_one_step_gives_what_rows_give() -> None:
    planner = StepPlanner(RANKS, 128)
    rows = planner.plan_rows(LOADS)
    expert_P, quota_P, ratio = planner.plan(np.ascontiguousarray(LOADS[1]))
    assert (expert_P == rows.expert_NP[1]).all()
    assert (quota_P == rows.quota_NP[1]).all()
    assert ratio == rows.imbalance_N[1]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (np.nan, r"is nan at \[1, 3\]"),
        (-1.0, r"is -1.0 at \[1, 3\]"),
    ],
)
def test_loads_that_make_no_sense_are_refused(spoil: float, said: str) -> None:
    loads = LOADS.copy()
    loads[1, 3] = spoil
    with pytest.raises(PlannerError, match=said):
        plan_layout(loads, RANKS)


def test_layers_without_load_wrong_shapes_and_too_few_slots_are_refused() -> None:
    loads = LOADS.copy()
    loads[2] = 0.0
    with pytest.raises(PlannerError, match=r"no load at all at \[2\]"):
        plan_layout(loads, RANKS)
    with pytest.raises(PlannerError, match="axes"):
        plan_layout(LOADS[0], RANKS)
    with pytest.raises(PlannerError, match="112 slots cannot hold 128 experts"):
        plan_layout(LOADS, make_ranks(16, 7))
    with pytest.raises(PlannerError, match="slot counts"):
        make_ranks(4, [2, 2, 2])


def test_resident_layouts_that_do_not_fit_are_refused() -> None:
    resident = plan_layout(LOADS, RANKS).expert_LP
    with pytest.raises(PlannerError, match="the ranks need"):
        plan_layout(LOADS, RANKS, resident_LP=resident[:, :-1])
    lost = resident.copy()
    lost[1][lost[1] == 5] = 6
    with pytest.raises(PlannerError, match=r"layer 1: (expert 5 has no slot|rank .* twice)"):
        plan_layout(LOADS, RANKS, resident_LP=lost)
    with pytest.raises(PlannerError, match="counted from a resident layout"):
        plan_layout(LOADS, RANKS, most_moves=3)


def test_step_planners_need_experts_that_spread_evenly() -> None:
    with pytest.raises(PlannerError, match="do not spread evenly"):
        StepPlanner(make_ranks(24, 9), 128)
    with pytest.raises(PlannerError, match="4 home slots"):
        StepPlanner(make_ranks(16, 9, home_slots=4), 128)


def test_slots_and_places_that_cannot_be_are_told_in_the_words_of_experts() -> None:
    with pytest.raises(PlannerError, match="a rank has 129 slots for 128 experts, and holds none twice"):
        plan_layout(LOADS, make_ranks(2, 129))
    assert plan_layout(LOADS, make_ranks(2, 128)).imbalance_L.max() == pytest.approx(1.0)
    allowed = np.ones((128, RANKS.num_ranks), np.bool_)
    allowed[3] = False
    with pytest.raises(PlannerError, match="no rank may hold expert 3"):
        plan_layout(LOADS, RANKS, allowed_ER=allowed)
    with pytest.raises(PlannerError, match="must have the shape"):
        plan_layout(LOADS, RANKS, allowed_ER=allowed[:, 1:])


def test_resident_layouts_that_name_other_experts_or_one_twice_are_refused() -> None:
    resident = plan_layout(LOADS, RANKS).expert_LP
    foreign, twice = resident.copy(), resident.copy()
    foreign[1, 0] = 128
    with pytest.raises(PlannerError, match="layer 1: names expert 128 of 128"):
        plan_layout(LOADS, RANKS, resident_LP=foreign)
    spare = int(np.argmax(np.bincount(twice[0])[twice[0]]))  # a slot of the expert with most copies
    rank = int(RANKS.rank_P[spare])
    slots = range(int(RANKS.first_R[rank]), int(RANKS.first_R[rank + 1]))
    twice[0, spare] = twice[0, next(slot for slot in slots if slot != spare)]
    with pytest.raises(PlannerError, match=f"layer 0: rank {rank} holds expert {twice[0, spare]} twice"):
        plan_layout(LOADS, RANKS, resident_LP=twice)

"""Policies replayed, redundancy sized, and moves that do or do not pay."""

from itertools import pairwise, product

import numpy as np
import pytest
from expert_loads import imbalance, zipf_loads

from planner.errors import PlannerError
from planner.experts.chart import draw
from planner.experts.ranks import make_ranks
from planner.experts.replay import POLICIES, cheapest_path, replay, served_imbalance
from planner.experts.sizing import size, worth_moving
from planner.experts.step_time import MoeCosts
from planner.hardware.cluster import Pool
from planner.hardware.library import find_node
from planner.models.library import find_model

RANKS = make_ranks(8, 9, ranks_per_node=8)
WINDOWS = np.array([zipf_loads(2, 64) * np.random.default_rng(w).lognormal(0, 0.2, (2, 64)) for w in range(4)])


@pytest.fixture(scope="module")
def costs() -> MoeCosts:
    return MoeCosts(find_model("Qwen/Qwen3-30B-A3B"), Pool("h200", find_node("h200"), 1), 8, 4096.0)


def test_knowing_what_comes_beats_looking_back_beats_never_moving() -> None:
    mean = {
        policy: float(replay(WINDOWS, RANKS, policy).imbalance_WL.mean())
        for policy in POLICIES
        if policy not in ("worthwhile", "hindsight")
    }
    assert mean["oracle"] < 1.005
    assert mean["realtime"] < mean["periodic"] < mean["linear"]
    assert mean["oracle"] < mean["static"] < mean["linear"]


def test_policies_that_never_move_move_nothing() -> None:
    assert replay(WINDOWS, RANKS, "linear").moved_experts_W.sum() == 0
    assert replay(WINDOWS, RANKS, "static").moved_experts_W.sum() == 0
    assert replay(WINDOWS, RANKS, "periodic").moved_experts_W.sum() > 0


def test_policies_that_look_back_do_not_see_the_last_window() -> None:
    changed = WINDOWS.copy()
    changed[-1] = zipf_loads(2, 64, seed=77)
    for policy in ("static", "periodic", "ahead"):
        before, after = replay(WINDOWS, RANKS, policy), replay(changed, RANKS, policy)
        assert (before.moved_experts_W == after.moved_experts_W).all()
        assert (before.imbalance_WL[:-1] == after.imbalance_WL[:-1]).all()


def test_served_imbalance_is_that_counted_slot_by_slot() -> None:
    layout = np.tile(np.append(np.arange(64), np.full(8, -1)), (2, 1))
    ratios = served_imbalance(RANKS, layout, WINDOWS[0])
    assert ratios[1] == pytest.approx(imbalance(RANKS, layout[1], WINDOWS[0, 1]))


def test_steps_are_slower_the_less_balanced_and_moves_take_time(costs: MoeCosts) -> None:
    balanced, skewed = costs.step_s([1.0, 1.0]), costs.step_s([1.0, 2.0])
    assert balanced < skewed < 2 * balanced
    assert costs.move_s(2e9) == pytest.approx(2 * costs.move_s(1e9))
    assert costs.expert_bytes == 3 * 2048 * 768 * 2


def test_step_times_are_net_of_moves_and_planning(costs: MoeCosts) -> None:
    replayed = replay(WINDOWS, RANKS, "realtime", costs=costs)
    assert replayed.mean_step_s is not None
    assert replayed.step_s_W is not None
    assert replayed.mean_step_s > float(replayed.step_s_W.mean())
    spread = replay(WINDOWS, RANKS, "realtime", costs=costs, steps_per_window=10)
    assert spread.mean_step_s is not None
    assert spread.mean_step_s < replayed.mean_step_s


def test_more_slots_never_raise_the_bound_and_take_memory(costs: MoeCosts) -> None:
    rows = list(size(WINDOWS, 8, most_extra=2, costs=costs))
    assert [row.slots_per_rank for row in rows] == [8, 9, 10]
    assert [row.redundant_slots for row in rows] == [0, 8, 16]
    assert rows[0].bound_mean >= rows[1].bound_mean >= rows[2].bound_mean
    assert rows[1].memory_bytes == pytest.approx(1 * 2 * costs.expert_bytes)
    assert all(row.next_mean is not None and row.next_mean > row.imbalance_mean for row in rows)


def test_moving_pays_when_there_are_steps_enough(costs: MoeCosts) -> None:
    few, many = (worth_moving(costs, [1.3], [1.0], 1e12, steps) for steps in (1, 10**6))
    assert not few.pays
    assert many.pays
    with pytest.raises(PlannerError, match="at least 1"):
        worth_moving(costs, [1.3], [1.0], 1e9, 0)


def test_moves_that_cannot_pay_back_are_not_made(costs: MoeCosts) -> None:
    never = replay(WINDOWS, RANKS, "worthwhile", costs=costs, expert_bytes=1e15)
    always = replay(WINDOWS, RANKS, "worthwhile", costs=costs, steps_per_window=10**6)
    assert never.moved_experts_W.sum() == 0
    assert always.moved_experts_W.sum() > 0
    with pytest.raises(PlannerError, match="need a model and hardware"):
        replay(WINDOWS, RANKS, "worthwhile")


def test_models_without_experts_are_refused() -> None:
    with pytest.raises(PlannerError, match="has no experts"):
        MoeCosts(find_model("Qwen/Qwen3-32B"), Pool("h200", find_node("h200"), 1), 8, 1.0)


def test_a_replay_needs_windows_and_a_policy_that_exists() -> None:
    with pytest.raises(PlannerError, match="at least two windows"):
        replay(WINDOWS[:1], RANKS, "static")
    with pytest.raises(PlannerError, match="unknown policy `oracel`"):
        replay(WINDOWS, RANKS, "oracel")


def test_the_drawing_has_a_line_for_every_policy() -> None:
    replays = [replay(WINDOWS, RANKS, policy) for policy in ("linear", "static")]
    text = draw(replays)
    assert text.count("<polyline") == 2 * 2  # imbalance and copies
    assert ">linear<" in text
    assert ">copies moved<" in text
    assert text.startswith("<svg")
    assert ">GB moved<" in draw(replays, 1e9)


def test_the_drawing_shows_steps_where_their_cost_is_known(costs: MoeCosts) -> None:
    text = draw([replay(WINDOWS, RANKS, policy, costs=costs) for policy in ("linear", "static")])
    assert text.count("<polyline") == 3 * 2
    assert ">step, ms<" in text


def test_hindsight_is_never_slower_than_a_rule_that_uses_the_same_layouts(costs: MoeCosts) -> None:
    for steps in (1, 100, 10**6):
        seconds = {
            policy: replay(WINDOWS, RANKS, policy, costs=costs, expert_bytes=1e9, steps_per_window=steps).mean_step_s
            for policy in ("hindsight", "static", "periodic")
        }
        assert None not in seconds.values()
        assert seconds["hindsight"] <= min(seconds["static"], seconds["periodic"]) * (1 + 1e-12)  # type: ignore[operator,type-var]  # not None


@pytest.mark.parametrize("seed", range(5))
def test_the_cheapest_path_is_the_best_of_all_paths(seed: int) -> None:
    rng = np.random.default_rng(seed)
    served, moving = rng.random((5, 4)), rng.random((4, 4))
    np.fill_diagonal(moving, 0.0)

    def seconds(path: tuple[int, ...]) -> float:
        late = any(layout > max(window - 1, 0) for window, layout in enumerate(path))
        moves = sum(moving[a, b] for a, b in pairwise(path))
        return np.inf if late else float(sum(served[w, k] for w, k in enumerate(path)) + moves)

    best = min(product(range(4), repeat=5), key=seconds)
    assert cheapest_path(served, moving) == list(best)

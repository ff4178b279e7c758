"""What each choice of layout costs on every count: recounted, none dominated, staying among them."""

import numpy as np
import pytest
from expert_loads import imbalance, zipf_loads

from planner.errors import PlannerError
from planner.experts.layout import copies_moved, plan_layout
from planner.experts.ranks import linear_layout, make_ranks
from planner.experts.step_time import MoeCosts
from planner.experts.tokens import plan_tokens
from planner.experts.tradeoff import token_tradeoffs, tradeoffs
from planner.experts.traffic import draw_near, leaving_share
from planner.hardware.cluster import Pool
from planner.hardware.library import find_node
from planner.models.library import find_model

RANKS = make_ranks(8, 9, ranks_per_node=4)
LOADS = zipf_loads(2, 64)
RESIDENT = np.tile(linear_layout(RANKS, 64), (2, 1))


def test_no_choice_is_worse_than_another_on_every_count_and_staying_is_one() -> None:
    choices = tradeoffs(LOADS, RANKS, RESIDENT, more_slots=(0, 1), slacks=(0.001, 0.05, 0.2))
    counts = [(row.imbalance_mean, row.leaving_share, row.moved_experts, row.redundant_slots) for row in choices]
    for count in counts:
        assert not any(
            other != count and all(a <= b + 1e-9 for a, b in zip(other, count, strict=True)) for other in counts
        )
    assert choices[0].moved_experts == 0
    assert {row.redundant_slots for row in choices} == {8, 16}
    for row in choices:
        on = RANKS if row.redundant_slots == 8 else RANKS.with_more_slots(1)
        again = [imbalance(on, row.layout.expert_LP[layer], LOADS[layer]) for layer in range(2)]
        assert np.mean(again) == pytest.approx(row.imbalance_mean)


def test_choices_are_weighed_against_staying() -> None:
    pool = Pool("h200", find_node("h200"), 1)
    costs = MoeCosts(find_model("Qwen/Qwen3-30B-A3B"), pool, 8, 4096.0)
    few, many = (
        tradeoffs(LOADS, RANKS, RESIDENT, slacks=(0.001,), costs=costs, expert_bytes=size, steps=10)
        for size in (1e13, 1e6)
    )
    balanced = [min(choices, key=lambda row: row.imbalance_mean).verdict for choices in (few, many)]
    assert balanced[0] is not None
    assert balanced[1] is not None
    assert not balanced[0].pays
    assert balanced[1].pays
    assert many[0].verdict is not None
    assert many[0].verdict.cost_s == 0.0


def test_tokens_stay_on_their_node_more_often_for_a_hundredth_of_balance() -> None:
    layout = plan_layout(LOADS, RANKS)
    near = draw_near(LOADS, RANKS, layout, slack=0.01)
    assert (near.imbalance_L <= layout.imbalance_L * 1.01 + 1e-9).all()
    before, after = (leaving_share(LOADS, RANKS, laid_out.expert_LP) for laid_out in (layout, near))
    assert (after <= before).all()
    assert after.mean() < before.mean()


def test_tokens_that_start_where_their_experts_are_need_not_leave() -> None:
    ranks = make_ranks(4, 2, ranks_per_node=2)
    row = np.array([[0, 1, 2, 3, 4, 5, 6, 7]])
    load = np.ones((1, 8))
    source = np.zeros((1, 4, 8))
    for slot, expert in enumerate(row[0]):
        source[0, ranks.rank_P[slot], expert] = 1.0
    assert leaving_share(load, ranks, row, source_LRE=source)[0] == pytest.approx(0.0)
    assert leaving_share(load, ranks, row)[0] == pytest.approx(0.5)
    with pytest.raises(PlannerError, match="source rank"):
        leaving_share(load, ranks, row, source_LRE=source[0])


def test_copies_into_empty_slots_are_moves() -> None:
    layout = plan_layout(LOADS, RANKS, resident_LP=RESIDENT, tolerance=0.5)
    assert layout.moved_experts == copies_moved(RANKS, RESIDENT, layout.expert_LP) >= 16


def test_fewer_nodes_a_token_cost_balance() -> None:
    rng = np.random.default_rng(0)
    likes = rng.dirichlet(np.full(32, 0.3), 4)
    tokens = np.array([[rng.choice(32, 2, p=likes[rng.integers(4)])] for _ in range(1500)])
    layouts = token_tradeoffs(tokens, make_ranks(8, 5, ranks_per_node=2), 32, prices=(0.1, 100.0))
    assert len(layouts) == 2
    assert layouts[0].nodes_per_token_L.mean() < layouts[1].nodes_per_token_L.mean()
    assert layouts[0].fresh_imbalance_L.mean() > layouts[1].fresh_imbalance_L.mean()


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        (np.zeros((4, 1, 2)), "must hold whole numbers"),
        (np.zeros((4, 2), np.int64), r"found int64 \(4, 2\)"),
        (np.full((4, 1, 2), 32), "layer 0: names expert 32 of 32"),
        (np.full((4, 1, 2), -1), "names expert -1 of 32"),
    ],
)
def test_choices_that_name_no_expert_are_refused(tokens: np.ndarray, said: str) -> None:
    with pytest.raises(PlannerError, match=said):
        plan_tokens(tokens, make_ranks(8, 5), 32)

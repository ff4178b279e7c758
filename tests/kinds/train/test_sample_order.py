"""The order of unlike samples in training plans: every micro-batch once, no longer than dealt in turn, judged again."""

import copy
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from static_level import solve
from train_problems import problem

from planner.check import check_plan
from planner.cli.render.plan import render_plan
from planner.kinds.train.decision import TrainDecision
from planner.kinds.train.whole_run.documents import apportioned
from planner.plan.schema import Envelope

SAMPLES = [
    {"share": 2, "images": [{"width": 512, "height": 512, "count": 8}]},
    {"share": 1, "images": [{"width": 1024, "height": 1024}]},
    {"share": 1},
]
SEARCH = {"tp": 2, "pp": 2, "cp": 1, "micro_batch": 1, "zero_stage": 1, "vpp": 1}


def planned(**search: Any) -> Envelope:  # noqa: ANN401
    data = problem(
        "Qwen/Qwen3-VL-4B-Instruct", nodes=1, global_batch=16, samples=SAMPLES, search={**SEARCH, "dp": 2, **search}
    )
    return solve(data)


@pytest.fixture(scope="module")
def plan() -> Envelope:
    return planned()


def order_of(envelope: Envelope) -> Any:  # noqa: ANN401 - plain data
    return envelope.decision["sample_order"]


@pytest.mark.parametrize("search", [{}, {"micro_batch": 2}, {"dp": 1, "tp": 1, "modules": "apart"}])
def test_every_sample_is_taken_once_in_its_share(search: dict[str, Any]) -> None:
    envelope = planned(**search)
    order = order_of(envelope)
    taken = Counter(sample for own in order["orders"] for row in own for sample in order["micro_batches"][row])
    assert taken == {0: 8, 1: 4, 2: 4}
    assert len({len(own) for own in order["orders"]}) == 1
    assert order["bound_s"] <= order["span_s"] * (1 + 1e-9)
    assert order["span_s"] <= order["dealt_s"] * (1 + 1e-9)
    decision = TrainDecision.model_validate(envelope.decision)
    assert all(finding.ok for finding in check_plan(envelope, decision))


def test_a_screen_counts_orders_and_has_them_apart_where_all_is_asked_for(plan: Envelope) -> None:
    decision, orders = TrainDecision.model_validate(plan.decision), order_of(plan)["orders"]
    short, whole = (" ".join(render_plan(plan, decision, verbose=verbose).split()) for verbose in (False, True))
    assert f"orders {len(orders)} span" in short
    assert "`--verbose` has them" in short
    for order in orders:
        assert f"({', '.join(map(str, order))})" in whole


def test_samples_of_one_make_have_no_order() -> None:
    data = problem("Qwen/Qwen3-VL-4B-Instruct", nodes=1, global_batch=16, samples=SAMPLES[:1], search=SEARCH)
    assert "sample_order" not in solve(data).decision


@pytest.mark.parametrize(
    ("change", "told"),
    [({"span_s": 1e-3}, "span_s"), ({"orders": [[0] * 8, [0] * 8]}, "order of samples"), ({"bound_s": 9e9}, "bound_s")],
)
def test_an_order_that_is_none_or_lies_is_told(plan: Envelope, change: dict[str, Any], told: str) -> None:
    decision: Any = copy.deepcopy(plan.decision)
    decision["sample_order"].update(change)
    changed = plan.model_copy(update={"decision": decision})
    failed = [f.what + f.where for f in check_plan(changed, TrainDecision.model_validate(decision)) if not f.ok]
    assert any(told in text for text in failed)


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=6), st.integers(1, 5000))
def test_whole_numbers_keep_shares_and_their_sum(shares: list[float], total: int) -> None:
    counts = apportioned(shares, total)
    assert sum(counts) == total
    assert all(abs(count - total * share / sum(shares)) < 1 for count, share in zip(counts, shares, strict=True))

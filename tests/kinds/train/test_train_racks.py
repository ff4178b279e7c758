"""Racks of a training plan: the placement against its own definition, the bound, and bad input."""

from itertools import pairwise
from typing import Any

import pytest
from train_problems import problem

from planner.api import solve
from planner.errors import PlannerError
from planner.plan.schema import Envelope

SEARCH = {"tp": 2, "pp": 2, "dp": 8, "cp": 1, "micro_batch": 1, "vpp": 1, "zero_stage": 1, "schedule": "1f1b"}
UPLINK = 1e9


def solved(free: list[int], **search: Any) -> Envelope:  # noqa: ANN401 - values of axes
    data = problem(nodes=4, global_batch=32, search={**SEARCH, **search})
    pool = data["cluster"]["pools"][0]
    data["cluster"]["pools"] = [{**pool, "nodes": sum(free), "topology": {"racks": free, "uplink_bytes_per_s": UPLINK}}]
    return solve(data)


@pytest.mark.parametrize(("free", "split"), [([4], False), ([2, 2], True), ([3, 1], True), ([1, 1, 1, 1], True)])
def test_the_busiest_uplink_is_that_of_the_racks_that_the_plan_states(free: list[int], split: bool) -> None:
    decision: Any = solved(free).decision
    racks = decision["racks"]
    rows = racks["rack_of_node"]
    placed = [rack for row in rows for rack in row]
    assert all(placed.count(rack) <= nodes for rack, nodes in enumerate(free))
    batches, memories = decision["num_micro_batches"], [rank["memory"] for rank in decision["pipeline_ranks"]]
    sent = [0.0] * len(free)
    for rack in range(len(free)):
        for row, memory in zip(rows, memories, strict=True):
            if 0 < row.count(rack) < len(row):
                sent[rack] += 2 * 2 * 7 / 8 * max(memory["gradients_bytes"], memory["weights_bytes"])
        for row, after in pairwise(rows):
            leaving = sum((a == rack) != (b == rack) for a, b in zip(row, after, strict=True))
            sent[rack] += leaving * batches * 4 * TOKENS * HIDDEN * 2  # four replicas stand on a node
    assert racks["busiest_uplink_s"] == pytest.approx(max(sent) / UPLINK)
    assert (max(sent) > 0) == split
    assert racks["bound_s"] == pytest.approx(racks["busiest_uplink_s"])
    assert racks["busiest_uplink_s"] <= racks["rank_order_s"]


TOKENS = problem(nodes=4, global_batch=32, search=SEARCH)["options"]["sequence_tokens"]
HIDDEN = 4096


def test_racks_that_cannot_hold_the_job_are_refused_with_what_would_work() -> None:
    with pytest.raises(PlannerError, match=r"a stage of 4 GPUs fills no whole nodes of 8\n.*fewer stages"):
        solved([4], dp=2)

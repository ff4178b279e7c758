"""Racks of a training plan: the placement against its own definition, the bound, and bad input."""

import random
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from train_problems import problem

from planner.api import solve
from planner.check import check_plan
from planner.emit.registry import emit
from planner.errors import PlannerError
from planner.kinds.train.decision import TrainDecision
from planner.kinds.train.search import one_pool
from planner.kinds.train.search.search import Leaf
from planner.kinds.train.whole_run.on_racks import Uplinks, least_waits_s, placed, uplinks_of
from planner.plan.schema import Envelope
from planner.problem.recorded import AtHand
from planner.solvers.topology.racks_problem import Racks

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


def test_a_plan_on_racks_passes_its_check_and_launchers_start_ranks_on_the_nodes_of_the_racks() -> None:
    data = problem(nodes=4, global_batch=32, search=SEARCH)
    wiring = {"racks": [3, 2], "uplink_bytes_per_s": UPLINK}
    names = [f"n{node}" for node in range(5)]
    data["cluster"]["pools"] = [{**data["cluster"]["pools"][0], "nodes": 5, "topology": wiring, "node_names": names}]
    plan = solve(data)
    decision = TrainDecision.model_validate(plan.decision)
    assert decision.racks is not None
    racks = [rack for row in decision.racks.rack_of_node for rack in row]
    hosts = emit(plan, decision, "slurm-topology")["hostfile"].split()[::8]
    assert [int(host[1:]) >= 3 for host in hosts] == racks
    assert f"#SBATCH --nodelist={','.join(hosts)}\n" in emit(plan, decision, "slurm")["train.sbatch"]
    assert sorted(hosts) != names[:4]  # where ranks in order would stand
    assert [finding.what for finding in check_plan(plan, decision, hand=AtHand()) if not finding.ok] == []


def test_racks_that_cannot_hold_the_job_are_refused_with_what_would_work() -> None:
    with pytest.raises(PlannerError, match=r"fill whole nodes of 8 GPUs inside these racks\n.*fewer stages"):
        solved([2, 2], pp=1, tp=8, cp=4, dp=1)


def test_stages_that_share_a_node_exchange_gradients_inside_it() -> None:
    decision: Any = solved([1, 1], dp=2, pp=4).decision
    assert decision["racks"]["rack_of_node"] in ([[0], [1]], [[1], [0]])
    batches = decision["num_micro_batches"]
    assert decision["racks"]["busiest_uplink_s"] == pytest.approx(2 * batches * TOKENS * HIDDEN * 2 / UPLINK)


def test_no_placement_of_a_hundred_drawn_plans_waits_less_than_the_bound_and_few_less_than_ours() -> None:
    missed = 0
    for seed in range(100):
        uplinks = drawn(random.Random(seed))
        problem = uplinks.problem
        rows = [
            r for r in product(range(problem.replicas + 1), repeat=len(problem.free_B)) if sum(r) == problem.replicas
        ]
        least = min(
            uplinks.waits_s(np.array(counts).T)
            for counts in product(rows, repeat=problem.stages)
            if (np.array(counts).sum(axis=0) <= problem.free_B).all()
        )
        ours = placed(uplinks)
        assert ours.least_s <= least + 1e-9
        assert ours.waits_s >= least - 1e-9
        missed += ours.waits_s > least + 1e-9
    assert missed <= 5


def drawn(draw: random.Random) -> Uplinks:
    """A small plan on racks."""
    stages, replicas, racks = draw.randint(1, 3), draw.randint(1, 4), draw.randint(2, 3)
    free = [draw.randint(1, 5) for _ in range(racks)]
    while sum(free) < stages * replicas:
        free[draw.randrange(racks)] += 1
    gradients = tuple(draw.uniform(0, 4) for _ in range(stages))
    activations = tuple(draw.uniform(0, 2) for _ in range(stages - 1))
    problem = Racks(replicas, tuple(free), (1.0,) * racks, gradients, activations)
    return Uplinks(problem, 1, draw.uniform(0, 3), draw.uniform(0, 3), draw.random() < 0.3)


def test_the_fastest_plan_is_the_best_of_all_shapes_with_what_each_waits_for_uplinks() -> None:
    free: dict[str, Any] = {"pp": [1, 2, 4], "dp": [4, 8, 16], "zero_stage": [1, 3]}
    plan = solved([1, 3], **free)
    each = {}
    for pp, dp, zero in product(free["pp"], free["dp"], free["zero_stage"]):
        if pp * dp > 16:
            continue
        single = solved([1, 3], pp=pp, dp=dp, zero_stage=zero)
        each[pp, dp, zero] = step_s(single)
        racks: Any = single.decision["racks"]
        assert racks["step_waits_s"] >= racks["step_waits_least_s"]
    assert step_s(plan) == pytest.approx(min(each.values()))
    assert len({round(value, 6) for value in each.values()}) > 1
    racks = solved([1, 3], pp=1, dp=16).decision["racks"]
    assert racks["step_waits_s"] > 0.0
    assert each[1, 16, 1] == pytest.approx(step_s(solved([4], pp=1, dp=16)) + racks["step_waits_s"])


def step_s(plan: Envelope) -> float:
    value = plan.certificate.objective.value
    assert value is not None
    return value


@pytest.mark.parametrize("options", [{"layerwise": True}])
def test_uplinks_under_strategies_by_layer_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(PlannerError, match="do not know of uplinks"):
        solved([1, 3], **options)


@pytest.mark.parametrize("free", [[1, 3], [2, 1, 1]])
def test_the_plan_is_that_of_a_search_whose_bounds_know_of_no_waits(
    free: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    search: dict[str, Any] = {"pp": [1, 2, 4], "dp": [4, 8, 16], "zero_stage": [1, 3], "micro_batch": [1, 2]}
    bounded, bounds = bounds_and_least_steps(free, search, monkeypatch)
    assert bounds
    assert all(bound <= least * (1.0 + 1e-9) for bound, least in bounds)
    monkeypatch.setattr(one_pool, "floor_with_waits_s", lambda choice, floor, floor_s: floor_s)
    plain = solved(free, **search)
    assert step_s(bounded) == pytest.approx(step_s(plain))
    assert bounded.certificate.status == plain.certificate.status
    assert bounded.certificate.bound == pytest.approx(plain.certificate.bound)


def bounds_and_least_steps(
    free: list[int], search: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> tuple[Envelope, list[tuple[float, float]]]:
    """The plan, and of every plan that was evaluated the bound of its choice beside the least step on these racks."""
    rows = []
    close = one_pool.OnePoolSearch.close

    def closing(self: one_pool.OnePoolSearch, leaf: Leaf) -> None:
        made = leaf.candidate.priced() if leaf.place >= 0 and leaf.unplaced is None else None
        uplinks = None if made is None else uplinks_of(made)
        if made is not None and uplinks is not None:
            bound_s = leaf.candidate.floor_s(None, 0)
            rows.append((bound_s, made.step_s + least_waits_s(uplinks)))
        close(self, leaf)

    with monkeypatch.context() as patch:
        patch.setattr(one_pool.OnePoolSearch, "close", closing)
        return solved(free, **search), rows

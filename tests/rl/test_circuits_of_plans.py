"""What pods exchange in the phases of RL plans, against transfers counted one by one; circuits; bad input."""

import itertools
from collections import defaultdict

import pytest

from planner.errors import PlannerError
from planner.plan.schema import Axis, Block, Decision, Memory, Role
from planner.rl.circuits import SYNC, TRAIN, Pods, circuits_of_plan
from planner.solvers.result import Status
from planner.solvers.topology.circuits import circuits

GRADIENTS, WEIGHTS, TP, DP, ROLLOUTS = 30.0, 10.0, 2, 8, 16


def decided(*, weights: float = WEIGHTS) -> Decision:
    """Sixteen devices that train, in eight rings' ranks of two, and sixteen behind them that roll out."""
    memory = Memory(weights_bytes=weights, gradients_bytes=GRADIENTS, capacity_bytes=100.0)
    actor = Role(name="actor", function="actor", model="m", pool="p", replicas=1, memory=memory)
    rollout = Role(name="rollout", function="rollout", model="m", pool="p", replicas=ROLLOUTS, memory=memory)
    trained = (Axis(name="dp", size=DP, stride=TP), Axis(name="tp", size=TP, stride=1))
    blocks = (
        Block(role="actor", pool="p", first_device=0, axes=trained),
        Block(role="rollout", pool="p", first_device=16, axes=(Axis(name="replica", size=ROLLOUTS, stride=1),)),
    )
    return Decision(roles=(actor, rollout), placement=blocks)


def pods(nodes_per_pod: int) -> Pods:
    return Pods({"p": 4}, {"p": [node // nodes_per_pod for node in range(8)]})


@pytest.mark.parametrize("nodes_per_pod", [1, 2, 3, 4])
def test_phases_exchange_what_their_transfers_add_up_to(nodes_per_pod: int) -> None:
    size = 4 * nodes_per_pod
    sent: dict[str, dict[tuple[int, int], float]] = {TRAIN: defaultdict(float), SYNC: defaultdict(float)}
    for shard, rank in itertools.product(range(TP), range(DP)):
        here, there = TP * rank + shard, TP * ((rank + 1) % DP) + shard
        for _ in range(3):  # optimizer steps: each hands on all chunks but one, twice
            sent[TRAIN][here // size, there // size] += 2 * GRADIENTS / DP * (DP - 1)
    for source, target in itertools.product(range(16), range(16, 32)):
        sent[SYNC][source // size, target // size] += WEIGHTS / 16
    figures = {"optimizer_steps": 3, "ports": 9, "link_bytes_per_s": 1.0, "switching_s": 0.5}
    problem, names = circuits_of_plan(decided(), pods(nodes_per_pod), **figures)  # type: ignore[arg-type]  # mixed
    for name, rows in sent.items():
        wanted = {(min(a, b), max(a, b)): max(rows.get((a, b), 0.0), rows.get((b, a), 0.0)) for a, b in rows if a != b}
        if wanted:
            assert problem.phases[names.index(name)] == pytest.approx(wanted)
        else:
            assert name not in names
    result = circuits(problem)
    assert result.status is Status.OPTIMAL
    assert result.objective == result.bound


def test_plans_inside_one_pod_or_with_unknown_weights_are_refused() -> None:
    figures = {"optimizer_steps": 1, "ports": 9, "link_bytes_per_s": 1.0, "switching_s": 0.5}
    with pytest.raises(PlannerError, match="all nodes lie in one pod"):
        circuits_of_plan(decided(), pods(8), **figures)  # type: ignore[arg-type]  # mixed
    with pytest.raises(PlannerError, match="no role `actor` whose weights are known"):
        circuits_of_plan(decided(weights=0.0), pods(2), **figures)  # type: ignore[arg-type]  # mixed

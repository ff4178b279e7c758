"""What pods exchange in the phases of an RL plan, and the circuits between them that make a round shortest (RFabric).

Source      RFabric of OrchestrRL, arXiv:2601.01209: circuits follow the phases train and weight sync, which repeat
Pods        racks of a pool, or so many successive nodes; pools one after the other
Train       every data-parallel group of the actor is a ring in rank order: a device hands 2 (D - 1) / D of its
            gradients on to the next, at each optimizer step
Weight sync every rollout device takes its weights from all actor devices in equal parts
A link carries as much in both directions, so a pair of pods counts the busier one. Left out: pipeline edges,
exchanges of experts, and groups of rollouts that span pods.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from planner.errors import PlannerError
from planner.plan.placement import groups, role_devices
from planner.plan.schema import Block, Decision, Role
from planner.solvers.topology.circuits import Circuits

TRAIN, SYNC = "train", "weight sync"

Demand = dict[tuple[int, int], float]
"""Bytes by pair of pods, the lower one first."""


@dataclass(frozen=True, slots=True)
class Pods:
    """The pod of every node of every pool, counted through the pools in their order."""

    gpus_per_node: Mapping[str, int]
    pod_of_node: Mapping[str, Sequence[int]]

    @property
    def first(self) -> dict[str, int]:
        """The first pod of every pool."""
        firsts, total = {}, 0
        for pool, pods in self.pod_of_node.items():
            firsts[pool] = total
            total += max(pods, default=-1) + 1
        return firsts

    @property
    def count(self) -> int:
        return sum(max(pods, default=-1) + 1 for pods in self.pod_of_node.values())

    def pods(self, devices: Iterable[tuple[str, int]]) -> list[int]:
        """The pod of every (pool, device)."""
        first = self.first
        return [first[pool] + self.pod_of_node[pool][device // self.gpus_per_node[pool]] for pool, device in devices]


def circuits_of_plan(
    decision: Decision, pods: Pods, *, optimizer_steps: int, ports: int, link_bytes_per_s: float, switching_s: float
) -> tuple[Circuits, tuple[str, ...]]:
    """The circuit problem of a plan and the names of its phases, those that cross pods.

    Raises PlannerError for a plan without an actor and rollouts whose bytes are known, and one inside a single pod.
    """
    if pods.count < 2:
        what = "all nodes lie in one pod"
        raise PlannerError(what, where="pods", hint="give fewer nodes per pod")
    actor = _roles(decision, "actor")[0]
    demands = {TRAIN: _training(decision, actor, pods, optimizer_steps), SYNC: _weight_sync(decision, actor, pods)}
    crossing = {name: demand for name, demand in demands.items() if demand}
    if not crossing:
        raise PlannerError("no phase exchanges between pods", where="placement", hint="give fewer nodes per pod")
    return Circuits(pods.count, ports, link_bytes_per_s, switching_s, tuple(crossing.values())), tuple(crossing)


def _roles(decision: Decision, function: str) -> list[Role]:
    roles = [role for role in decision.roles if role.function == function]
    if not roles or any(role.memory is None or not role.memory.weights_bytes for role in roles):
        what = f"the plan has no role `{function}` whose weights are known"
        raise PlannerError(what, where="decision.roles", hint="give a plan of kind `rl` that was solved")
    return roles


def _training(decision: Decision, actor: Role, pods: Pods, steps: int) -> Demand:
    """Rings of gradients, each optimizer step."""
    assert actor.memory is not None
    shard = actor.memory.gradients_bytes or actor.memory.weights_bytes
    sent: dict[tuple[int, int], float] = defaultdict(float)
    for block in (block for block in decision.placement if block.role == actor.name):
        for ring in _rings(block):
            stops = pods.pods((block.pool, device) for device in ring)
            for here, there in zip(stops, [*stops[1:], stops[0]], strict=True):
                sent[here, there] += 2.0 * (len(ring) - 1) / len(ring) * shard * steps
    return _busier(sent)


def _rings(block: Block) -> Iterable[Sequence[int]]:
    return (ring for ring in groups(block, "dp") if len(ring) > 1)


def _weight_sync(decision: Decision, actor: Role, pods: Pods) -> Demand:
    """Weights from all actor devices alike to every rollout device."""
    sources = Counter(pods.pods(role_devices(decision.placement, actor.name)))
    trained = sum(sources.values())
    sent: dict[tuple[int, int], float] = defaultdict(float)
    for role in _roles(decision, "rollout"):
        assert role.memory is not None
        for there, devices in Counter(pods.pods(role_devices(decision.placement, role.name))).items():
            for here, count in sources.items():
                sent[here, there] += role.memory.weights_bytes * devices * count / trained
    return _busier(sent)


def _busier(sent: Mapping[tuple[int, int], float]) -> Demand:
    """By pair, the bytes of the direction that has more; none within a pod."""
    pairs = sorted({(min(pair), max(pair)) for pair in sent if pair[0] != pair[1]})
    return {(a, b): max(sent.get((a, b), 0.0), sent.get((b, a), 0.0)) for a, b in pairs}

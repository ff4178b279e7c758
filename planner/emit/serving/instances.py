"""A serving plan as running instances: GPUs and nodes of every rank, in the engine's rank order."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, product

from planner.emit.nodes import Cluster, NodeId
from planner.emit.refusals import refuse
from planner.errors import PlannerError
from planner.plan.placement import stepper
from planner.plan.schema import Block, Decision, Role


@dataclass(frozen=True, slots=True)
class NodeRanks:
    """The ranks of an instance on one node: GPU ordinals in rank order, and this instance's turn among its node's."""

    place: NodeId
    gpus: tuple[int, ...]
    slot: int

    @property
    def visible_devices(self) -> str:
        return ",".join(str(gpu) for gpu in self.gpus)


@dataclass(frozen=True, slots=True)
class EngineInstance:
    """One replica of a role; the first part holds rank 0 and answers requests."""

    role: Role
    replica: int
    parts: tuple[NodeRanks, ...]

    @property
    def title(self) -> str:
        return f"{self.role.name}/{self.replica}"

    def title_of(self, index: int) -> str:
        """The title, and where it runs on several nodes the turn of this one."""
        return self.title if len(self.parts) == 1 else f"{self.title}, node {index} of {len(self.parts)}"

    @property
    def head(self) -> NodeRanks:
        return self.parts[0]

    def refuse(self, what: str, hint: str) -> PlannerError:
        """An error about the role of this instance, to raise."""
        return refuse(f"role `{self.role.name}`: {what}", "roles", hint)


def read_instances(decision: Decision, cluster: Cluster, rank_order: tuple[str, ...]) -> list[EngineInstance]:
    """Every instance in the order of roles and replicas.

    `rank_order` names the axes of a block as the engine counts its ranks, outermost first; axes that it does not name
    keep their place. Raises PlannerError where a role is not placed whole, where two ranks share a GPU, or where an
    instance comes back to a node that it had left.
    """
    slots: dict[NodeId, int] = {}
    taken: dict[tuple[NodeId, int], str] = {}
    instances = []
    for role in decision.roles:
        ranks = _replicas(role, decision.placement, cluster, rank_order)
        for replica, positions in enumerate(ranks):
            if "memory_utilisation" not in role.limits:  # engines with a part of a device's memory share it
                _claim(positions, f"{role.name}/{replica}", taken)
            parts = tuple(_parts(role, positions, slots))
            instances.append(EngineInstance(role, replica, parts))
    return instances


def _claim(positions: list[tuple[NodeId, int]], title: str, taken: dict[tuple[NodeId, int], str]) -> None:
    for position in positions:
        if position in taken:
            place, gpu = position
            raise PlannerError(
                f"GPU {gpu} of node {place.node} belongs to {taken[position]} and to {title}",
                where="decision.placement",
                hint="check the plan with `planner check`",
            )
        taken[position] = title


def _replicas(
    role: Role, placement: tuple[Block, ...], cluster: Cluster, rank_order: tuple[str, ...]
) -> list[list[tuple[NodeId, int]]]:
    """The GPUs of each replica, in rank order."""
    ranks = [rank for block in placement if block.role == role.name for rank in _ranks(block, cluster)]
    size = role.parallelism.devices
    if len(ranks) != role.replicas * size:
        raise PlannerError(
            f"role `{role.name}` has {len(ranks)} placed ranks, its {role.replicas} replicas of {size} need "
            f"{role.replicas * size}",
            where="decision.placement",
            hint="check the plan with `planner check`",
        )
    replicas = [ranks[start : start + size] for start in range(0, len(ranks), size)]
    for replica in replicas:
        replica.sort(key=lambda rank: tuple(rank[0].get(axis, 0) for axis in rank_order))
    return [[position for _, position in replica] for replica in replicas]


def _ranks(block: Block, cluster: Cluster) -> Iterator[tuple[dict[str, int], tuple[NodeId, int]]]:
    """(index by axis, GPU) of every rank of a block, the first axis outermost, replicas before everything else.

    Axes of one name count on as one: the earlier is the outer part.
    """
    pool = cluster.pool(block.pool)
    axes, device_of = sorted(block.axes, key=lambda axis: axis.name != "replica"), stepper(block)
    for steps in product(*(range(axis.size) for axis in axes)):
        device, index = block.first_device, dict[str, int]()
        for axis, step in zip(axes, steps, strict=True):
            device += step * axis.stride
            index[axis.name] = index.get(axis.name, 0) * axis.size + step
        yield index, cluster.place(pool, device_of(device))


def _parts(role: Role, positions: list[tuple[NodeId, int]], slots: dict[NodeId, int]) -> Iterator[NodeRanks]:
    seen: set[NodeId] = set()
    for place, group in groupby(positions, key=lambda position: position[0]):
        if place in seen:
            raise PlannerError(
                f"an instance of role `{role.name}` returns to node {place.node} after ranks elsewhere",
                where="decision.placement",
                hint="place consecutive ranks on one node",
            )
        seen.add(place)
        slot = slots[place] = slots.get(place, -1) + 1
        yield NodeRanks(place, tuple(gpu for _, gpu in group), slot)

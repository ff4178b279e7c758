"""Nodes of a plan as launch scripts number them: node rank, address, and GPUs of each."""

from dataclasses import dataclass

from pydantic import ValidationError

from planner.emit.shell import Word, argument, word
from planner.errors import PlannerError
from planner.plan.schema import Envelope
from planner.problem.resolve import gpus_per_node
from planner.problem.schema import PoolSpec, Problem
from planner.schema.base import planner_error


@dataclass(frozen=True, slots=True, order=True)
class NodeId:
    """One node of the cluster: its pool's index in the problem, and its own index in the pool."""

    pool: int
    node: int


@dataclass(frozen=True, slots=True)
class Node:
    """One node of the plan; scripts call its address by `variable`."""

    number: str  # "00", counted over the nodes of the plan
    title: str
    default: Word  # address when the environment gives none

    @property
    def variable(self) -> str:
        return f"NODE_{self.number}"


@dataclass(frozen=True, slots=True)
class Cluster:
    """The pools of the problem that the plan was made for."""

    problem: Problem
    gpus_per_node: tuple[int, ...]  # by pool

    def pool(self, name: str) -> int:
        """The index of the pool called `name`: by its own name, else by that of its GPU."""
        pools = self.problem.cluster.pools
        for names in ([pool.name or pool.gpu for pool in pools], [_accelerator(pool) for pool in pools]):
            if name in names:
                return names.index(name)
        if not pools:
            raise PlannerError("is no valid problem", where="inputs", hint="restore what the plan was made for")
        known = ", ".join(f"`{pool.name or pool.gpu}`" for pool in pools)
        raise PlannerError(f"no pool is called `{name}`", where="decision", hint=f"the pools are {known}")

    def place(self, pool: int, device: int) -> tuple[NodeId, int]:
        """The node of a device that counts through its pool, and the device's ordinal on that node."""
        node, ordinal = divmod(device, self.gpus_per_node[pool])
        spec = self.problem.cluster.pools[pool]
        size = spec.nodes if spec.nodes is not None else (spec.gpus or 0) // self.gpus_per_node[pool]
        if node >= size:
            raise PlannerError(
                f"device {device} lies outside the {size} nodes of pool `{spec.name or spec.gpu}`",
                where="decision.placement",
                hint="check the plan with `planner check`",
            )
        return NodeId(pool, node), ordinal

    def nodes(self, places: set[NodeId]) -> dict[NodeId, Node]:
        """The places in order, numbered, each with the address that scripts use by default."""
        width = max(2, len(str(len(places) - 1)))
        ordered = sorted(places)
        return {place: self._node(place, f"{index:0{width}}", len(ordered)) for index, place in enumerate(ordered)}

    def _node(self, place: NodeId, number: str, num_nodes: int) -> Node:
        spec = self.problem.cluster.pools[place.pool]
        title = f'node {place.node} of pool "{spec.name or spec.gpu}"'
        if spec.node_names is not None and place.node < len(spec.node_names):
            name = spec.node_names[place.node]
            return Node(number, f'{title}, "{name}"', argument(name, what="node name"))
        return Node(number, title, word("127.0.0.1" if num_nodes == 1 else f"node-{number}"))


def read_cluster(envelope: Envelope) -> Cluster:
    """The cluster in the plan's own copy of its problem; raises PlannerError where that copy is no problem."""
    try:
        problem = Problem.model_validate(envelope.inputs)
    except ValidationError as error:
        raise planner_error(error, lambda path: ".".join(("inputs", *map(str, path)))) from None
    return Cluster(problem, tuple(gpus_per_node(pool) for pool in problem.cluster.pools))


def _accelerator(pool: PoolSpec) -> str:
    """The name that an unnamed pool takes from its accelerator."""
    if pool.name is not None:
        return pool.name
    from planner.hardware.library import find_node

    try:
        return find_node(pool.gpu).accelerator.name
    except PlannerError:
        return pool.gpu

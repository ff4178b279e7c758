"""GPUs of the roles of an RL plan as launchers are told them: equal parts of nodes, which lie beside each other.

verl asks Ray for each part on one node (`STRICT_PACK`), so that 14 GPUs as two parts of 7 leave no node with 2 for
others; NeMo-RL takes whole nodes, or shares of one node. slime, OpenRLHF and AReaL ask for GPUs one by one or engine by
engine, node after node.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from planner.emit.refusals import refuse
from planner.kinds.rl.names import stands_apart
from planner.plan.schema import Role
from planner.problem.resolve import gpus_per_node
from planner.problem.schema import Problem


@dataclass(frozen=True, slots=True)
class RoleNodes:
    """GPUs of a role as equal parts of equal nodes."""

    nodes: int
    gpus_per_node: int

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node


def node_gpus(problem: Problem, pool: str) -> int:
    """GPUs of a node of a pool."""
    return next((gpus_per_node(spec) for spec in problem.cluster.pools if spec.label == pool), 8)


def role_nodes(problem: Problem, roles: Iterable[Role], *, colocated: bool) -> dict[str, RoleNodes]:
    """Parts of each role that generates, trains or is served, as few as lie on nodes beside those of the others.

    Raises PlannerError where no parts do. O(widths ** roles) for the few roles of a pool.
    """
    by_pool: dict[str, list[Role]] = {}
    for role in roles:
        if role.function in ("rollout", "actor") or stands_apart(role):
            by_pool.setdefault(role.pool, []).append(role)
    parts: dict[str, RoleNodes] = {}
    for pool, members in by_pool.items():
        shared = [role for role in members if colocated and role.function == "rollout"]
        alone = [role for role in members if role not in shared]
        parts |= _beside(problem, pool, alone)
        parts |= {role.name: _widest(_splits(role, node_gpus(problem, pool)), role, pool, problem) for role in shared}
    return parts


def _beside(problem: Problem, pool: str, roles: Sequence[Role]) -> dict[str, RoleNodes]:
    """The roles of a pool on GPUs of their own."""
    node = node_gpus(problem, pool)
    splits = [_splits(role, node) for role in roles]
    for role, options in zip(roles, splits, strict=True):
        _widest(options, role, pool, problem)
    bins = max(_nodes_in_service(problem, pool), -(-sum(_gpus(role) for role in roles) // node))
    for chosen in sorted(product(*splits), key=lambda parts: sum(part.nodes for part in parts)):
        if _packs(chosen, bins, node):
            return {role.name: part for role, part in zip(roles, chosen, strict=True)}
    taken = ", ".join(f"`{role.name}` {_gpus(role)}" for role in roles)
    what = f"GPUs of {taken} are no equal parts that lie beside each other on nodes of {node}"
    raise refuse(what, "roles", "solve with `whole_nodes: true`")


def _widest(options: Sequence[RoleNodes], role: Role, pool: str, problem: Problem) -> RoleNodes:
    if not options:
        hint = f"solve with `whole_nodes: true`, or use a multiple of {node_gpus(problem, pool)} GPUs"
        raise refuse(f"{_gpus(role)} GPUs are no equal parts of nodes", f"roles.{role.name}", hint)
    return options[0]


def _gpus(role: Role) -> int:
    return role.replicas * role.parallelism.devices


def _splits(role: Role, node: int) -> list[RoleNodes]:
    """Equal parts that hold whole tensor-parallel groups, widest first; replicas lie in one, or fill theirs."""
    gpus, group = _gpus(role), min(role.parallelism.tp, node)
    widths = [width for width in range(node, 0, -1) if gpus % width == 0 and width % group == 0]
    if role.function not in ("actor", "critic"):
        replica = role.parallelism.devices
        widths = [width for width in widths if width % replica == 0 or replica % width == 0]
    return [RoleNodes(gpus // width, width) for width in widths]


def _packs(parts: Iterable[RoleNodes], bins: int, node: int) -> bool:
    """Whether all parts lie on nodes, each within one: the widest first, where it fits first."""
    left = [node] * bins
    for part in sorted(parts, key=lambda part: -part.gpus_per_node):
        for _ in range(part.nodes):
            place = next((place for place, room in enumerate(left) if room >= part.gpus_per_node), None)
            if place is None:
                return False
            left[place] -= part.gpus_per_node
    return True


def _nodes_in_service(problem: Problem, pool: str) -> int:
    spec = next((spec for spec in problem.cluster.pools if spec.label == pool), None)
    if spec is None:
        return 0
    nodes = spec.nodes if spec.nodes is not None else (spec.gpus or 0) // gpus_per_node(spec)
    return nodes - len({spec.node_names[each] if spec.node_names and isinstance(each, int) else each
                        for each in spec.out_of_service})  # fmt: skip

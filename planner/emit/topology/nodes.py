"""The nodes of a plan in rank order, with the racks and scale-up domains of all nodes of their pool."""

from collections import Counter
from dataclasses import dataclass
from math import gcd

from planner.emit.nodes import read_cluster
from planner.errors import PlannerError
from planner.plan.placement import role_devices
from planner.plan.schema import Decision, Envelope
from planner.reliability.lost_nodes import pools_of
from planner.reliability.rack_nodes import nodes_on_racks


@dataclass(frozen=True, slots=True)
class PlacedNodes:
    """Nodes of the one pool that a plan stands on."""

    names: tuple[str, ...]  # of every node of the pool
    rack_of_node: tuple[int, ...]
    domain_of_node: tuple[int, ...]  # of the scale-up links
    in_service: tuple[int, ...]
    ranks: tuple[int, ...]  # the node of every device in use, in the order of the ranks of its roles
    instances: tuple[frozenset[int], ...]  # the nodes of every replica of its roles

    @property
    def used(self) -> tuple[int, ...]:
        """Nodes in the order of their first ranks."""
        return tuple(dict.fromkeys(self.ranks))

    @property
    def racks(self) -> dict[int, list[int]]:
        """Nodes in service of every rack, those that have any."""
        racks: dict[int, list[int]] = {}
        for node in self.in_service:
            racks.setdefault(self.rack_of_node[node], []).append(node)
        return racks

    @property
    def segment(self) -> int:
        """Nodes that stand together at least: what divides the plan's share of every rack."""
        return gcd(*Counter(self.rack_of_node[node] for node in self.used).values())


def placed_nodes(envelope: Envelope, decision: Decision) -> PlacedNodes:
    """Raises PlannerError for plans on several pools, for nodes without names, and for racks that lack nodes."""
    pools, cluster = pools_of(envelope), read_cluster(envelope)
    on = {block.pool for block in decision.placement}
    if len(on) != 1:
        what = f"the plan stands on {len(on)} pools"
        raise PlannerError(what, where="decision.placement", hint="give a plan on one pool")
    (name,) = on
    index = cluster.pool(name)
    pool, spec = list(pools.values())[index], cluster.problem.cluster.pools[index]
    if spec.node_names is None:
        where = f"inputs.cluster.pools.{index}"
        hint = "name them in `node_names`, and solve again"
        raise PlannerError(f"the nodes of pool `{name}` have no names", where=where, hint=hint)
    size = pool.node.num_gpus
    devices_of = [[d for _, d in role_devices(decision.placement, role.name)] for role in decision.roles]
    devices = dict.fromkeys(device for own in devices_of for device in own)
    stands = tuple(node for node in nodes_on_racks(decision, pool) for _ in range(size))
    nodes_of = [stands] if stands else [[device // size for device in own] for own in devices_of]
    return PlacedNodes(
        spec.node_names,
        tuple(pool.rack_of_node.tolist()),
        tuple(pool.domain_of_node.tolist()),
        pool.healthy_nodes,
        stands or tuple(device // size for device in devices),
        tuple(
            frozenset(nodes[first : first + len(nodes) // role.replicas])
            for role, nodes in zip(decision.roles, nodes_of, strict=True)
            for first in range(0, len(nodes), max(len(nodes) // role.replicas, 1))
        ),
    )

"""Group-limited routing: which nodes may hold the experts of each routing group, so that tokens visit few nodes.

A router that picks groups before experts sends a token to the nodes of its groups alone. With one node a group, nodes
are as uneven as the groups; every further node that a group may use lets copies even them out. Shape suffixes: E
expert, R rank, G group, N node.
"""

import numpy as np

from planner.arrays import Bools, Floats
from planner.errors import PlannerError
from planner.experts.ranks import Ranks


def confine(load_E: Floats, ranks: Ranks, groups: int, nodes_per_group: int) -> Bools:
    """[E, R] whether a rank may hold an expert, with each group on `nodes_per_group` nodes, chosen for these loads.

    Homes: groups by falling load, each to the node with least load that has room for its experts. Further nodes: the
    group that adds most to the node with most load may also use the node with least, and so on in turn. Raises
    PlannerError where groups do not divide the experts, or do not fit on the nodes.
    """
    experts = len(load_E)
    if groups < 1 or experts % groups:
        raise PlannerError(
            f"{groups} groups do not divide {experts} experts",
            where="groups",
            hint="give the routing groups of the model",
        )
    if not 1 <= nodes_per_group <= ranks.num_nodes:
        raise PlannerError(
            f"{nodes_per_group} nodes for each group, there are {ranks.num_nodes}",
            where="nodes per group",
            hint=f"give 1 to {ranks.num_nodes}",
        )
    size = experts // groups
    load_G = load_E.reshape(groups, size).sum(axis=1)
    allowed_GN = _homes(load_G, size, ranks)
    speed_N: Floats = np.bincount(ranks.node_R, weights=ranks.speed_R).astype(np.float64)
    for _ in range(groups * (nodes_per_group - 1)):
        _widen(load_G, allowed_GN, speed_N, nodes_per_group)
    allowed: Bools = allowed_GN[np.arange(experts) // size][:, ranks.node_R]
    return allowed


def _homes(load_G: Floats, size: int, ranks: Ranks) -> Bools:
    """[G, N] one node for each group."""
    room_N = ranks.slots_N.copy()
    speed_N = np.bincount(ranks.node_R, weights=ranks.speed_R)
    load_N = np.zeros(ranks.num_nodes)
    allowed_GN = np.zeros((len(load_G), ranks.num_nodes), np.bool_)
    for group in np.argsort(-load_G, kind="stable"):
        able = room_N >= size
        if not able.any():
            raise PlannerError(
                f"no node has {size} slots left for group {group}",
                where="groups",
                hint="use fewer nodes with more slots, or do not confine groups",
            )
        node = int(np.argmin(np.where(able, (load_N + load_G[group]) / speed_N, np.inf)))
        allowed_GN[group, node] = True
        room_N[node] -= size
        load_N[node] += load_G[group]
    return allowed_GN


def _widen(load_G: Floats, allowed_GN: Bools, speed_N: Floats, most: int) -> None:
    """One more node for one group: from the busiest node that has a group to widen, to the idlest it may not use yet.

    The load of a group counts in equal parts on its nodes.
    """
    time_N = (allowed_GN / allowed_GN.sum(axis=1, keepdims=True) * load_G[:, None]).sum(axis=0) / speed_N
    for busy in np.argsort(-time_N, kind="stable"):
        open_G = np.nonzero(allowed_GN[:, busy] & (allowed_GN.sum(axis=1) < most))[0]
        if len(open_G) == 0:
            continue
        group = int(open_G[np.argmax(load_G[open_G])])
        idle = np.where(allowed_GN[group], np.inf, time_N)
        allowed_GN[group, int(np.argmin(idle))] = True
        return

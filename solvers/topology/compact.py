"""One group of N equal nodes on racks, all of which exchange with all, so that the busiest uplink sends least.

Sets        b in B racks
Parameters  f_b free nodes;  N nodes of the group
Variables   n_b nodes of the group on rack b
Objective   min max_b n_b (N - n_b)          what leaves a rack, in shares of what a node sends to another
(C1) sum_b n_b = N
(C2) n_b <= f_b                              for every rack
Method      n (N - n) rises to N / 2 and falls again, so under a value at most one rack holds more than half, and all
            others at most l, the largest count up to N / 2 within the value. The least value of 0 and of all l (N - l)
            at which the racks hold N is the optimum; a value l (N - l) allows one rack N - l or more.
"""

from collections.abc import Sequence

from planner.errors import PlannerError


def compact(free_B: Sequence[int], nodes: int) -> tuple[int, ...]:
    """Nodes of the group on every rack, exactly; few racks where several choices send as little.

    Raises PlannerError where the racks have too few free nodes.
    """
    if not 0 < nodes <= sum(free_B):
        what = f"{nodes} nodes of a group, and {sum(free_B)} are free"
        raise PlannerError(what, where="racks", hint="give a group of 1 node or more, or free more nodes")
    by_size = sorted(range(len(free_B)), key=lambda b: (-free_B[b], b))
    for least in range(nodes // 2 + 1):  # the values 0, N - 1, 2 (N - 2), ...
        for first in (True, False):
            count_B = _filled(free_B, by_size, nodes, least, first=first)
            if count_B is not None:
                return count_B
    raise AssertionError("with half of the group on a rack all choices are allowed")


def busiest(count_B: Sequence[int]) -> int:
    """What leaves the rack that most leaves, in shares of what a node sends to another."""
    nodes = sum(count_B)
    return max(count * (nodes - count) for count in count_B)


def _filled(
    free_B: Sequence[int], by_size: Sequence[int], nodes: int, most: int, *, first: bool
) -> tuple[int, ...] | None:
    """At most so many on every rack, but for the largest where it holds all the rest; None where they lack room."""
    count_B, left = [0] * len(free_B), nodes
    if first:
        count_B[by_size[0]] = min(free_B[by_size[0]], nodes)
        left -= count_B[by_size[0]]
        if nodes - count_B[by_size[0]] > most:
            return None
    for b in by_size[first:]:
        count_B[b] = min(free_B[b], most, left)
        left -= count_B[b]
    return None if left else tuple(count_B)

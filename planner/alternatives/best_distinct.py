"""The best few solutions that are told apart by the parts they use, from a solver of the problem without some parts.

Solutions are sets of parts with a value. The k-th best is the best of all that lack a part of each of the k - 1 before
it. Nodes are sets of excluded parts; the best solution of a node bounds all of it. A node whose best solution holds all
parts of a listed one is split into one node for each of these, which excludes it: what lacks one of them lies in one of
the nodes (Lawler, Management Science 18, 1972; by exclusion alone, as parts come in any number).

Where every solution has one value on each axis, and the parts are these values, two solutions are told apart where they
differ on any axis.
"""

import heapq
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from itertools import count
from typing import Generic, TypeVar

P = TypeVar("P", bound=Hashable)
S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Ranked(Generic[P, S]):
    """A solution, the less its value the better, the parts that it uses, and those that were excluded to come by it."""

    value: float
    parts: frozenset[P]
    solution: S
    without: frozenset[P]


def best_distinct(
    solve: Callable[[frozenset[P]], tuple[float, frozenset[P], S] | None], most: int
) -> list[Ranked[P, S]]:
    """At most so many solutions, the best first; fewer where no more are told apart.

    `solve` gives the best solution without some parts, None where there is none. Of equal values the one of fewer parts
    comes first.
    """
    listed: list[Ranked[P, S]] = []
    order = count()
    waiting: list[tuple[float, int, int, Ranked[P, S]]] = []
    seen: set[frozenset[P]] = set()

    def put(without: frozenset[P]) -> None:
        if without in seen:
            return
        seen.add(without)
        answer = solve(without)
        if answer is not None:
            value, parts, solution = answer
            heapq.heappush(waiting, (value, len(parts), next(order), Ranked(value, parts, solution, without)))

    put(frozenset())
    while waiting and len(listed) < most:
        node = heapq.heappop(waiting)[3]
        covered = min((other.parts for other in listed if other.parts <= node.parts), key=len, default=None)
        if covered is None:
            listed.append(node)
            covered = node.parts
        if len(listed) < most:
            for part in sorted(covered, key=repr):
                put(node.without | {part})
    return listed

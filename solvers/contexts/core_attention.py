"""Ranges of queries whose core attention runs on other servers: busy ones relieved with the fewest bytes.

Source: DistCA, core attention disaggregation (arXiv:2510.18121); its own rule pairs chunks of heads and tails.
Sets        s in servers, d in documents, each at home on one server
Parameters  S_d tokens, Q bytes sent of a query, V bytes of a key and value;  C operations of a server at most, a
            tolerance above the mean;  range [a, b) has b (b + 1) / 2 - a (a + 1) / 2 operations
Variables   ranges [a, b) of documents and the server that each runs on; what is in none stays at home
Minimise    sum of Q (b - a) over ranges + V times the largest b of each document on each other server
(C1) operations of a server <= C
(C2) ranges of a document do not overlap; they begin and end on blocks, or at the end of the document
Bound       h operations on a server that is not their home, in whatever ranges, cost g(h) = 2 sqrt((Q + V / 2) V h)
            - V / 2 at least: width u and end h / u + (u - 1) / 2 at the best u. g is concave, and passing on what was
            received never helps, so that the servers with most room, filled one after the other with all that is
            above C, cost least.
Method      fills: of all pairs of a server above C and one below, the range with least bytes over a power of its
            operations, at the end where it is cheapest; then ranges of one or two servers taken back and filled anew.
"""

import math
import time
from dataclasses import dataclass

import numpy as np

from planner.errors import PlannerError
from planner.solvers.result import SolveResult, Status

WHERE, SOLVER = "core attention", "fills and repairs"
LOOKED_AT = 8  # longest documents of a server
MOST_REPAIRS, LEAST_REPAIRS, WORK = 3_000, 20, 4_000_000


@dataclass(frozen=True, slots=True)
class CoreAttention:
    """Documents by home server; `most_over_mean` is C over the mean."""

    tokens: tuple[tuple[int, ...], ...]
    query_bytes: float
    kv_bytes: float
    most_over_mean: float
    block: int = 1

    def __post_init__(self) -> None:
        if not self.tokens or min((min(row, default=1) for row in self.tokens), default=1) < 1:
            raise PlannerError("no servers, or a document without tokens", where=WHERE, hint="give 1 token or more")
        if self.block < 1 or min(self.query_bytes, self.kv_bytes) < 0:
            raise PlannerError("a block or bytes below 1 and 0", where=WHERE, hint="give a block of 1 token or more")
        if self.most_over_mean < 1.0:
            raise PlannerError(
                f"no server may have {self.most_over_mean:g} times the mean", where=WHERE, hint="give 1 or more"
            )

    @property
    def loads(self) -> list[int]:
        """Operations of each server before anything moves."""
        return [sum(operations(0, tokens) for tokens in row) for row in self.tokens]

    @property
    def capacity(self) -> int:
        """C, in whole operations."""
        return math.floor(sum(self.loads) * self.most_over_mean / len(self.tokens) * (1.0 + 1e-13))


@dataclass(frozen=True, slots=True, order=True)
class Moved:
    """A range of queries of a document, which is counted on its home server, and where it runs."""

    home: int
    document: int
    first: int
    last: int
    server: int


def operations(first: int, last: int) -> int:
    """Of queries [first, last): query q attends to q + 1 tokens."""
    return last * (last + 1) // 2 - first * (first + 1) // 2


def move_ranges(problem: CoreAttention, *, seed: int = 0) -> SolveResult[tuple[Moved, ...]]:
    """Ranges that relieve every server, with the bound; UNKNOWN where no fill was complete."""
    started = time.perf_counter()
    if max(problem.loads) <= problem.capacity:
        return SolveResult(Status.OPTIMAL, "finished", (), 0.0, 0.0, time.perf_counter() - started, SOLVER)
    bound = bound_bytes(problem)
    moved = _searched(problem, seed)
    spent_s = time.perf_counter() - started
    if moved is None:
        return SolveResult(Status.UNKNOWN, "finished", None, None, bound, spent_s, SOLVER)
    sent = sent_bytes(problem, moved)
    status = Status.OPTIMAL if sent <= bound * (1.0 + 1e-9) else Status.FEASIBLE
    return SolveResult(status, "finished", moved, sent, min(bound, sent), spent_s, SOLVER)


def sent_bytes(problem: CoreAttention, moved: tuple[Moved, ...]) -> float:
    """Bytes of ranges."""
    last_of: dict[tuple[int, int, int], int] = {}
    for each in moved:
        key = each.home, each.document, each.server
        last_of[key] = max(last_of.get(key, 0), each.last)
    queries = sum(each.last - each.first for each in moved)
    return problem.query_bytes * queries + problem.kv_bytes * sum(last_of.values())


def loads_after(problem: CoreAttention, moved: tuple[Moved, ...]) -> list[int]:
    """Operations of each server once ranges have moved."""
    loads = problem.loads
    for each in moved:
        loads[each.home] -= operations(each.first, each.last)
        loads[each.server] += operations(each.first, each.last)
    return loads


def bound_bytes(problem: CoreAttention) -> float:
    """Bytes that no ranges are below."""
    capacity, loads = problem.capacity, problem.loads
    left = sum(max(0, load - capacity) for load in loads)
    rooms = sorted((capacity - load for load in loads if load < capacity), reverse=True)
    least = 0.0
    for room in rooms:
        taken = min(room, left)
        left -= taken
        if taken > 0:
            least += _least_bytes(problem, taken)
    return least


def _least_bytes(problem: CoreAttention, amount: int) -> float:
    """g of so many operations."""
    query, kv = problem.query_bytes, problem.kv_bytes
    return max(0.0, 2.0 * math.sqrt((query + kv / 2.0) * kv * amount) - kv / 2.0)


def _searched(problem: CoreAttention, seed: int) -> tuple[Moved, ...] | None:
    from planner.solvers.compiled.samples.ranges import search

    rows = list[tuple[int, int, int]]()
    start, end = list[int](), list[int]()
    for server, row in enumerate(problem.tokens):
        start.append(len(rows))
        rows += [(server, tokens, document) for document, tokens in _longest_first(row)]
        end.append(len(rows))
    load_S = np.array(problem.loads, np.int64)
    busy = int((load_S > problem.capacity).sum())
    unit = busy * (len(load_S) - busy) * (len(load_S) // 2 + 4)
    repairs = max(LEAST_REPAIRS, min(MOST_REPAIRS, WORK // max(unit, 1)))
    rounds = 1 if repairs < 100 else 10
    best_N4 = np.zeros((20 * len(load_S) + 50, 4), np.int64)
    table = np.array(rows, np.int64).reshape(-1, 3)
    for looked in (LOOKED_AT, len(rows)):
        settings = problem.block, problem.query_bytes, problem.kv_bytes, looked
        sent, number = search(
            *(load_S, problem.capacity, np.ascontiguousarray(table[:, :2]), np.array(start), np.array(end)),
            *(settings, rounds, repairs // rounds, seed, best_N4),
        )
        if math.isfinite(sent):
            return tuple(
                sorted(
                    Moved(int(table[d, 0]), int(table[d, 2]), int(first), int(last), int(server))
                    for d, first, last, server in best_N4[:number]
                )
            )
    return None


def _longest_first(row: tuple[int, ...]) -> list[tuple[int, int]]:
    return sorted(enumerate(row), key=lambda item: -item[1])

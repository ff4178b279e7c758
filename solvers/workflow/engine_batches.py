"""Primitives of queries in batches on engines: the least mean latency.

Source      Tan et al., "Teola: Towards End-to-End Optimization of LLM-based Applications", ASPLOS 2025, section 5:
            nodes of a graph of primitives, batched on engines by depth; there is no optimiser there
Sets        q in Q queries, each a copy of the graph;  n in N nodes with parents P_n and type k(n);  e in E engines
Parameters  r_q [s] release;  a_k + b_k m [s] a batch of m nodes of type k on engine e(k), m <= M_k
Variables   B batches of nodes of one type;  s_qn [s] start, f_qn [s] end of the batch of (q, n)
Minimise    1/|Q| sum_q (max_n f_qn - r_q)
(C1) s_qn >= r_q;  s_qn >= f_qm for m in P_n
(C2) batches of an engine do not overlap
(C3) |B| <= M_k
(C4) s_qn <= s_q'n where r_q <= r_q'

(C4) loses nothing: give each node's k-th start to the query released k-th. Batches of a node end in the order in which
they start, and an order statistic of one row is no less than that of a row which is nowhere larger, so that (C1) holds
still, and the k-th smallest of the last ends is no larger than before. With it, members of a batch that are of one node
are neighbours in the order of release.

Bound       under (C4) queries i to j, in the order of release, are all done when j is. The nodes of some types on one
            engine of these h = j - i + 1 queries take at least W(h) = sum_k b_k h c_k + a_k ceil(h c_k / M_k), with
            c_k nodes of type k in the graph; they begin after r_i and the shortest way to one of them, and leave the
            shortest way on.
"""

import heapq
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from planner.errors import PlannerError
from planner.solvers.result import SolveResult, Status

if TYPE_CHECKING:
    from planner.solvers.backends.cpsat_batches import BatchRows

WHERE = "primitives"
TOLERANCE = 1e-9
FEW_TYPES = 5  # of an engine, all sets of which take part in the bound


@dataclass(frozen=True, slots=True)
class PrimitiveType:
    """What a batch takes on which engine: setup_s + each_s * members, at most `most_members` of them."""

    engine: int
    setup_s: float
    each_s: float
    most_members: int

    def batch_s(self, members: int) -> float:
        return self.setup_s + self.each_s * members


@dataclass(frozen=True, slots=True)
class Primitive:
    """A node of the graph: its type, and the nodes that it waits for."""

    type: int
    parents: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EngineBatches:
    """The problem; nodes in topological order. Raises PlannerError for what cannot be."""

    nodes: tuple[Primitive, ...]
    types: tuple[PrimitiveType, ...]
    release_s_Q: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.nodes or not self.release_s_Q:
            raise PlannerError("there is no primitive or no query", where=WHERE, hint="give at least one of each")
        for number, node in enumerate(self.nodes):
            if any(not 0 <= parent < number for parent in node.parents):
                what = f"node {number} waits for {', '.join(map(str, node.parents))}"
                raise PlannerError(what, where=WHERE, hint="order the nodes so that each waits for earlier ones alone")
            if not 0 <= node.type < len(self.types):
                raise PlannerError(f"node {number} is of type {node.type}, which is not given", where=WHERE)
        for number, kind in enumerate(self.types):
            if kind.most_members < 1 or kind.each_s < 0 or kind.setup_s < 0 or kind.batch_s(1) <= 0:
                what = f"batches of type {number} hold {kind.most_members} and take {kind.batch_s(1):g} s for one"
                raise PlannerError(what, where=WHERE, hint="give a size of at least 1 and times above 0")

    @property
    def by_release(self) -> tuple[int, ...]:
        """Queries in the order of release."""
        return tuple(sorted(range(len(self.release_s_Q)), key=lambda query: self.release_s_Q[query]))


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of one type: when it starts, and its members as (query, node)."""

    type: int
    start_s: float
    members: tuple[tuple[int, int], ...]


def mean_latency_s(problem: EngineBatches, batches: Sequence[Batch]) -> float:
    """Over the queries, from release to the last end; raises PlannerError where a node runs not once."""
    last_s = [-math.inf] * len(problem.release_s_Q)
    seen: set[tuple[int, int]] = set()
    for batch in batches:
        end_s = batch.start_s + problem.types[batch.type].batch_s(len(batch.members))
        for query, node in batch.members:
            if (query, node) in seen:
                raise PlannerError(f"node {node} of query {query} runs twice", where=WHERE)
            seen.add((query, node))
            last_s[query] = max(last_s[query], end_s)
    if len(seen) != len(problem.nodes) * len(last_s):
        raise PlannerError("a node of a query does not run", where=WHERE)
    return sum(last - first for last, first in zip(last_s, problem.release_s_Q, strict=True)) / len(last_s)


def alone_s(problem: EngineBatches) -> float:
    """The latency of a query that has every engine to itself: the critical path, which no latency is below."""
    ends: list[float] = []
    for node in problem.nodes:
        ends.append(max((ends[p] for p in node.parents), default=0.0) + problem.types[node.type].batch_s(1))
    return max(ends)


def ends_at_least_s(problem: EngineBatches) -> tuple[float, ...]:
    """What the j-th last end is not below, queries in the order of release (see Bound, above)."""
    release_s = [problem.release_s_Q[query] for query in problem.by_release]
    least_s = [release + alone_s(problem) for release in release_s]
    left_s, before_s = _way_left_s(problem), _way_before_s(problem)
    for kinds in _type_sets(problem):
        nodes = [n for n, node in enumerate(problem.nodes) if node.type in kinds]
        head_s = min(before_s[n] for n in nodes)
        tail_s = min(left_s[n] - problem.types[problem.nodes[n].type].batch_s(1) for n in nodes)
        work_s = [_work_s(problem, kinds, count) for count in range(1, len(release_s) + 1)]
        for j in range(len(release_s)):
            begun = max(release_s[i] + work_s[j - i] for i in range(j + 1))
            least_s[j] = max(least_s[j], begun + head_s + tail_s)
    return tuple(least_s)


def _type_sets(problem: EngineBatches) -> list[tuple[int, ...]]:
    """Sets of types of one engine that are in the graph; all of them where there are few, else each alone and all."""
    used = {node.type for node in problem.nodes}
    sets: list[tuple[int, ...]] = []
    for engine in {problem.types[kind].engine for kind in used}:
        kinds = sorted(kind for kind in used if problem.types[kind].engine == engine)
        sizes = range(1, len(kinds) + 1) if len(kinds) <= FEW_TYPES else (1, len(kinds))
        sets.extend(chosen for size in sizes for chosen in combinations(kinds, size))
    return sets


def _work_s(problem: EngineBatches, kinds: Sequence[int], queries: int) -> float:
    """W of this many queries: all their nodes of these types, in batches as full as can be."""
    total_s = 0.0
    for kind in kinds:
        members = queries * sum(node.type == kind for node in problem.nodes)
        of = problem.types[kind]
        total_s += of.each_s * members + of.setup_s * math.ceil(members / of.most_members)
    return total_s


def by_depth(problem: EngineBatches) -> tuple[Batch, ...]:
    """Batches as engines make them that take, whenever they are free, all they can of the type nearest to its end.

    Teola's rule: what has the longest way left goes first, and of equals what was released first.
    """
    left_s = _way_left_s(problem)
    waits = {(q, n): len(node.parents) for q in problem.by_release for n, node in enumerate(problem.nodes)}
    ready: list[list[tuple[int, int]]] = [[] for _ in problem.types]
    events: list[tuple[float, int, int, tuple[tuple[int, int], ...]]] = [
        (release, 0, q, ()) for q, release in enumerate(problem.release_s_Q)
    ]
    heapq.heapify(events)
    free_s = [0.0] * (1 + max(kind.engine for kind in problem.types))
    batches: list[Batch] = []
    while events:
        now_s = events[0][0]
        while events and events[0][0] <= now_s:
            _, _, query, ended = heapq.heappop(events)
            _release(problem, waits, ready, ended or [(query, -1)])
        for engine in range(len(free_s)):
            if free_s[engine] > now_s:
                continue
            batch = _next_batch(problem, ready, left_s, engine, now_s)
            if batch is not None:
                batches.append(batch)
                free_s[engine] = now_s + problem.types[batch.type].batch_s(len(batch.members))
                heapq.heappush(events, (free_s[engine], 1, len(batches), batch.members))
    return tuple(batches)


def _release(
    problem: EngineBatches,
    waits: dict[tuple[int, int], int],
    ready: list[list[tuple[int, int]]],
    ended: Sequence[tuple[int, int]],
) -> None:
    """What may run once these have ended; node -1 is the arrival of a query."""
    for query, parent in ended:
        for number, node in enumerate(problem.nodes):
            if parent in node.parents:
                waits[query, number] -= 1
            if (parent in node.parents or (parent == -1 and not node.parents)) and not waits[query, number]:
                ready[node.type].append((query, number))


def _next_batch(
    problem: EngineBatches, ready: list[list[tuple[int, int]]], left_s: Sequence[float], engine: int, now_s: float
) -> Batch | None:
    waiting = [k for k, kind in enumerate(problem.types) if kind.engine == engine and ready[k]]
    if not waiting:
        return None

    def first(member: tuple[int, int]) -> tuple[float, float, int]:
        query, node = member
        return problem.release_s_Q[query], -left_s[node], query

    chosen = min(waiting, key=lambda k: min(first(member) for member in ready[k]))
    members = sorted(ready[chosen], key=first)[: problem.types[chosen].most_members]
    ready[chosen] = [member for member in ready[chosen] if member not in members]
    return Batch(chosen, now_s, tuple(members))


def _way_left_s(problem: EngineBatches) -> list[float]:
    """The longest way from the start of each node to the end of its query, engines free."""
    left_s = [0.0] * len(problem.nodes)
    for number in range(len(problem.nodes) - 1, -1, -1):
        after = [left_s[c] for c, node in enumerate(problem.nodes) if number in node.parents]
        left_s[number] = problem.types[problem.nodes[number].type].batch_s(1) + max(after, default=0.0)
    return left_s


def _way_before_s(problem: EngineBatches) -> list[float]:
    """The longest way from release to the start of each node, engines free."""
    before_s: list[float] = []
    for node in problem.nodes:
        ways = [before_s[p] + problem.types[problem.nodes[p].type].batch_s(1) for p in node.parents]
        before_s.append(max(ways, default=0.0))
    return before_s


def least_mean_latency(
    problem: EngineBatches, *, time_limit_s: float = 60.0, seed: int = 0
) -> SolveResult[tuple[Batch, ...]]:
    """The batches of least mean latency [s], with what is proven; `by_depth` where CP-SAT has nothing better."""
    from planner.solvers.backends.cpsat_batches import StartedBatch, improve

    started_s = time.perf_counter()
    start = by_depth(problem)
    rank = {query: place for place, query in enumerate(problem.by_release)}
    value_s = mean_latency_s(problem, start)
    least_s = (sum(ends_at_least_s(problem)) - sum(problem.release_s_Q)) / len(problem.release_s_Q)
    hint = [StartedBatch(b.type, b.start_s, tuple((rank[q], n) for q, n in b.members)) for b in start]
    sum_s = value_s * len(problem.release_s_Q)
    improved = improve(_rows(problem), hint, sum_s, time_limit_s=time_limit_s, seed=seed)
    best = start
    if improved.batches is not None:
        names = problem.by_release
        other = tuple(Batch(b.type, b.start_s, tuple((names[q], n) for q, n in b.members)) for b in improved.batches)
        best = min(start, other, key=lambda batches: mean_latency_s(problem, batches))
        value_s = mean_latency_s(problem, best)
    bound_s = min(value_s, max(least_s, improved.bound_s))
    proven = bound_s >= value_s * (1.0 - TOLERANCE)
    return SolveResult(
        Status.OPTIMAL if proven else Status.FEASIBLE,
        "finished" if proven else improved.stop_reason,
        best,
        value_s,
        bound_s,
        time.perf_counter() - started_s,
        improved.solver,
    )


def _rows(problem: EngineBatches) -> "BatchRows":
    from planner.solvers.backends.cpsat_batches import BatchRows

    return BatchRows(
        tuple(node.parents for node in problem.nodes),
        tuple(node.type for node in problem.nodes),
        tuple(kind.engine for kind in problem.types),
        tuple(kind.setup_s for kind in problem.types),
        tuple(kind.each_s for kind in problem.types),
        tuple(kind.most_members for kind in problem.types),
        tuple(problem.release_s_Q[query] for query in problem.by_release),
        ends_at_least_s(problem),
        alone_s(problem),
    )

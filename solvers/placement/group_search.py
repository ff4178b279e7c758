"""Groups and their models by simulation: partitions of the devices are filled greedily, then models change places.

The most of the requests of given streams that are on time under the first-come rule (`shared_groups`):
(1), (2) partitions are filled (`group_fillings`);
(3) the best are climbed from: two models change places, a model takes the place of another, one more comes where
    there is room, or, where engines batch, one leaves. A step is taken if no more requests are late, or few more at
    first (simulated annealing), and all steps see the same requests. Partitions are halved as their climbs go on
    (successive halving).
Where all placements there are take no longer to simulate than the climbs, they are simulated in place of (3).
Where shares of models are asked for (C6), late requests beyond those that a model may have count before all others.
Streams are cut to the spans in which requests were late under one of several fillings: elsewhere nothing is decided.
(3) goes beyond AlpaServe (OSDI 2023).
"""

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats, Ints
from planner.solvers.placement.all_groups import placements
from planner.solvers.placement.group_climb import Climb
from planner.solvers.placement.group_fillings import MARGIN, MOST, Fillings, asked, fillings
from planner.solvers.placement.group_streams import Group, Stream
from planner.solvers.placement.shared_groups import SharedGroups, late, late_counts, lost
from planner.solvers.result import SolveResult, Status

SOLVER = "greedy fill and annealed exchanges, by simulation"
FILLINGS = 3  # by whose late requests streams are cut
SPAN_BEFORE, SPAN_AFTER = 2.5, 0.2  # of the largest limit, kept around a late request
STANDARD_ERRORS = 2.0  # of paired differences, by which a climbed placement must be better than a filled one


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is simulated."""

    requests: int  # under all steps together
    seed: int = 0


def search(
    problem: SharedGroups,
    load_M: Floats,
    streams: Sequence[Stream],
    judged: Sequence[Stream],
    effort: Effort,
    allowed: Callable[[tuple[Group, ...]], bool] = lambda groups: True,
    filled: Fillings | None = None,
) -> SolveResult[tuple[Group, ...]]:
    """The best groups that were simulated, chosen on `streams` of models with the mean loads `load_M`.

    Which climb was best is told on `judged`, as is the objective, their mean share of requests on time; the best
    filling stays where no climb is clearly better, or more models have the shares that are asked for. The fillings of
    these streams are taken as `filled` where they are known.
    The status is FEASIBLE: `group_bounds` says how much better any groups can be; without fillings it is theirs.
    Groups are asked whether they are `allowed` where they are to be chosen alone.
    """
    started_s = time.perf_counter()
    filled = filled or fillings(problem, load_M, streams, allowed)
    if not filled.groups:
        return SolveResult(filled.status, "finished", None, None, None, time.perf_counter() - started_s, SOLVER)
    finalists, start = _few(problem, filled.groups[0], streams, effort), None
    if not finalists:
        finalists, start = _climbed(problem, filled, streams, effort), filled.groups[0]
    able = [groups for groups in dict.fromkeys(finalists) if allowed(groups)] or [filled.groups[0]]
    chosen, objective = _best(problem, able, start or able[0], judged)
    return SolveResult(Status.FEASIBLE, "finished", chosen, objective, None, time.perf_counter() - started_s, SOLVER)


def _few(
    problem: SharedGroups, filling: tuple[Group, ...], streams: Sequence[Stream], effort: Effort
) -> list[tuple[Group, ...]]:
    """The best of all placements there are, where to simulate them takes no more than the climbs; else none.

    Of equals the filling comes first.
    """
    most = effort.requests // max(sum(len(stream) for stream in streams), 1)
    every = placements(problem, most)
    if every is None:
        return []
    every.insert(0, filling)
    late_M = {groups: late_counts(problem, groups, streams).sum(axis=0) for groups in every}
    return sorted(every, key=lambda groups: _rank(problem, late_M[groups], streams))[:MOST]


def _climbed(
    problem: SharedGroups,
    filled: Fillings,
    streams: Sequence[Stream],
    effort: Effort,
) -> list[tuple[Group, ...]]:
    """The best of climbs from fillings, after every round."""
    allowance = asked(problem, streams, MARGIN)
    cut = [_cut(problem, filled.groups[:FILLINGS], stream) for stream in streams]
    whole = all(len(kept) == len(stream) for kept, stream in zip(cut, streams, strict=True))
    least = filled.late if whole else [lost(problem, groups, cut, None, allowance) for groups in filled.groups]
    climbs = [
        Climb(problem, cut, allowance, groups, random.Random(effort.seed), number)
        for groups, number in zip(filled.groups, least, strict=True)
    ]
    rounds = math.ceil(math.log2(MOST)) + 1
    finalists: list[tuple[Group, ...]] = []
    for _ in range(rounds):
        for climb in climbs:
            climb.run(effort.requests / rounds / len(climbs))
        climbs.sort(key=lambda climb: climb.least)
        climbs = climbs[: math.ceil(len(climbs) / 2)]
        finalists += [climb.best for climb in climbs[:2]]
    return finalists


def _best(
    problem: SharedGroups, climbed: Sequence[tuple[Group, ...]], start: tuple[Group, ...], judged: Sequence[Stream]
) -> tuple[tuple[Group, ...], float]:
    """Of groups that were climbed to, those with fewest late by their weights; the start where these are no better.

    As long as either has more late than it may, fewer of these are better; else clearly more requests on time. Beside
    them their mean share on time.
    """
    late_SM = {groups: late_counts(problem, groups, judged) for groups in dict.fromkeys((*climbed, start))}
    ranks = {groups: _rank(problem, late.sum(axis=0), judged) for groups, late in late_SM.items()}
    best, count = min(climbed, key=lambda groups: ranks[groups]), sum(stream.judged for stream in judged)
    judged_S = np.array([max(stream.judged, 1) for stream in judged])
    shares = {groups: 1.0 - late_SM[groups].sum(axis=1) / judged_S for groups in (best, start)}
    if max(ranks[best][1], ranks[start][1]) > count:
        chosen = min(best, start, key=lambda groups: ranks[groups])
    else:
        chosen = best if _told_apart(shares[best], shares[start]) else start
    return chosen, float(shares[chosen].mean())


def _rank(problem: SharedGroups, late_M: Ints, streams: Sequence[Stream]) -> tuple[int, int]:
    """Weights of the late requests of models beyond those they may have; then of all, less a margin."""
    whole, wanted = asked(problem, streams, 0.0), asked(problem, streams, MARGIN)
    return whole.weighed(late_M) - int(late_M.sum()), wanted.weighed(late_M)


def share_on_time(problem: SharedGroups, groups: Sequence[Group], streams: Sequence[Stream]) -> float:
    """Mean over the streams of the share of requests that are on time."""
    return float(np.mean(shares_on_time(problem, groups, streams)))


def shares_on_time(problem: SharedGroups, groups: Sequence[Group], streams: Sequence[Stream]) -> Floats:
    """Of the requests of each stream, those that are on time; 1 where there are none. [S]"""
    return np.array([1.0 - lost(problem, groups, [stream]) / max(stream.judged, 1) for stream in streams])


def _told_apart(better_S: Floats, other_S: Floats) -> bool:
    """Whether the mean of paired differences lies more than two standard errors above 0."""
    differences = better_S - other_S
    error = float(differences.std(ddof=1)) / math.sqrt(len(differences)) if len(differences) > 1 else 0.0
    return float(differences.mean()) > STANDARD_ERRORS * error


def _cut(problem: SharedGroups, fillings: Sequence[Sequence[Group]], stream: Stream) -> Stream:
    """The requests of the spans around those that are late under any of the fillings; all where engines batch."""
    if problem.batches is not None:
        return stream
    limit_s = float(problem.limit_s_M.max())
    marks = np.zeros(len(stream), dtype=np.bool_)
    for groups in fillings:
        marks |= late(problem, groups, stream)
    times = stream.time_s[marks]
    edges = np.zeros(len(stream) + 1, dtype=np.int64)
    np.add.at(edges, np.searchsorted(stream.time_s, times - SPAN_BEFORE * limit_s), 1)
    np.add.at(edges, np.searchsorted(stream.time_s, times + SPAN_AFTER * limit_s, side="right"), -1)
    kept = np.cumsum(edges[:-1]) > 0
    return Stream(stream.time_s[kept], stream.model[kept])

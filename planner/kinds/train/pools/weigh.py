"""The best use of several pools: one alone, one pipeline across some, or data-parallel replicas in some."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations

from planner.errors import PlannerError
from planner.kinds.train.choice import left_of
from planner.kinds.train.job import TrainJob
from planner.kinds.train.pools.search import ReplicasSearch, StagesSearch, merged_axes
from planner.kinds.train.search.one_pool import OnePoolSearch
from planner.kinds.train.search.search import PlanSearch, SearchResult, prove
from planner.kinds.train.search.tally import CandidateTally
from planner.progress import Limits

MOST_JOINED = 3
"""Pools that one plan takes up."""
DIVES = 8
"""Leaves that a search closes out of turn after 1, 2, 4, ... nodes, for a plan early."""


@dataclass(frozen=True, slots=True)
class Searches:
    """Searches that are gone through together, each with the name of its use, empty where there is no other; dives as
    of `search_all`."""

    by_use: Sequence[tuple[str, PlanSearch]]
    dives: int = 0

    def proven(self, limits: Limits) -> SearchResult:
        """The best plan of all; gone on from where the searches stopped last, for as long as the limits say."""
        reason = prove([search for _, search in self.by_use], limits, self.dives)
        results = [replace(search.result(reason), uses=(name,) if name else ()) for name, search in self.by_use]
        return merged(results) if len(results) > 1 else results[0]


def best_use(jobs: Sequence[TrainJob], limits: Limits, value: float = float("inf")) -> SearchResult:
    """The best plan over all uses of the pools that beats `value`; the time limit counts from here."""
    started_s = time.monotonic()
    return searches_of_uses(jobs, limits, value).proven(left_of(limits, started_s))


def searches_of_uses(jobs: Sequence[TrainJob], limits: Limits, value: float = float("inf")) -> Searches:
    """Searches of all uses of the pools for what beats `value`, those of one pool first.

    All uses are bounded, so that the bound is that of all.

    Raises PlannerError for wishes that hold on one pool only.
    """
    options = jobs[0].options
    where = jobs[0].resolved.where
    if options.search.layerwise:
        raise PlannerError("`layerwise` with several pools", where=where(("options", "search")), hint="keep one pool")
    wishes = (("reliability", options.reliability), ("lengths", options.lengths), ("batch_ramp", options.batch_ramp))
    for name, wish in wishes:
        if wish and options.search.pools != ("one",):
            raise PlannerError(
                f"`{name}` with several pools",
                where=where(("options", name)),
                hint="write `search: {pools: one}`, or keep one pool",
            )
    return Searches(tuple(_uses(jobs, limits, value)), DIVES)


def merged(results: Sequence[SearchResult]) -> SearchResult:
    """One answer of several searches; the next best plan is the best that another of them came by, or the same one."""
    values = [(result.value, index) for index, result in enumerate(results) if result.value is not None]
    best = results[min(values)[1]] if values else max(results, key=lambda result: result.tally.candidates)
    others = [result.second if result is best else result.best for result in results]
    tally = CandidateTally()
    for result in results:
        tally.add(result.tally)
    needed = [result.needed_bytes for result in results if result.needed_bytes]
    on_hosts = [result.needed_host_bytes for result in results if result.needed_host_bytes]
    return replace(
        best,
        bound=min(result.bound for result in results),
        second=min((other for other in others if other), key=lambda other: other.objective, default=None),
        tally=tally,
        space=replace(best.space, axes=merged_axes([result.space.axes for result in results])),
        needed_bytes=min(needed, default=0.0),
        needed_host_bytes=min(on_hosts, default=0.0),
        uses=tuple(use for result in results for use in result.uses),
    )


def _uses(jobs: Sequence[TrainJob], limits: Limits, value: float) -> Iterator[tuple[str, PlanSearch]]:
    """Every use of the pools with its search."""
    wanted = jobs[0].options.search.pools
    groups = [some for size in range(2, min(len(jobs), MOST_JOINED) + 1) for some in combinations(jobs, size)]
    if "one" in wanted:
        yield from ((f"{job.pool.name} alone", OnePoolSearch(job, limits, value)) for job in jobs)
    if "replicas" in wanted:
        yield from ((f"replicas in {_names(some, ' and ')}", ReplicasSearch(some, limits, value)) for some in groups)
    if "stages" in wanted:
        for order in (order for some in groups for order in permutations(some)):
            yield f"stages on {_names(order, ', then ')}", StagesSearch(order, limits, value)


def _names(pools: Sequence[TrainJob], between: str) -> str:
    return between.join(job.pool.name for job in pools)

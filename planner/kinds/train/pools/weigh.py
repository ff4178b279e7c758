"""The best use of several pools: one of them alone, one pipeline across some, or replicas in some."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, permutations

from planner.errors import PlannerError
from planner.kinds.train.job import Job
from planner.kinds.train.pools.search import ReplicasSearch, StagesSearch, merged_axes
from planner.kinds.train.search.best_first import Tally, prove
from planner.kinds.train.search.search import Found, Search
from planner.progress import Limits

MOST_JOINED = 3
"""Pools that one plan takes up."""
Searches = Search | StagesSearch | ReplicasSearch


def best_use(jobs: Sequence[Job], limits: Limits, value: float = float("inf")) -> Found:
    """The best plan over all uses of the pools that beats `value`, searched together.

    Raises PlannerError for wishes that hold on one pool only.
    """
    options = jobs[0].options
    where = jobs[0].resolved.where
    if options.search.layerwise:
        raise PlannerError("`layerwise` with several pools", where=where(("options", "search")), hint="keep one pool")
    wishes = (("reliability", options.reliability), ("lengths", options.lengths), ("batch_ramp", options.batch_ramp))
    for name, wish in wishes:
        if wish and options.search.pools != ("one",):
            hint = "write `search: {pools: one}`, or keep one pool"
            raise PlannerError(f"`{name}` with several pools", where=where(("options", name)), hint=hint)
    uses = list(_uses(jobs, limits, value))
    reason = prove([search for _, search in uses], limits)
    return merged([replace(search.found(reason), uses=(name,)) for name, search in uses])


def merged(founds: Sequence[Found]) -> Found:
    """One answer of several searches; the next best plan is the best of another use of the pools."""
    values = [(found.value, at) for at, found in enumerate(founds) if found.value is not None]
    best = founds[min(values)[1]] if values else max(founds, key=lambda found: found.tally.candidates)
    others = [found.best for found in founds if found.best is not None and found is not best]
    tally = Tally()
    for found in founds:
        tally.add(found.tally)
    needed = [found.needed_bytes for found in founds if found.needed_bytes]
    return replace(
        best,
        bound=min(found.bound for found in founds),
        second=best.second if best.second is not None else next(reversed(others), None),
        tally=tally,
        space=replace(best.space, axes=merged_axes([found.space.axes for found in founds])),
        needed_bytes=min(needed, default=0.0),
        uses=tuple(use for found in founds for use in found.uses),
    )


def _uses(jobs: Sequence[Job], limits: Limits, value: float) -> Iterator[tuple[str, Searches]]:
    """Every use of the pools with its search."""
    wanted = jobs[0].options.search.pools
    groups = [some for size in range(2, min(len(jobs), MOST_JOINED) + 1) for some in combinations(jobs, size)]
    if "one" in wanted:
        yield from ((f"{job.pool.name} alone", Search(job, limits, value)) for job in jobs)
    if "replicas" in wanted:
        yield from ((f"replicas in {_names(some, ' and ')}", ReplicasSearch(some, limits, value)) for some in groups)
    if "stages" in wanted:
        for order in (order for some in groups for order in permutations(some)):
            yield f"stages on {_names(order, ', then ')}", StagesSearch(order, limits, value)


def _names(pools: Sequence[Job], between: str) -> str:
    return between.join(job.pool.name for job in pools)

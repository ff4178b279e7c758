"""Pools that a placement of layers or a mix of GPU types is to do without."""

from planner.errors import require_known
from planner.kinds.place.decision import PlaceOptions
from planner.problem.resolve import Resolved


def pools_without(resolved: Resolved) -> frozenset[str]:
    """Names of the pools that are left out; raises PlannerError for names of no pool."""
    names = PlaceOptions.model_validate(resolved.problem.options).without
    known = [pool.name for pool in resolved.pools]
    for name in names:
        require_known("pool", name, known, listing="pools are", where=resolved.where(("options", "without")))
    return frozenset(names)

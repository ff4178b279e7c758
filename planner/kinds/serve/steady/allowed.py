"""Which candidates a problem allows beyond its axes: values by function, and instance types that are left out."""

from collections.abc import Iterable, Iterator, Sequence

from planner.kinds.serve.options import RoleShapes, ServeOptions
from planner.kinds.serve.steady.candidates import Candidate
from planner.kinds.serve.steady.points import Tally
from planner.plan.instance_types import unlimited_name

FIXED, LEFT_OUT = "options.roles", "options.without"


def allowed(
    candidates: Iterable[Candidate], options: ServeOptions, pools: Sequence[str], tally: Tally
) -> Iterator[Candidate]:
    """The candidates that keep to `options.roles` and are not among `options.without`; the others are tallied."""
    for candidate in candidates:
        fixed = options.roles.get(candidate.function)  # type: ignore[call-overload]  # a function is one of the names
        if fixed is not None and not _fits(candidate, fixed):
            tally.drop(FIXED, 1)
        elif options.without and _name(candidate, pools[candidate.pool]) in options.without:
            tally.drop(LEFT_OUT, 1)
        else:
            yield candidate


def _name(candidate: Candidate, pool: str) -> str:
    return unlimited_name(candidate.function, candidate.model, candidate.shape.degrees, pool)


def _fits(candidate: Candidate, fixed: RoleShapes) -> bool:
    shape = candidate.shape
    wanted = ((fixed.tp, shape.tp), (fixed.pp, shape.pp), (fixed.dp, shape.dp), (fixed.ep, shape.ep))
    return all(values is None or size in values for values, size in wanted)

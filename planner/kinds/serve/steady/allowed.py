"""Which candidates a search has beyond its axes: values by function, types that are left out, and measured forms."""

from collections.abc import Iterable, Iterator, Sequence

from planner.costs.rates.forms import FUNCTIONS, Forms, form_of, with_form
from planner.kinds.serve.options import RoleShapes, ServeOptions
from planner.kinds.serve.steady.candidates import Candidate
from planner.kinds.serve.steady.points import Tally
from planner.plan.instance_types import unlimited_name

FIXED, LEFT_OUT, UNMEASURED = "options.roles", "options.without", "options.choice: no run has its form"


def allowed(
    candidates: Iterable[Candidate], options: ServeOptions, pools: Sequence[str], tally: Tally, forms: Forms | None
) -> Iterator[Candidate]:
    """The candidates of these forms that keep to `options.roles` and are not among `options.without`.

    The others are tallied.
    """
    for candidate in candidates:
        fixed = options.roles.get(candidate.function)  # type: ignore[call-overload]  # a function is one of the names
        if fixed is not None and not _fits(candidate, fixed):
            tally.drop(FIXED, 1)
        elif options.without and _name(candidate, pools[candidate.pool]) in options.without:
            tally.drop(LEFT_OUT, 1)
        elif forms is not None and not is_measured(candidate, forms):
            tally.drop(UNMEASURED, 1)
        else:
            yield candidate


def is_measured(candidate: Candidate, forms: Forms) -> bool:
    """Whether the form of an instance type is among these of its function.

    Attention apart from feed-forward layers, which no run has, is searched only where a problem names it, and is not
    held against a plan.
    """
    if candidate.function not in FUNCTIONS:
        return True
    return form_of(*candidate.shape.sizes) in forms.get(candidate.function, ())


def text_of(candidate: Candidate) -> str:
    """Function and form of an instance type, such as `prefill with pipeline stages`."""
    return with_form(candidate.function, form_of(*candidate.shape.sizes))


def _name(candidate: Candidate, pool: str) -> str:
    return unlimited_name(candidate.function, candidate.model, candidate.shape.degrees, pool)


def _fits(candidate: Candidate, fixed: RoleShapes) -> bool:
    shape = candidate.shape
    wanted = ((fixed.tp, shape.tp), (fixed.pp, shape.pp), (fixed.dp, shape.dp), (fixed.ep, shape.ep))
    return all(values is None or size in values for values, size in wanted)

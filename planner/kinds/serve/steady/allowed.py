"""Which candidates a problem allows beyond its axes: values by function, and instance types that are left out."""

from collections.abc import Iterable, Iterator, Sequence

from planner.kinds.serve.options import RoleShapes, ServeOptions
from planner.kinds.serve.steady.candidates import Candidate
from planner.kinds.serve.steady.points import Tally

FIXED, LEFT_OUT = "options.roles", "options.without"


def allowed(
    candidates: Iterable[Candidate], options: ServeOptions, pools: Sequence[str], tally: Tally
) -> Iterator[Candidate]:
    """The candidates that keep to `options.roles` and are not among `options.without`; the others are tallied."""
    for candidate in candidates:
        held = options.roles.get(candidate.function)  # type: ignore[call-overload]  # a function is one of the names
        if held is not None and not _fits(candidate, held):
            tally.drop(FIXED, 1)
        elif options.without and type_text(candidate, pools[candidate.pool]) in options.without:
            tally.drop(LEFT_OUT, 1)
        else:
            yield candidate


def type_text(candidate: Candidate, pool: str) -> str:
    """`decode/qwen3/tp2/h200`: what an instance is, whatever its batch and chunk."""
    shape = candidate.shape
    degrees = (("tp", shape.tp), ("pp", shape.pp), ("dp", shape.dp), ("ep", shape.ep))
    label = "".join(f"{name}{size}" for name, size in degrees if size > 1) or "tp1"
    return f"{candidate.function}/{candidate.model}/{label}/{pool}"


def _fits(candidate: Candidate, held: RoleShapes) -> bool:
    shape = candidate.shape
    wanted = ((held.tp, shape.tp), (held.pp, shape.pp), (held.dp, shape.dp), (held.ep, shape.ep))
    return all(values is None or size in values for values, size in wanted)

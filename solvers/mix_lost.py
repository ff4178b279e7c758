"""How busy the rest of an instance mix is when some of its instances are lost, its load shared out anew."""

import math
from collections.abc import Iterator, Mapping, Sequence

from planner.solvers.backends.model import LinearModel, total
from planner.solvers.backends.solve import vertex
from planner.solvers.mix import MixProblem, port_bytes_per_s, stage_of
from planner.solvers.mix_spare import Role, roles_of


def busy_after(
    problem: MixProblem, counts: Sequence[int], load_per_s: Sequence[Sequence[float]], lost: Mapping[int, int]
) -> float:
    """The share of their time that the instances left of the busiest role work; inf where none is left of one in use.

    `counts` and `load_per_s` [shape][demand] are of the whole mix, `lost` instances by shape. Each role
    (`mix_spare`) carries its own load: minimise r with  sum_w v_kw <= r left_k,  sum_w b_w R_kw v_kw <= r E_k left_k,
    sum_k R_kw v_kw = the role's load of w.  More than 1 is more than its limits allow.
    """
    return max(
        (_busy(problem, role, left, load) for role, left, load in _left(problem, counts, load_per_s, lost)), default=0.0
    )


def _left(
    problem: MixProblem, counts: Sequence[int], load_per_s: Sequence[Sequence[float]], lost: Mapping[int, int]
) -> Iterator[tuple[Role, dict[int, int], dict[int, float]]]:
    """Roles with a load that lose something: instances left by shape, and the load by demand."""
    stages = [stage_of(problem, shape) for shape in problem.shapes]
    for role in roles_of(stages, [shape.rate_per_s for shape in problem.shapes]):
        if any(lost.get(c) for c in role.shapes):
            load = {w: math.fsum(load_per_s[c][w] for c in role.shapes) for w in role.demands}
            served = {w: rate for w, rate in load.items() if rate > 0.0}
            if served:
                yield role, {c: max(counts[c] - lost.get(c, 0), 0) for c in role.shapes}, served


def _busy(problem: MixProblem, role: Role, left: Mapping[int, int], load: Mapping[int, float]) -> float:
    shapes, moved = problem.shapes, [demand.transfer_bytes for demand in problem.demands]
    up = [c for c in role.shapes if left[c] and any(shapes[c].rate_per_s[w] > 0.0 for w in load)]
    ports = {c: port for c in up if (port := port_bytes_per_s(shapes[c])) is not None and any(moved)}
    if len(load) == 1:
        ((w, served),) = load.items()
        most = math.fsum(
            left[c] * min(shapes[c].rate_per_s[w], ports[c] / moved[w] if c in ports and moved[w] else math.inf)
            for c in up
        )
        return served / most if most > 0.0 else math.inf
    model = LinearModel()
    least = model.continuous("r")
    v = {(c, w): model.continuous(f"v[{c},{w}]") for c in up for w in load if shapes[c].rate_per_s[w] > 0.0}
    for c in up:
        own = [w for w in load if (c, w) in v]
        model.add(total(v[c, w] for w in own) <= float(left[c]) * least, f"time[{c}]")
        if c in ports:
            sent = total(moved[w] * shapes[c].rate_per_s[w] / ports[c] * v[c, w] for w in own)
            model.add(sent <= float(left[c]) * least, f"port[{c}]")
    for w, served in load.items():
        carried = total(shapes[c].rate_per_s[w] / served * v[c, w] for c in up if (c, w) in v)
        model.add(carried == 1.0, f"load[{w}]")
    model.minimise(least)
    values = vertex(model, {})
    return math.inf if values is None else values[least.column]

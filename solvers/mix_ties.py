"""Ties between instance mixes: of equals in the objective those that are least in a second criterion, and of these the
one of fewest distinct shapes, then of most room.

Each step keeps what the steps before it found as a constraint, so that none gives anything of them away.
"""

from collections.abc import Sequence
from typing import TypedDict

from planner.solvers.backends.model import Expr, LinearModel, total
from planner.solvers.backends.solve import solve, vertex
from planner.solvers.mix import MixObjective, MixProblem
from planner.solvers.mix_model import Vars

TIE_TOLERANCE = 1e-9  # relative; mixes this near in a criterion are equal in it
NODE_LIMIT = 500  # of the second criterion: deterministic, and the solution before it stands when it is reached
ROOM_NODE_LIMIT = 50  # of the last: it finds what there is to find in the first few
LEAST_GAIN = 1e-4  # of room, for which a mix gives way to an equal one
ROOM_WEIGHT = 0.5  # of the share of memory in use, at most 1, beside a number of shapes: it outweighs none


class Effort(TypedDict):
    """How every model of a mix is solved."""

    backend: str
    seed: int
    threads: int


def least_second(
    problem: MixProblem, model: LinearModel, variables: Vars, best: float, values: Sequence[float], effort: Effort
) -> Sequence[float]:
    """A solution as good as `best` in the objective with fewest devices, or for DEVICES the lowest price."""
    tied = _as_good(model, variables, best)
    weights = second_weights(problem)
    scale = max(weights, default=0.0) or 1.0
    tied.minimise(total(weight / scale * count for weight, count in zip(weights, variables.n, strict=True)))
    return _settled(tied, model, variables, best, NODE_LIMIT, effort) or values


def fewest_shapes(
    problem: MixProblem,
    model: LinearModel,
    variables: Vars,
    fullness: Sequence[float],
    best: float,
    most_second: float,
    most_spread: float,
    effort: Effort,
) -> Sequence[float] | None:
    """A solution as good as `best`, of at most `most_second`, with fewest distinct shapes and then most room, or None.

    `fullness` is the share of its memory that an instance of each shape fills; room is what the fullest shape in use
    leaves. Minimise  sum_c z_c + ROOM_WEIGHT r  with  n_c <= U_c z_c,  r >= fullness_c z_c,  z_c binary,  r <= 1.
    Only what is below `most_spread`, that of the mix at hand, is looked for, and not beyond the limit of nodes.
    """
    tied, weights = _as_good(model, variables, best), second_weights(problem)
    scale = most_second or 1.0
    spent = total(weight / scale * count for weight, count in zip(weights, variables.n, strict=True))
    tied.add(spent <= most_second / scale + TIE_TOLERANCE, "second")
    fullest = tied.continuous("r", 0.0, 1.0)
    used: list[Expr] = []
    for c, count in enumerate(variables.n):
        most = model.upper[count.column]
        if most > 0.0:
            used.append(tied.binary(f"z[{c}]"))
            tied.add(count <= most * used[-1], f"z[{c}] in use")
            tied.add(fullness[c] * used[-1] <= fullest, f"r[{c}]")
    tied.add(total(used) + ROOM_WEIGHT * fullest <= most_spread - LEAST_GAIN, "better")
    tied.minimise(total(used) + ROOM_WEIGHT * fullest)
    return _settled(tied, model, variables, best, ROOM_NODE_LIMIT, effort)


def spread(counts: Sequence[float], fullness: Sequence[float]) -> float:
    """What `fewest_shapes` minimises, of a mix with these counts."""
    used = [full for count, full in zip(counts, fullness, strict=True) if count]
    return len(used) + ROOM_WEIGHT * max(used, default=0.0)


def second_weights(problem: MixProblem) -> list[float]:
    """The second criterion of an instance of each shape: devices, or for DEVICES the price."""
    if problem.objective is MixObjective.DEVICES:
        return [shape.price_per_hour for shape in problem.shapes]
    return [float(shape.devices) for shape in problem.shapes]


def _as_good(model: LinearModel, variables: Vars, best: float) -> LinearModel:
    """The model with only what is as good as `best` left."""
    slack, tied = _slack(best), model.restricted({}, {})
    tied.add(variables.objective >= best - slack if model.maximising else variables.objective <= best + slack, "best")
    return tied


def _settled(
    tied: LinearModel, model: LinearModel, variables: Vars, best: float, node_limit: int, effort: Effort
) -> Sequence[float] | None:
    """The best of `tied`, its instances at the exact optimum of `model` with them; None where that loses anything."""
    result = solve(tied, node_limit=node_limit, **effort)
    if result.solution is None:
        return None
    counts = {each.column: result.solution.values_by_column[each.column] for each in variables.whole}
    exact = vertex(model, counts)
    if exact is None:
        return None
    loss = best - model.objective_at(exact) if model.maximising else model.objective_at(exact) - best
    return exact if loss <= _slack(best) else None


def _slack(best: float) -> float:
    return TIE_TOLERANCE * max(1.0, abs(best))

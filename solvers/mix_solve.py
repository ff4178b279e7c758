"""Solves an instance mix: dominance, exact MILP, a deterministic second criterion, and a re-derivable bound."""

import dataclasses
import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

from planner.errors import PlannerError
from planner.solvers.backends.model import Expr, JsonValue, LinearModel, Solution, check_feasible, total
from planner.solvers.backends.solve import solve, vertex
from planner.solvers.dualtree import DualTree, build_certificate, verify
from planner.solvers.mix import Flow, MixObjective, MixProblem, MixRole, MixSolution, Vars, build, part_of_planned
from planner.solvers.mix_dominance import canonical_order, dominators
from planner.solvers.result import SolveResult, Status

DEFAULT_BACKEND = "mathopt-gscip"  # 2 to 3 times as fast as HiGHS on mixes of 10 to 40 shapes (4 ms to 10 ms)
TIE_TOLERANCE = 1e-9  # relative; mixes this near in the first criterion are equal in it
NEXT_BEST_GAP = 1e-4  # relative
TIE_NODE_LIMIT = 500  # of the second solve: deterministic, and the first solution stands when it is reached


class _Effort(TypedDict):
    """How every model of a mix is solved."""

    backend: str
    seed: int
    threads: int


def solve_mix(
    problem: MixProblem,
    *,
    backend: str = DEFAULT_BACKEND,
    time_limit_s: float | None = None,
    node_limit: int | None = None,
    gap: float = 0.0,
    seed: int = 0,
    threads: int = 1,
    tie_break: bool = True,
) -> SolveResult[MixSolution]:
    """The best mix, with fewest devices (for DEVICES: lowest price) among equals; the order of shapes is immaterial.

    Without `tie_break` any of the equals may come, in half the time.

    Raises PlannerError for a malformed problem, or group sizes of a pool that do not divide one another.
    """
    started_s = time.perf_counter()
    reduced, kept, _ = reduce(problem)
    model, variables = build(reduced)
    effort: _Effort = {"backend": backend, "seed": seed, "threads": threads}
    first = solve(model, time_limit_s=time_limit_s, node_limit=node_limit, gap=gap, **effort)
    bound = None if first.bound is None else first.bound * variables.objective_unit
    solution = objective = None
    if first.solution is not None and first.objective is not None:
        values: Sequence[float] = first.solution.values_by_column
        if tie_break and (time_limit_s is None or first.status is Status.OPTIMAL):
            values = _second_criterion(reduced, model, variables, first.objective, values, effort)
        values = _balanced(reduced, model, variables, values)
        objective = model.objective_at(values) * variables.objective_unit
        solution = _decode(problem, kept, reduced, variables, Solution(model.names, values))
        bound = _outside(problem, objective, bound)
    elapsed_s = time.perf_counter() - started_s
    return SolveResult(first.status, first.stop_reason, solution, objective, bound, elapsed_s, first.solver)


def next_best(
    problem: MixProblem,
    solution: MixSolution,
    *,
    forbid_shapes: Collection[int] = (),
    forbid_roles: Collection[MixRole] = (),
    backend: str = DEFAULT_BACKEND,
    time_limit_s: float | None = None,
    gap: float = NEXT_BEST_GAP,
) -> SolveResult[MixSolution]:
    """The best mix without the forbidden shapes and roles, or, with neither, the best that does not contain `solution`.

    The latter has fewer instances of some shape that `solution` uses: one solve for each such shape, and so the time
    limit is for each. To be compared with and not to be run, it is found to within `gap`.
    """
    if forbid_shapes or forbid_roles:
        barred = {c for c, shape in enumerate(problem.shapes) if c in forbid_shapes or shape.role in forbid_roles}
        return solve_mix(
            _limited(problem, dict.fromkeys(barred, 0)), backend=backend, time_limit_s=time_limit_s, gap=gap
        )
    used = [c for c, count in enumerate(solution.counts) if count]
    fewer = [_limited(problem, {c: solution.counts[c] - 1}) for c in used]
    results = [
        solve_mix(other, backend=backend, time_limit_s=time_limit_s, gap=gap, tie_break=False) for other in fewer
    ]
    sign = -1.0 if problem.maximising else 1.0
    feasible = [result for result in results if result.objective is not None]
    if not feasible:
        return results[0] if results else SolveResult(Status.INFEASIBLE, "finished", None, None, None, 0.0)
    return min(feasible, key=lambda result: sign * (result.objective or 0.0))


def reduce(problem: MixProblem) -> tuple[MixProblem, list[int], dict[int, int]]:
    """The problem with undominated shapes in canonical order, their indices, and who dominates each dropped one."""
    dropped = dominators(problem)
    kept = [c for c in canonical_order(problem) if c not in dropped]
    return dataclasses.replace(problem, shapes=tuple(problem.shapes[c] for c in kept)), kept, dropped


@dataclass(frozen=True, slots=True)
class MixCertificate:
    """What re-derives the bound of a mix without a solver; `objective_unit` turns model units into the problem's."""

    model: LinearModel
    tree: DualTree
    objective_unit: float

    def bound(self) -> float | None:
        """The proven bound on the objective; None when the tree proves that no mix is feasible."""
        proven = verify(self.tree, self.model)
        return None if proven is None else proven * self.objective_unit

    def matches(self, problem: MixProblem) -> bool:
        """Whether the certificate is about this problem: its model is the one that the problem builds."""
        model, variables = build(reduce(problem)[0])
        return model.to_dict() == self.model.to_dict() and variables.objective_unit == self.objective_unit

    def to_dict(self) -> dict[str, JsonValue]:
        """The certificate as JSON-serialisable data."""
        return {
            "model": self.model.to_dict(),
            "tree": self.tree.to_dict(),
            "objective_unit": self.objective_unit,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, JsonValue]) -> "MixCertificate":
        """The certificate that `to_dict` wrote; raises PlannerError when the data are malformed."""
        try:
            unit = float(data["objective_unit"])
            model, tree = LinearModel.from_dict(data["model"]), DualTree.from_dict(data["tree"])
        except (KeyError, TypeError, ValueError) as error:
            raise PlannerError(f"malformed certificate: {error}", where="certificate") from None
        if not (math.isfinite(unit) and unit > 0.0):
            raise PlannerError(f"objective_unit must be positive, found {unit}", where="certificate")
        return cls(model, tree, unit)


def certify(problem: MixProblem, result: SolveResult[MixSolution], *, node_limit: int = 200) -> MixCertificate:
    """A certificate for the outcome of `solve_mix`; its bound is the weaker one at `node_limit`."""
    reduced, _, _ = reduce(problem)
    model, variables = build(reduced)
    incumbent = None if result.objective is None else result.objective / variables.objective_unit
    return MixCertificate(model, build_certificate(model, incumbent, node_limit=node_limit), variables.objective_unit)


def _limited(problem: MixProblem, most: Mapping[int, int]) -> MixProblem:
    shapes = tuple(
        dataclasses.replace(shape, max_instances=most[c]) if c in most else shape
        for c, shape in enumerate(problem.shapes)
    )
    return dataclasses.replace(problem, shapes=tuple(shapes))


def _second_criterion(
    problem: MixProblem,
    model: LinearModel,
    variables: Vars,
    best: float,
    values: Sequence[float],
    effort: _Effort,
) -> Sequence[float]:
    """A solution as good as `best` in the objective with the least of the second criterion."""
    slack = TIE_TOLERANCE * max(1.0, abs(best))
    tied = model.restricted({}, {})
    tied.add(variables.objective >= best - slack if model.maximising else variables.objective <= best + slack, "best")
    second = [
        shape.price_per_hour if problem.objective is MixObjective.DEVICES else float(shape.devices)
        for shape in problem.shapes
    ]
    scale = max(second, default=0.0) or 1.0
    tied.minimise(total(weight / scale * count for weight, count in zip(second, variables.n, strict=True)))
    result = solve(tied, node_limit=TIE_NODE_LIMIT, **effort)
    if result.solution is None:
        return values
    counts = {n.column: result.solution.values_by_column[n.column] for n in variables.n}
    exact = vertex(model, counts)
    if exact is None:
        return values
    loss = best - model.objective_at(exact) if model.maximising else model.objective_at(exact) - best
    return exact if loss <= slack else values


def _balanced(problem: MixProblem, model: LinearModel, variables: Vars, values: Sequence[float]) -> Sequence[float]:
    """The same mix and the same service with the busiest shape of each role as idle as it can be."""
    even = model.restricted({}, {})
    fixed = {e.column: values[e.column] for e in (*variables.n, *variables.d, variables.objective) if len(e.terms) == 1}
    busiest: list[Expr] = []
    for role in MixRole:
        shapes = [c for c, shape in enumerate(problem.shapes) if shape.role is role and values[variables.n[c].column]]
        if not shapes:
            continue
        rho = even.continuous(f"busiest[{role}]", 0.0, 1.0)
        busiest.append(rho)
        for c in shapes:
            busy = total(u for (shape, _), u in variables.u.items() if shape == c)
            even.add(busy <= values[variables.n[c].column] * rho, f"busy[{c}]")
    even.minimise(total(busiest))
    exact = vertex(even, fixed)
    if exact is None:
        return values
    evened = exact[: len(values)]
    return values if check_feasible(model, evened, TIE_TOLERANCE) else evened


def _decode(
    problem: MixProblem, kept: Sequence[int], reduced: MixProblem, variables: Vars, solution: Solution
) -> MixSolution:
    """The mix in the problem's own order of shapes and units, each demand served at its own rate and no more."""
    unit, demands = variables.rate_unit_per_s, range(len(problem.demands))
    part = [part_of_planned(reduced, w) for w in demands]
    counts = [0] * len(problem.shapes)
    load = [[0.0] * len(demands) for _ in problem.shapes]
    for index, c in enumerate(kept):
        counts[c] = round(solution.value(variables.n[index]))
        for w in demands:
            if (index, w) in variables.u:
                load[c][w] = solution.value(variables.u[index, w]) * reduced.shapes[index].rate_per_s[w] * part[w]
    moved = ((key, solution.value(flow) * unit * part[key[2]]) for key, flow in variables.f.items())
    pairs = list(zip(problem.shapes, counts, strict=True))
    return MixSolution(
        tuple(counts),
        tuple(map(tuple, load)),
        tuple(Flow(*key, rate) for key, rate in moved if rate > 0.0),
        tuple(solution.value(served) * unit * part[w] for w, served in enumerate(variables.d)),
        sum(shape.devices * count for shape, count in pairs),
        math.fsum(shape.price_per_hour * count for shape, count in pairs),
    )


def _outside(problem: MixProblem, objective: float, bound: float | None) -> float | None:
    """The bound moved to the objective where turning units crossed the two."""
    if bound is None:
        return None
    return max(bound, objective) if problem.maximising else min(bound, objective)

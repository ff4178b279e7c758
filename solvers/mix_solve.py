"""Solves an instance mix: dominance, exact MILP, a deterministic second criterion, and a re-derivable bound."""

import dataclasses
import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from planner.errors import PlannerError
from planner.solvers.backends.model import Expr, JsonValue, LinearModel, Solution, check_feasible, total
from planner.solvers.backends.solve import solve, vertex
from planner.solvers.dualtree import DualTree, build_certificate, verify
from planner.solvers.mix import Flow, MixProblem, MixRole, MixSolution, part_of_planned
from planner.solvers.mix_dominance import canonical_order, dominators
from planner.solvers.mix_model import Vars, build
from planner.solvers.mix_ties import TIE_TOLERANCE, Effort, fewest_shapes, least_second, second_weights, spread
from planner.solvers.result import SolveResult, Status

DEFAULT_BACKEND = "mathopt-gscip"  # 2 to 3 times as fast as HiGHS on mixes of 10 to 40 shapes (4 ms to 10 ms)
LARGE_BACKEND = "mathopt-highs"  # 2 to 18 times as fast on the most service by 56 shapes, seconds for the other
MOST_SMALL = 40  # undominated shapes
MOST_TIED = 60  # shapes that room is weighed over; a mix of more takes as long as the objective itself
NEXT_BEST_GAP = 1e-4  # relative


def solve_mix(
    problem: MixProblem,
    *,
    backend: str | None = None,
    time_limit_s: float | None = None,
    node_limit: int | None = None,
    gap: float = 0.0,
    seed: int = 0,
    threads: int = 1,
    tie_break: bool = True,
    fullness: Sequence[float] = (),
) -> SolveResult[MixSolution]:
    """The best mix, with fewest devices (for DEVICES: lowest price) among equals; the order of shapes is immaterial.

    With `fullness`, the share of its memory that an instance of each shape fills, what is still equal goes to fewer
    distinct shapes, then to more room in the fullest. Without `tie_break` any of the equals may come, in half the time.

    Without a `backend`, that which suits the size of the problem solves it.
    Raises PlannerError for a malformed problem, or group sizes of a pool that do not divide one another.
    """
    started_s = time.perf_counter()
    mix = _BuiltMix.of(problem)
    suited = LARGE_BACKEND if problem.maximising and len(mix.kept) > MOST_SMALL else DEFAULT_BACKEND
    effort: Effort = {"backend": backend or suited, "seed": seed, "threads": threads}
    first = solve(mix.model, time_limit_s=time_limit_s, node_limit=node_limit, gap=gap, **effort)
    bound = None if first.bound is None else first.bound * mix.variables.objective_unit
    solution = objective = None
    if first.solution is not None and first.objective is not None:
        values: Sequence[float] = first.solution.values_by_column
        if tie_break and (time_limit_s is None or first.status is Status.OPTIMAL):
            values = least_second(mix.problem, mix.model, mix.variables, first.objective, values, effort)
            if fullness:
                mix, values = _with_most_room(problem, fullness, mix, values, effort)
        values = _balanced(mix.problem, mix.model, mix.variables, values)
        objective = mix.model.objective_at(values) * mix.variables.objective_unit
        solution = _decode(problem, mix.kept, mix.problem, mix.variables, Solution(mix.model.names, values))
        bound = _outside(problem, objective, bound)
    elapsed_s = time.perf_counter() - started_s
    return SolveResult(first.status, first.stop_reason, solution, objective, bound, elapsed_s, first.solver)


def next_best(
    problem: MixProblem,
    solution: MixSolution,
    *,
    forbid_shapes: Collection[int] = (),
    forbid_roles: Collection[MixRole] = (),
    backend: str | None = None,
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


def reduce(
    problem: MixProblem, *, fullness: Sequence[float] = (), keep: Collection[int] = ()
) -> tuple[MixProblem, list[int], dict[int, int]]:
    """The problem with undominated shapes in canonical order, their indices, and who dominates each dropped one.

    With `fullness` no shape dominates one that leaves more room; those of `keep` stay, dominated or not.
    """
    dropped = {c: winner for c, winner in dominators(problem, fullness).items() if c not in keep}
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
    reduced, _, _ = reduce(problem, keep=used_shapes(result.solution))
    model, variables = build(reduced)
    incumbent = None if result.objective is None else result.objective / variables.objective_unit
    return MixCertificate(model, build_certificate(model, incumbent, node_limit=node_limit), variables.objective_unit)


def used_shapes(solution: MixSolution | None) -> set[int]:
    """The shapes that a mix has instances of: a proof about it holds them, dominated or not."""
    return {c for c, count in enumerate(solution.counts) if count} if solution is not None else set()


def _limited(problem: MixProblem, most: Mapping[int, int]) -> MixProblem:
    shapes = tuple(
        dataclasses.replace(shape, max_instances=most[c]) if c in most else shape
        for c, shape in enumerate(problem.shapes)
    )
    return dataclasses.replace(problem, shapes=tuple(shapes))


def _with_most_room(
    problem: MixProblem, fullness: Sequence[float], mix: "_BuiltMix", values: Sequence[float], effort: Effort
) -> "tuple[_BuiltMix, Sequence[float]]":
    """The mix of fewest shapes and then most room among those as good as `values`, over all shapes that matter to that.

    Dominance for the objective drops shapes that leave more room than what stands in for them; here they are back, but
    for problems where that makes too many.
    """
    wide = _BuiltMix.of(problem, fullness=fullness)
    wide = wide if len(wide.kept) <= MOST_TIED else mix
    best = mix.model.objective_at(values) * mix.variables.objective_unit / wide.variables.objective_unit
    weights = second_weights(mix.problem)
    most = math.fsum(weight * values[n.column] for weight, n in zip(weights, mix.variables.n, strict=True))
    full = [fullness[c] for c in wide.kept]
    at_hand = spread([values[n.column] for n in mix.variables.n], [fullness[c] for c in mix.kept])
    chosen = fewest_shapes(wide.problem, wide.model, wide.variables, full, best, most, at_hand, effort)
    return (mix, values) if chosen is None else (wide, chosen)


@dataclass(frozen=True, slots=True)
class _BuiltMix:
    """A problem without dominated shapes, the indices of those that are left, and its model."""

    problem: MixProblem
    kept: list[int]
    model: LinearModel
    variables: Vars

    @classmethod
    def of(cls, problem: MixProblem, *, fullness: Sequence[float] = ()) -> "_BuiltMix":
        reduced, kept, _ = reduce(problem, fullness=fullness)
        return cls(reduced, kept, *build(reduced))


def _balanced(problem: MixProblem, model: LinearModel, variables: Vars, values: Sequence[float]) -> Sequence[float]:
    """The same mix and the same service with the busiest shape of each role as idle as it can be."""
    even = model.restricted({}, {})
    kept = (*variables.whole, *variables.d, variables.objective)
    fixed = {e.column: values[e.column] for e in kept if len(e.terms) == 1}
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

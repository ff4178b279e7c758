"""The best few distinct plans of a problem, each a full plan, ranked at the static level."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planner.alternatives.axes import unfixed
from planner.alternatives.best_distinct import best_distinct
from planner.alternatives.parts import Distinctness, distinctness
from planner.api import solve
from planner.errors import Infeasible, PlannerError
from planner.plan.schema import Envelope
from planner.problem.resolve import Resolved
from planner.progress import Limits


@dataclass(frozen=True, slots=True)
class Alternatives:
    """Plans, the best first, and how they are told apart."""

    plans: tuple[Envelope, ...]
    distinct: str

    def loss(self, place: int) -> float:
        """By what share a plan's objective is worse than that of the best."""
        best, value = (self.plans[at].certificate.objective for at in (0, place))
        if best.value is None or value.value is None or not best.value:
            return 0.0
        worse = best.value - value.value if best.sense == "maximize" else value.value - best.value
        return worse / abs(best.value)


def alternatives(resolved: Resolved, count: int, limits: Limits) -> Alternatives:
    """At most `count` plans; fewer where the problem has no more that are told apart.

    The problem in each plan is the one given, without the parts that were left out to come by it. Raises PlannerError
    for a count below 1 and for a problem whose plans are not ranked, Infeasible where there is no plan at all, Stopped
    where a limit came before one.
    """
    if count < 1:
        raise PlannerError(f"must be 1 at least, found {count}", where="--alternatives", hint="write for example 3")
    told_apart = distinctness(resolved.problem)
    best = solve(_ranked_by_value(resolved), limits, level="static")

    def solve_without(without: frozenset[str]) -> tuple[float, frozenset[str], Envelope] | None:
        plan = best if not without else _solved(resolved, told_apart, best, without, limits)
        return None if plan is None else (_cost(plan), told_apart.parts(plan), plan)

    ranked = best_distinct(solve_without, count)
    return Alternatives(tuple(entry.solution for entry in ranked), told_apart.words)


def _ranked_by_value(resolved: Resolved) -> Resolved:
    """Training as fast as the costs say, whether such runs were measured or not: what ranks plans is one figure."""
    if resolved.problem.kind != "train":
        return resolved
    return unfixed(resolved, {**resolved.problem.options, "choice": "fastest"})


def _solved(
    resolved: Resolved, told_apart: Distinctness, best: Envelope, without: frozenset[str], limits: Limits
) -> Envelope | None:
    options: Mapping[str, Any] = told_apart.without(best, resolved.problem.options, sorted(without))
    if any(value == [] for value in (*options.values(), *dict(options.get("search") or {}).values())):
        return None
    limits.tell(f"without {', '.join(sorted(without))}")
    try:
        return solve(unfixed(resolved, options), limits, level="static")
    except Infeasible:
        return None


def _cost(plan: Envelope) -> float:
    """The objective, less of which is better, without what rounding makes of equal ones."""
    objective = plan.certificate.objective
    value = float(f"{objective.value:.9g}") if objective.value is not None else float("inf")
    return -value if objective.sense == "maximize" else value

"""The best few distinct plans of a problem, each a full plan, ranked at the static level."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from planner.alternatives.axes import unfixed
from planner.alternatives.best_distinct import best_distinct
from planner.alternatives.parts import distinctness
from planner.api import solve
from planner.documents.files import digest
from planner.errors import Infeasible, PlannerError
from planner.plan.schema import Envelope
from planner.problem.resolve import Resolved
from planner.progress import Limits
from planner.solvers.result import relative_loss


@dataclass(frozen=True, slots=True)
class Alternatives:
    """Plans, the best first, how they are told apart, and the parts of each that are what tells."""

    plans: tuple[Envelope, ...]
    distinct: str
    parts: tuple[frozenset[str], ...] = ()
    preferred: Envelope | None = None  # what `solve` takes, where that is another than the best by the costs alone

    def loss(self, place: int) -> float:
        """By what share a plan's objective is worse than that of the best."""
        return self.loss_of(self.plans[place])

    def loss_of(self, plan: Envelope) -> float:
        """The same of any plan of the problem."""
        best, value = self.plans[0].certificate.objective, plan.certificate.objective
        if best.value is None or value.value is None or not best.value:
            return 0.0
        return relative_loss(best.value, value.value, best.sense)


def alternatives(resolved: Resolved, count: int, limits: Limits) -> Alternatives:
    """At most `count` plans; fewer where the problem has no more that are told apart.

    The problem in each plan is the one given, without the parts that were left out to come by it; where the problem
    leaves its confidence open, all keep their limits at that of the best. Raises PlannerError for a count below 1,
    Infeasible where there is no plan at all, Stopped where a limit came before one.
    """
    if count < 1:
        raise PlannerError(f"must be 1 at least, found {count}", where="--alternatives", hint="write for example 3")
    told_apart = distinctness(resolved.problem)
    whole = _ranked_by_value(resolved)
    best = solve(whole, limits, level="static")
    confidence = best.certificate.confidence
    own = best if whole is resolved else solve(replace(resolved, confidence=confidence), limits, level="static")
    best = own if own.decision != best.decision and _cost(own) == _cost(best) else best
    whole = replace(whole, confidence=confidence)
    solved: dict[str, Envelope | None] = {digest(whole.problem.options): best}

    def solve_without(without: frozenset[str]) -> tuple[float, frozenset[str], Envelope] | None:
        left = told_apart.without(best, whole.problem.options, sorted(without))
        plans = [_solved(whole, options, limits, solved) for options in left]
        rows = [(_cost(plan), told_apart.parts(plan), plan) for plan in plans if plan is not None]
        return min(rows, key=lambda row: (row[0], len(row[1])), default=None)

    ranked = best_distinct(solve_without, count)
    plans, parts = (entry.solution for entry in ranked), (entry.parts for entry in ranked)
    preferred = None if own.decision == best.decision else own
    return Alternatives(tuple(plans), told_apart.words, tuple(parts), preferred)


def _ranked_by_value(resolved: Resolved) -> Resolved:
    """As good as the costs say, whether such runs were measured or not: what ranks plans is one figure."""
    if resolved.problem.kind not in ("train", "serve"):
        return resolved
    return unfixed(resolved, {**resolved.problem.options, "choice": "fastest"})


def _solved(
    resolved: Resolved, options: Mapping[str, Any], limits: Limits, solved: dict[str, Envelope | None]
) -> Envelope | None:
    """The plan with these options, each solved once; None where there is none."""
    if any(value == [] for value in (*options.values(), *dict(options.get("search") or {}).values())):
        return None
    key = digest(options)
    if key not in solved:
        limits.tell(f"solving plan {len(solved) + 1}")
        try:
            solved[key] = solve(unfixed(resolved, options), limits, level="static")
        except (Infeasible, PlannerError):  # the whole problem has a plan: a kind may refuse axes that no shape has
            solved[key] = None
    return solved[key]


def _cost(plan: Envelope) -> float:
    """The objective, less of which is better, without what rounding makes of equal ones."""
    objective = plan.certificate.objective
    value = float(f"{objective.value:.9g}") if objective.value is not None else float("inf")
    return -value if objective.sense == "maximize" else value

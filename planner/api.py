"""`solve` for every kind."""

from typing import TYPE_CHECKING

from planner.errors import PlannerError
from planner.progress import Limits

if TYPE_CHECKING:
    from planner.plan.schema import Envelope
    from planner.problem.resolve import Resolved


def solve(problem: "Resolved", limits: Limits | None = None) -> "Envelope":
    """The best plan for `problem`, with its certificate.

    Raises planner.infeasible.Infeasible when no plan meets all limits, planner.infeasible.Stopped when a limit of the
    solve came first, and PlannerError for a kind whose plans are read but not made.
    """
    from planner.kinds.registry import find_kind, kind_names

    kind = find_kind(problem.problem.kind, where=problem.where(("kind",)))
    if kind.solve is None:
        solved = ", ".join(f"`{name}`" for name in kind_names() if find_kind(name).solve is not None)
        raise PlannerError(
            f"plans of kind `{kind.name}` can be checked but not solved",
            where=problem.where(("kind",)),
            hint=f"the kinds that can be solved are {solved}",
        )
    return kind.solve(problem, limits if limits is not None else Limits(seed=problem.problem.seed))

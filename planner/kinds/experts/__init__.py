"""Expert layouts: where the copies of each expert live, and what share of its tokens each copy serves."""

from planner.kinds.experts.decision import ExpertsDecision, ExpertsOptions
from planner.kinds.registry import Kind
from planner.plan.findings import Finding
from planner.plan.schema import Decision, Envelope
from planner.problem.resolve import Resolved
from planner.progress import Limits


def _check(envelope: Envelope, decision: Decision) -> list[Finding]:
    from planner.kinds.experts.check import check

    assert isinstance(decision, ExpertsDecision)
    return check(envelope, decision)


def _solve(resolved: Resolved, limits: Limits) -> Envelope:
    from planner.kinds.experts.solve import solve

    return solve(resolved, limits)


KIND = Kind(
    name="experts",
    purpose="copies, placement and token shares of the experts of a mixture-of-experts model",
    options=ExpertsOptions,
    decision=ExpertsDecision,
    check=_check,
    solve=_solve,
)

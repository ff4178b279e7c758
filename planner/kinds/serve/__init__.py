"""Serving: which instances, how many for prefill and decode, with which parallelism, on which nodes."""

from planner.kinds.registry import Kind
from planner.kinds.serve.options import ServeDecision, ServeOptions
from planner.plan.findings import Finding
from planner.plan.schema import Decision, Envelope
from planner.problem.resolve import Resolved
from planner.progress import Limits


def _check(envelope: Envelope, decision: Decision) -> list[Finding]:
    from planner.kinds.serve.check import check

    assert isinstance(decision, ServeDecision)
    return check(envelope, decision)


def _solve(resolved: Resolved, limits: Limits) -> Envelope:
    from planner.kinds.serve.solve import solve

    return solve(resolved, limits)


KIND = Kind(
    name="serve",
    purpose="instances, roles, parallelism and placement for serving under SLOs",
    options=ServeOptions,
    decision=ServeDecision,
    check=_check,
    solve=_solve,
)

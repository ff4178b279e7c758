"""Reinforcement-learning post-training: who generates, who trains, on what, and how they overlap."""

from planner.kinds.registry import Kind
from planner.kinds.rl.decision import RlDecision, RlOptions
from planner.plan.findings import Finding
from planner.plan.schema import Decision, Envelope
from planner.problem.resolve import Resolved
from planner.progress import Limits


def _check(envelope: Envelope, decision: Decision) -> list[Finding]:
    from planner.kinds.rl.check import check

    assert isinstance(decision, RlDecision)
    return check(envelope, decision)


def _solve(resolved: Resolved, limits: Limits) -> Envelope:
    from planner.kinds.rl.solve import solve

    return solve(resolved, limits)


KIND = Kind(
    name="rl",
    purpose="placement and schedule of generation and training in RL post-training",
    options=RlOptions,
    decision=RlDecision,
    check=_check,
    proofs=("best_first", "horizon"),
    solve=_solve,
)

"""Refuses plans that fail their check, for what makes use of them."""

from pathlib import Path

from planner.check import check_plan
from planner.errors import PlannerError
from planner.plan.findings import UNVERIFIABLE, first_failure
from planner.plan.schema import Decision, Envelope
from planner.problem.recorded import AtHand


def require_sound(envelope: Envelope, decision: Decision, base: Path | None, hand: AtHand) -> tuple[str, ...]:
    """What of the plan cannot be verified, in words; raises PlannerError for a plan that fails a rule of its check."""
    findings = check_plan(envelope, decision, base=base, hand=hand)
    failure = first_failure(findings)
    if failure is not None:
        raise PlannerError(
            f"the plan fails its check: {failure.rule}: {failure.what}",
            where=failure.where,
            hint="see all of it with `planner check`, and solve again, or `planner check --refresh`",
        )
    away = [finding for finding in findings if finding.verdict == UNVERIFIABLE]
    away.sort(key=lambda finding: not finding.rule.startswith("restated."))
    return (f"{len(away)} parts of the plan are unverifiable: {away[0].what}",) if away else ()

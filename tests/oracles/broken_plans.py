"""Which rules a plan breaks, whatever its kind."""

from typing import Any

from planner.check import check_plan
from planner.kinds.registry import find_kind
from planner.plan.findings import FAILED
from planner.plan.schema import Decision, Envelope
from planner.problem.recorded import AtHand


def failing(document: dict[str, Any]) -> set[str]:
    """Rules that the static check of a plan's document does not find kept."""
    envelope = Envelope.model_validate(document)
    decision = find_kind(envelope.kind).decision.model_validate(envelope.decision)
    return {finding.rule for finding in check_plan(envelope, decision) if not finding.ok}


def failing_with_proof(plan: Envelope, decision: Decision) -> set[str]:
    """Rules that a plan breaks, those of its certificate among them, with no file at hand."""
    findings = check_plan(plan, decision, hand=AtHand(), proof=True)
    return {finding.rule for finding in findings if finding.verdict == FAILED}

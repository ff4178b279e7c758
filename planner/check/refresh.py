"""Prices the decision of a plan anew, with the costs and catalogs of this version."""

from planner.check.restated import not_restated
from planner.documents.files import digest
from planner.errors import PlannerError
from planner.kinds.registry import find_kind
from planner.plan.restated import without_proof
from planner.plan.schema import Decision, Envelope
from planner.problem.recorded import AtHand


def refreshed(envelope: Envelope, decision: Decision, hand: AtHand) -> Envelope:
    """The plan with the same decision and new predictions, digests and version; nothing is proven of it any more.

    Raises PlannerError for a plan that was not solved, or whose problem was edited, for a decision that the problem
    does not have any more, and NotAtHand where inputs are missing.
    """
    kind = find_kind(envelope.kind)
    if not kind.solvable or envelope.certificate.status == "stated":
        finding = not_restated("it was written, not solved", "certificate.status", "solve its problem")
        raise PlannerError(finding.what, where=finding.where, hint=finding.hint)
    if digest(envelope.inputs) != envelope.digests.problem:
        raise PlannerError(
            "`inputs` is not the problem that the plan was made for",
            where="digests.problem",
            hint="restore it, or solve the problem that it is now",
        )
    restated = kind.restate(without_proof(envelope), decision, hand)
    missing = next((part for part in restated.left_out if part.unverifiable), None)
    if missing is not None:
        raise PlannerError(missing.why, where=missing.path, hint=missing.hint)
    return restated.envelope

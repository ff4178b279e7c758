"""Which rules a document of an RL plan breaks."""

from typing import Any

from planner.check import check_plan
from planner.kinds.rl.decision import RlDecision
from planner.plan.schema import Envelope
from planner.verify import checksum


def failed(document: dict[str, Any]) -> set[str]:
    """The names of the rules that do not hold, whoever broke them having written the checksum anew."""
    certificate = document["certificate"]
    if certificate["proof"]:
        certificate["proof"]["checksum"] = checksum(certificate)
    envelope = Envelope.model_validate(document)
    findings = check_plan(envelope, RlDecision.model_validate(envelope.decision), proof=True)
    return {finding.rule for finding in findings if not finding.ok}

"""Placement of many models on groups of devices that they share."""

from planner.kinds.place.decision import PlaceDecision, PlaceOptions
from planner.kinds.registry import Kind
from planner.plan.findings import Finding
from planner.plan.schema import Decision, Envelope


def _check(envelope: Envelope, decision: Decision) -> list[Finding]:
    from planner.kinds.place.check import check

    assert isinstance(decision, PlaceDecision)
    return check(envelope, decision)


KIND = Kind(
    name="place",
    purpose="which models live on which groups of devices, and with what parallelism",
    options=PlaceOptions,
    decision=PlaceDecision,
    check=_check,
)

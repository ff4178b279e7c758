"""The one way in which placements of every form become plans."""

from collections.abc import Iterable
from pathlib import Path

from pydantic import JsonValue

from planner.costs.rates.calibration import Calibration
from planner.documents.files import digest
from planner.kinds.place.decision import PlaceDecision
from planner.kinds.place.replay import gaps_of
from planner.plan.schema import Certificate, Envelope, Evidence, Prediction
from planner.problem.envelope import plan_envelope
from planner.problem.resolve import Resolved, normalised


def place_envelope(
    resolved: Resolved,
    decision: PlaceDecision,
    predictions: Iterable[Prediction],
    certificate: Certificate,
    *,
    solver: str,
    evidence: Evidence,
    assumptions: tuple[str, ...],
    calibration: Calibration | None = None,
) -> Envelope:
    """The plan of a decision; without a calibration where no cost of ours is behind it."""
    return plan_envelope(
        resolved,
        decision,
        certificate,
        predictions,
        evidence,
        assumptions,
        solver=solver,
        digests={
            "calibration": None if calibration is None else calibration.digest,
            "traces": {**resolved.digests()["traces"], **_arrivals(resolved)},
        },
        inputs=_inputs(resolved),
    )


def _inputs(resolved: Resolved) -> dict[str, JsonValue]:
    """The problem with the file of its arrivals by its name alone."""
    inputs, arrivals = normalised(resolved), resolved.problem.options.get("arrivals")
    if arrivals is None:
        return inputs
    return {**inputs, "options": {**resolved.problem.options, "arrivals": Path(str(arrivals)).name}}


def _arrivals(resolved: Resolved) -> dict[str, str]:
    """The digest of replayed arrivals."""
    path = resolved.problem.options.get("arrivals")
    return {} if path is None else {"arrivals": digest(gaps_of(str(path), "arrivals").tolist())}

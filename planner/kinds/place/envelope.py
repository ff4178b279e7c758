"""The one way in which placements of every form become plans."""

from collections.abc import Iterable

from planner import __version__
from planner.costs.rates.calibration import Calibration
from planner.documents.files import digest
from planner.kinds.place.decision import PlaceDecision
from planner.plan.schema import SCHEMA, Certificate, Digests, Envelope, Evidence, Prediction, Software
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
    inputs, known = normalised(resolved), resolved.digests()
    return Envelope(
        schema=SCHEMA,
        kind="place",
        name=resolved.problem.name,
        software=Software(planner=__version__, solver=solver),
        seed=resolved.problem.seed,
        digests=Digests(
            problem=digest(inputs),
            models=known["models"],
            hardware=known["hardware"],
            calibration=None if calibration is None else calibration.digest,
            traces=known["traces"],
        ),
        inputs=inputs,
        decision=decision.model_dump(mode="json", exclude_none=True),
        predictions=tuple(predictions),
        certificate=certificate,
        evidence=evidence,
        assumptions=assumptions,
    )

"""The one way in which placements of every form become plans."""

from collections.abc import Iterable
from pathlib import Path

from pydantic import JsonValue

from planner import __version__
from planner.costs.rates.calibration import Calibration
from planner.documents.files import digest
from planner.kinds.place.decision import PlaceDecision
from planner.kinds.place.replay import gaps_of
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
    inputs, known = _inputs(resolved), resolved.digests()
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
            traces={**known["traces"], **_arrivals(resolved)},
        ),
        inputs=inputs,
        decision=decision.model_dump(mode="json", exclude_none=True),
        predictions=tuple(predictions),
        certificate=certificate,
        evidence=evidence,
        assumptions=assumptions,
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

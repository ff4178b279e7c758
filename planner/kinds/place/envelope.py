"""The one way in which placements of every form become plans."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pydantic import JsonValue

from planner.costs.rates.calibration import Calibration
from planner.documents.files import digest
from planner.kinds.place.decision import PlaceDecision
from planner.kinds.place.replay import gaps_of
from planner.plan.findings import Finding
from planner.plan.restated import SOLVED_AGAIN
from planner.plan.schema import Certificate, Envelope, Evidence, Objective, Prediction
from planner.problem.envelope import plan_envelope
from planner.problem.resolve import Resolved, normalised
from planner.solvers.result import relative_gap

TOLERANCE = 1e-6
STOPPED = "the search was stopped before its proof"


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


def certificate(
    claim: str,
    objective: Objective,
    bound: float | None,
    open_reason: str,
    axes: Mapping[str, Sequence[JsonValue]],
    candidates: int,
    stop_reason: str = "finished",
) -> Certificate:
    """Of an objective that is known: `optimal` where the bound meets it, else with the reason why that is open.

    `claim` has `{bound}` where an open one names the bound.
    """
    gap = relative_gap(objective.value, bound)
    closed = gap is not None and gap <= TOLERANCE
    return Certificate(
        claim=claim.format(bound="" if closed else " than the bound"),
        status="optimal" if closed else "feasible",
        stop_reason="finished" if closed else stop_reason,
        objective=objective,
        bound=bound,
        gap=gap,
        gap_reason=None if closed else open_reason if stop_reason == "finished" else STOPPED,
        tolerance=TOLERANCE,
        axes={name: [*values] for name, values in axes.items()},
        candidates=candidates,
        proof={"method": SOLVED_AGAIN} if bound is not None else {},
    )


def bound_again(stated: Certificate, again: float | None, whose: str) -> Finding:
    """Whether a bound is that of the problem solved again; where the search was stopped, whether it is no tighter."""
    bound, sign = stated.bound, 1.0 if stated.objective.sense == "maximize" else -1.0
    what = f"states the bound {bound}, {whose} give {again}"
    if bound is None or again is None:
        return Finding("certificate.bound_again", False, what, "certificate.bound", "solve again")
    room = TOLERANCE * max(abs(again), abs(bound))
    right = sign * (bound - again) >= -room and (stated.stop_reason != "finished" or abs(bound - again) <= room)
    what = f"states the bound {bound:.9g}, {whose} give {again:.9g}"
    return Finding("certificate.bound_again", right, what, "certificate.bound", "solve again")


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

"""The envelope of a plan: what plans of every kind state alike of their problem, around what a kind decides."""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import JsonValue

from planner import __version__
from planner.documents.files import digest
from planner.plan.schema import SCHEMA, Certificate, Decision, Digests, Envelope, Evidence, Prediction, Software
from planner.problem.resolve import Resolved, normalised


def plan_envelope(
    resolved: Resolved,
    decision: Decision,
    certificate: Certificate,
    predictions: Iterable[Prediction],
    evidence: Evidence,
    assumptions: Iterable[str],
    *,
    solver: str,
    digests: Mapping[str, Any] | None = None,
    inputs: dict[str, JsonValue] | None = None,
) -> Envelope:
    """The plan of a decision.

    `inputs` is the problem as the plan carries it, the whole of it where absent. `digests` are those that a kind has
    beside the problem, its models, hardware and traces, or in their place.
    """
    inputs = normalised(resolved) if inputs is None else inputs
    known = {"problem": digest(inputs), **resolved.digests(), **(digests or {})}
    return Envelope(
        schema=SCHEMA,
        kind=resolved.problem.kind,
        name=resolved.problem.name,
        software=Software(planner=__version__, solver=solver),
        seed=resolved.problem.seed,
        digests=Digests(**known),
        inputs=inputs,
        decision=decision.model_dump(mode="json", exclude_none=True),
        predictions=tuple(predictions),
        certificate=certificate,
        evidence=evidence,
        assumptions=tuple(assumptions),
    )

"""Problems with their limits at a confidence that was chosen for them, and as their users wrote them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from planner.plan.schema import Certificate, Envelope
from planner.problem.resolve import Resolved
from planner.problem.schema import Problem, WorkloadSpec

BY_ESTIMATE = 0.5  # at which limits stand as they are


def at_confidence(resolved: Resolved, confidence: float) -> Resolved:
    """The problem with its limits at a confidence where they state none; what is expected counts no more."""
    problem = _at_confidence(resolved.problem, confidence)
    specs = {spec.name: spec for spec in problem.workloads}
    workloads = tuple(replace(each, spec=specs[each.spec.name]) for each in resolved.workloads)
    return replace(resolved, problem=problem, workloads=workloads)


def at_confidence_of(problem: Problem, certificate: Certificate) -> Problem:
    """The problem with its limits at the confidence that was chosen for a plan, where one was."""
    confidence = certificate.chosen_confidence
    return problem if confidence is None else _at_confidence(problem, confidence)


def problem_as_written(plan: Envelope) -> dict[str, Any]:
    """The problem of a plan as its user wrote it, defaults filled in."""
    return as_written(plan.inputs, plan.certificate.model_dump(mode="json", include={"expected", "by_default"}))


def as_written(inputs: Mapping[str, Any], certificate: Mapping[str, Any]) -> dict[str, Any]:
    """`problem_as_written` of parsed JSON: without the confidence that the certificate says was chosen.

    Where what is expected counted, the problem asks for it again. A workload that states just what was chosen for
    others counts as one of them: plans do not tell these apart. Parts of another form than that of plans are left as
    they are, for their schema to refuse.
    """
    expected, workloads = certificate.get("expected"), inputs.get("workloads")
    chosen = expected or certificate.get("by_default")
    if not isinstance(chosen, Mapping) or not isinstance(workloads, list):
        return dict(inputs)
    confidence, objective = chosen.get("confidence"), inputs.get("objective")
    if not expected and confidence == BY_ESTIMATE:
        return dict(inputs)  # such plans are of the problem as it stands
    written = {**inputs, "workloads": [_unsaid(each, confidence) for each in workloads]}
    asks = {"objective": {**objective, "expected": True}} if expected and isinstance(objective, Mapping) else {}
    return written | asks


def _at_confidence(problem: Problem, confidence: float) -> Problem:
    workloads = tuple(_at(workload, confidence) for workload in problem.workloads)
    objective = problem.objective.model_copy(update={"expected": None})
    return problem.model_copy(update={"workloads": workloads, "objective": objective})


def _at(workload: WorkloadSpec, confidence: float) -> WorkloadSpec:
    slo = workload.slo
    if slo.confidence is not None or not slo.has_time_limits:
        return workload
    return workload.model_copy(update={"slo": slo.model_copy(update={"confidence": confidence})})


def _unsaid(workload: Any, confidence: object) -> Any:  # noqa: ANN401 - parsed JSON
    slo = workload.get("slo") if isinstance(workload, Mapping) else None
    if not isinstance(slo, Mapping) or slo.get("confidence") != confidence:
        return workload
    return {**workload, "slo": {name: value for name, value in slo.items() if name != "confidence"}}

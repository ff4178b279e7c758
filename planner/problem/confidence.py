"""Problems with their limits at a stated confidence."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from planner.problem.resolve import Resolved
from planner.problem.schema import WorkloadSpec

BY_ESTIMATE = 0.5  # at which limits stand as they are


def at_confidence(resolved: Resolved, confidence: float) -> Resolved:
    """The problem with its limits at a confidence where they state none."""
    return _with(resolved, {each.name: _at(each, confidence) for each in resolved.problem.workloads})


def as_written(inputs: Mapping[str, Any], certificate: Mapping[str, Any]) -> dict[str, Any]:
    """The problem of a plan as its user wrote it: without the confidence that the certificate says was chosen.

    A workload that states just what was chosen for others counts as one of them: plans do not tell these apart. Parts
    of another form than that of plans are left as they are, for their schema to refuse.
    """
    chosen, workloads = certificate.get("expected") or certificate.get("by_default"), inputs.get("workloads")
    if not isinstance(chosen, Mapping) or not isinstance(workloads, list):
        return dict(inputs)
    return {**inputs, "workloads": [_unsaid(each, chosen.get("confidence")) for each in workloads]}


def _with(resolved: Resolved, workloads: Mapping[str, WorkloadSpec]) -> Resolved:
    """The problem with these workloads, by name; what is expected counts no more."""
    problem = resolved.problem
    objective = problem.objective.model_copy(update={"expected": None})
    moved = problem.model_copy(update={"workloads": tuple(workloads.values()), "objective": objective})
    kept = tuple(replace(each, spec=workloads[each.spec.name]) for each in resolved.workloads)
    return replace(resolved, problem=moved, workloads=kept)


def _at(workload: WorkloadSpec, confidence: float) -> WorkloadSpec:
    slo = workload.slo
    if slo.confidence is not None or not any(True for _ in slo.limits()):
        return workload
    return workload.model_copy(update={"slo": slo.model_copy(update={"confidence": confidence})})


def _unsaid(workload: Any, confidence: object) -> Any:  # noqa: ANN401 - parsed JSON
    slo = workload.get("slo") if isinstance(workload, Mapping) else None
    if not isinstance(slo, Mapping) or slo.get("confidence") != confidence:
        return workload
    return {**workload, "slo": {name: value for name, value in slo.items() if name != "confidence"}}

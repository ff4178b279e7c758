"""Problems with their limits at a stated confidence."""

from collections.abc import Mapping
from dataclasses import replace

from planner.problem.resolve import Resolved
from planner.problem.schema import WorkloadSpec

BY_ESTIMATE = 0.5  # at which limits stand as they are


def at_confidence(resolved: Resolved, confidence: float) -> Resolved:
    """The problem with its limits at a confidence where they state none."""
    return _with(resolved, {each.name: _at(each, confidence) for each in resolved.problem.workloads})


def as_they_stand(resolved: Resolved) -> Resolved:
    """The problem with its limits at no confidence."""
    return _with(resolved, {each.name: _stating(each, None) for each in resolved.problem.workloads})


def _with(resolved: Resolved, workloads: Mapping[str, WorkloadSpec]) -> Resolved:
    """The problem with these workloads, by name; what is expected counts no more."""
    problem = resolved.problem
    objective = problem.objective.model_copy(update={"expected": None})
    moved = problem.model_copy(update={"workloads": tuple(workloads.values()), "objective": objective})
    kept = tuple(replace(each, spec=workloads[each.spec.name]) for each in resolved.workloads)
    return replace(resolved, problem=moved, workloads=kept)


def _at(workload: WorkloadSpec, confidence: float) -> WorkloadSpec:
    slo = workload.slo
    states = slo.confidence is not None or not any(True for _ in slo.limits())
    return workload if states else _stating(workload, confidence)


def _stating(workload: WorkloadSpec, confidence: float | None) -> WorkloadSpec:
    return workload.model_copy(update={"slo": workload.slo.model_copy(update={"confidence": confidence})})

"""Problems with their limits at a stated confidence."""

from dataclasses import replace

from planner.problem.resolve import Resolved


def at_confidence(resolved: Resolved, confidence: float) -> Resolved:
    """The problem with all its limits at a confidence."""
    problem = resolved.problem
    workloads = tuple(
        each.model_copy(update={"slo": each.slo.model_copy(update={"confidence": confidence})})
        for each in problem.workloads
    )
    objective = problem.objective.model_copy(update={"expected": None})
    moved = problem.model_copy(update={"workloads": workloads, "objective": objective})
    specs = {spec.name: spec for spec in workloads}
    return replace(
        resolved,
        problem=moved,
        workloads=tuple(replace(each, spec=specs[each.spec.name]) for each in resolved.workloads),
    )

"""Predicted times of a plan that have a limit."""

from collections.abc import Iterator

from planner.plan.schema import Envelope, Prediction
from planner.problem.recorded import recorded_problem
from planner.problem.schema import WorkloadSpec


def limited_predictions(envelope: Envelope) -> Iterator[tuple[str, Prediction, float]]:
    """Workload, prediction and limit in seconds of every predicted time that has one."""
    problem = recorded_problem(envelope.inputs)
    for workload in problem.workloads if problem is not None else ():
        for prediction in envelope.predictions:
            if prediction.of == workload.name:
                limit_s = _limit_s(envelope, workload, prediction)
                if limit_s is not None:
                    yield workload.name, prediction, limit_s


def _limit_s(envelope: Envelope, workload: WorkloadSpec, prediction: Prediction) -> float | None:
    """The limit on this prediction; a mean stands for every statistic that is not predicted itself."""
    stated = {of: bound_s for name, of, bound_s in workload.slo.limits() if f"{name}_s" == prediction.metric}
    if prediction.statistic != "mean":
        return stated.get(prediction.statistic)
    told = {row.statistic for row in envelope.predictions if (row.metric, row.of) == (prediction.metric, workload.name)}
    return min((bound_s for of, bound_s in stated.items() if of == "mean" or of not in told), default=None)

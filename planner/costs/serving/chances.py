"""The chance that each limit on time holds, as far as predictions of the plan's kind err, and that all do.

The logarithm of the true over the predicted time is normal on either side of its median, the prediction, with the 80 %
interval of steady state that the calibration tells (`planner.costs.rates.spread`), or as the plan says that own runs
have it believed: the rule by which `slo.confidence` divides limits. Errors of the time per output token are those of
gaps and whole requests too, as there.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from planner.costs.rates.calibration import Calibration, load_calibration
from planner.costs.rates.spread import all_hold, chance_within, group_of_runs
from planner.errors import PlannerError
from planner.plan.limited import limited_predictions
from planner.plan.schema import Decision, Envelope, Prediction, TimeBelief
from planner.problem.recorded import INPUTS, recorded_model, recorded_problem
from planner.problem.resolve import resolve_pool
from planner.problem.schema import Problem, WorkloadSpec

BY_RUNS = "as own runs tell"
UNFITTED = "of a group of runs that the costs were not fitted to"
BY_NAME = ("default", "none")


@dataclass(frozen=True, slots=True)
class Sure:
    """How sure a predicted time keeps its limit, and what that rests on beside a fit to runs of its group."""

    workload: str
    prediction: Prediction
    chance: float
    basis: str = ""


def errs_as(metric: str) -> str:
    """The time whose predictions err as this one's: gaps and whole requests as the time per output token."""
    return "ttft" if metric.removesuffix("_s") == "ttft" else "tpot"


def chances_together(chances: Iterable[Sure]) -> dict[str, float]:
    """By workload, the chance that all of its limits hold."""
    least: dict[str, dict[str, float]] = {}
    for sure in chances:
        of = least.setdefault(sure.workload, {})
        of[errs_as(sure.prediction.metric)] = min(sure.chance, of.get(errs_as(sure.prediction.metric), 1.0))
    return {workload: all_hold(tuple(of.values())) for workload, of in least.items()}


def share_within_limits(envelope: Envelope, decision: Decision, costs: Calibration) -> float:
    """The share of the requests whose workload keeps all of its limits, in expectation."""
    together = chances_together(chances_of(envelope, decision, costs))
    rates = {row.of: row.value for row in envelope.predictions if row.metric == "requests_per_s"}
    kept = sum(rate * together.get(workload, 1.0) for workload, rate in rates.items())
    return kept / sum(rates.values())


def chances_of(envelope: Envelope, decision: Decision, costs: Calibration | None = None) -> Iterator[Sure]:
    """The chance of every limit on a time of a serving plan.

    Of workloads that own runs tell of as the plan has them believed, of others by its `costs`, where not given those
    that it names; none where these are not at hand.
    """
    problem, calibration = recorded_problem(envelope.inputs), costs or costs_of(envelope)
    if problem is None or calibration is None:
        return
    believed: dict[tuple[str, str], TimeBelief] = {
        (belief.of, belief.metric): belief for belief in envelope.evidence.beliefs
    }
    limited = list(limited_predictions(envelope))
    for workload in problem.workloads:
        rows = [(row, limit_s) for name, row, limit_s in limited if name == workload.name]
        for row, limit_s in rows:
            room = limit_s / row.value if row.value > 0.0 else math.inf
            belief = believed.get((workload.name, f"{errs_as(row.metric)}_s"))
            if belief is not None:
                chance = chance_within(room, -belief.low, belief.high, belief.freedom or math.inf)
                yield Sure(workload.name, row, chance, UNFITTED if belief.role is None else BY_RUNS)
            elif isinstance(calibration, Calibration):
                yield _by_costs(calibration, problem, decision, workload, row, room)


def _by_costs(
    calibration: Calibration,
    problem: Problem,
    decision: Decision,
    workload: WorkloadSpec,
    row: Prediction,
    room: float,
) -> Sure:
    """The chance that a prediction keeps a limit of `room` times its value, as far as predictions of its kind err."""
    groups = _groups(problem, decision, problem.model_of(workload))
    spread = calibration.spreads_of(groups)[errs_as(row.metric)]
    fitted = not calibration.groups or not groups - calibration.groups
    return Sure(workload.name, row, spread.chance(room), "" if fitted else UNFITTED)


def costs_of(envelope: Envelope) -> Calibration | str | None:
    """The costs of a serving plan with limits; why they are not at hand, or None where there is nothing to tell."""
    problem = recorded_problem(envelope.inputs)
    if envelope.kind != "serve" or problem is None or not any(limited_predictions(envelope)):
        return None
    if problem.costs.calibration not in BY_NAME:
        return "how sure the limits are is not known: the calibration file of the plan is not at hand"
    calibration = load_calibration(problem.costs.calibration)
    return calibration if {"ttft", "tpot"} <= set(calibration.spreads) else None


def _groups(problem: Problem, decision: Decision, model: str) -> set[str]:
    """Groups of runs that the roles of a model are of; an empty name of one that is not in the catalog."""
    labels = [pool.label for pool in problem.cluster.pools]
    names = set[str]()
    for role in decision.roles:
        if (role.model or model) != model or role.pool not in labels:
            continue
        arch, index = recorded_model(problem, model), labels.index(role.pool)
        try:
            accelerator = resolve_pool(problem.cluster.pools[index], index, INPUTS).node.accelerator.name
        except PlannerError:
            accelerator = ""
        names.add("" if arch is None or not accelerator else group_of_runs(arch, accelerator, problem.engine.name))
    return names or {""}

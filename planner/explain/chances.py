"""The chance that each limit on time holds, as far as predictions of the plan's kind err.

The logarithm of the true over the predicted time is normal on either side of its median, the prediction, with the 80 %
interval of steady state that the calibration tells (`planner.costs.rates.spread`), or as the plan says that own runs
have it believed: the rule by which `slo.confidence` divides limits. Errors of the time per output token are those of
gaps and whole requests too, as there.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from planner.costs.rates.calibration import Calibration, load_calibration
from planner.costs.rates.spread import chance_within, group_of_runs
from planner.errors import PlannerError
from planner.explain.facts import Fact
from planner.explain.stated import limited_predictions
from planner.plan.schema import Decision, Envelope, Prediction
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


def chance_facts(envelope: Envelope, decision: Decision) -> Iterator[Fact]:
    """One fact a limit of a serving plan, and one of all of a workload that has several."""
    calibration = None if envelope.evidence.beliefs else _calibration(envelope)
    if isinstance(calibration, str):
        yield Fact("note", calibration)
        return
    if calibration is not None and calibration.digest != envelope.digests.calibration:
        yield Fact("note", "the costs have changed since the plan: how sure its limits are is by those of today")
    chances: dict[str, dict[str, float]] = {}
    for sure in chances_of(envelope, decision):
        name = sure.prediction.metric.removesuffix("_s")
        of = chances.setdefault(sure.workload, {})
        of[name] = min(sure.chance, of.get(name, 1.0))
        what = f"`{sure.workload}` keeps its limit on {sure.prediction.statistic} {name} with {sure.chance:.0%}"
        what += f", {sure.basis}" if sure.basis else ""
        yield Fact("limit", what, (sure.workload, name), figures={"chance": sure.chance})
    for workload, each in chances.items():
        if len(each) > 1:
            yield _together(workload, tuple(each.values()))


def chances_of(envelope: Envelope, decision: Decision) -> Iterator[Sure]:
    """The chance of every limit on a time of a serving plan.

    Of workloads that own runs tell of as the plan has them believed, of others by its costs; none where these are not
    at hand.
    """
    problem, calibration = recorded_problem(envelope.inputs), _calibration(envelope)
    if problem is None or calibration is None:
        return
    believed = {(belief.of, belief.metric): belief for belief in envelope.evidence.beliefs}
    limited = list(limited_predictions(envelope))
    for workload in problem.workloads:
        rows = [(row, limit_s) for name, row, limit_s in limited if name == workload.name]
        for row, limit_s in rows:
            room = limit_s / row.value if row.value > 0.0 else math.inf
            belief = believed.get((workload.name, "ttft_s" if row.metric == "ttft_s" else "tpot_s"))
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
    spread = calibration.spreads_of(groups)["ttft" if row.metric == "ttft_s" else "tpot"]
    fitted = not calibration.groups or not groups - calibration.groups
    return Sure(workload.name, row, spread.chance(room), "" if fitted else UNFITTED)


def _calibration(envelope: Envelope) -> Calibration | str | None:
    """The costs of a serving plan with limits; why they are not at hand, or None where there is nothing to tell."""
    problem = recorded_problem(envelope.inputs)
    if envelope.kind != "serve" or problem is None or not any(limited_predictions(envelope)):
        return None
    if problem.costs.calibration not in BY_NAME:
        return "how sure the limits are is not told: the calibration file of the plan is not at hand"
    calibration = load_calibration(problem.costs.calibration)
    return calibration if {"ttft", "tpot"} <= set(calibration.spreads) else None


def _together(workload: str, chances: tuple[float, ...]) -> Fact:
    """All limits of a workload: the least of their chances where errors go together, their product where not at all."""
    least, apart = min(chances), math.prod(chances)
    what = f"all limits of `{workload}` hold with {apart:.0%} to {least:.0%}, by how far their errors go together"
    return Fact("limit", what, (workload, "slo"), figures={"chance": least, "chance_apart": apart})


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

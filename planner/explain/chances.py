"""The chance that each limit on time holds, as far as predictions of the plan's kind err.

The logarithm of the true over the predicted time is normal on either side of its median, the prediction, with the 80 %
interval of steady state that the calibration tells (`planner.costs.rates.spread`): the rule by which `slo.confidence`
divides limits. Errors of the time per output token are those of gaps and whole requests too, as there.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from planner.costs.rates.calibration import Calibration, load_calibration
from planner.costs.rates.spread import group_of_runs
from planner.errors import PlannerError
from planner.explain.facts import Fact
from planner.explain.stated import limited_predictions
from planner.plan.schema import Decision, Envelope, Prediction
from planner.problem.recorded import INPUTS, recorded_model, recorded_problem
from planner.problem.resolve import resolve_pool
from planner.problem.schema import Problem

BY_NAME = ("default", "none")


@dataclass(frozen=True, slots=True)
class Sure:
    """How sure a predicted time keeps its limit, and whether the costs were fitted to runs of its group."""

    workload: str
    prediction: Prediction
    chance: float
    fitted: bool


def chance_facts(envelope: Envelope, decision: Decision) -> Iterator[Fact]:
    """One fact a limit of a serving plan, and one of all of a workload that has several."""
    calibration = _calibration(envelope)
    if isinstance(calibration, str):
        yield Fact("note", calibration)
        return
    if calibration is None:
        return
    if calibration.digest != envelope.digests.calibration:
        yield Fact("note", "the costs have changed since the plan: how sure its limits are is by those of today")
    chances: dict[str, dict[str, float]] = {}
    for sure in chances_of(envelope, decision):
        name = sure.prediction.metric.removesuffix("_s")
        of = chances.setdefault(sure.workload, {})
        of[name] = min(sure.chance, of.get(name, 1.0))
        what = f"`{sure.workload}` keeps its limit on {sure.prediction.statistic} {name} with {sure.chance:.0%}"
        what += "" if sure.fitted else ", of a group of runs that the costs were not fitted to"
        yield Fact("limit", what, (sure.workload, name), figures={"chance": sure.chance})
    for workload, each in chances.items():
        if len(each) > 1:
            yield _together(workload, tuple(each.values()))


def chances_of(envelope: Envelope, decision: Decision) -> Iterator[Sure]:
    """The chance of every limit on a time of a serving plan; none where the costs of the plan are not at hand."""
    problem, calibration = recorded_problem(envelope.inputs), _calibration(envelope)
    if problem is None or calibration is None or isinstance(calibration, str):
        return
    limited = list(limited_predictions(envelope))
    for workload in problem.workloads:
        groups = _groups(problem, decision, problem.model_of(workload))
        spreads = calibration.spreads_of(groups)
        fitted = not calibration.groups or not groups - calibration.groups
        for name, row, limit_s in limited:
            if name == workload.name:
                spread = spreads["ttft" if row.metric == "ttft_s" else "tpot"]
                yield Sure(name, row, spread.chance(limit_s / row.value) if row.value > 0.0 else 1.0, fitted)


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

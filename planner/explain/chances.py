"""The chance that each limit on time holds, as far as predictions of the plan's kind err.

The logarithm of the true over the predicted time is normal on either side of its median, the prediction, with the 80 %
interval of steady state that the calibration tells (`planner.costs.rates.spread`): the rule by which `slo.confidence`
divides limits. Errors of the time per output token are those of gaps and whole requests too, as there.
"""

import math
from collections.abc import Iterator

from planner.costs.rates.calibration import Calibration, load_calibration
from planner.costs.rates.spread import group_of_runs
from planner.errors import PlannerError
from planner.explain.facts import Fact
from planner.explain.stated import limited_predictions
from planner.plan.schema import Decision, Envelope
from planner.problem.recorded import INPUTS, recorded_model, recorded_problem
from planner.problem.resolve import resolve_pool
from planner.problem.schema import Problem

BY_NAME = ("default", "none")


def chance_facts(envelope: Envelope, decision: Decision) -> Iterator[Fact]:
    """One fact a limit of a serving plan, and one of all of a workload that has several."""
    problem = recorded_problem(envelope.inputs)
    limited = list(limited_predictions(envelope))
    if envelope.kind != "serve" or problem is None or not limited:
        return
    if problem.costs.calibration not in BY_NAME:
        yield Fact("note", "how sure the limits are is not told: the calibration file of the plan is not at hand")
        return
    calibration = load_calibration(problem.costs.calibration)
    if not {"ttft", "tpot"} <= set(calibration.spreads):
        return
    if calibration.digest != envelope.digests.calibration:
        yield Fact("note", "the costs have changed since the plan: how sure its limits are is by those of today")
    for workload in problem.workloads:
        key = problem.model_of(workload)
        groups = _groups(problem, decision, key)
        spreads = calibration.spreads_of(groups)
        chances: dict[str, float] = {}
        for prediction, limit_s in ((row, limit_s) for name, row, limit_s in limited if name == workload.name):
            name = prediction.metric.removesuffix("_s")
            spread = spreads["ttft" if name == "ttft" else "tpot"]
            chance = spread.chance(limit_s / prediction.value) if prediction.value > 0.0 else 1.0
            chances[name] = min(chance, chances.get(name, 1.0))
            what = f"`{workload.name}` keeps its limit on {prediction.statistic} {name} with {chance:.0%}"
            yield Fact("limit", what + _known(calibration, groups), (workload.name, name), figures={"chance": chance})
        if len(chances) > 1:
            yield _together(workload.name, tuple(chances.values()))


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


def _known(calibration: Calibration, groups: set[str]) -> str:
    strange = groups - calibration.groups
    return ", of a group of runs that the costs were not fitted to" if calibration.groups and strange else ""

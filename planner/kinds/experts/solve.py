"""Solves an expert-placement problem: reads loads, places the experts of each layer, with a proven bound each."""

import numpy as np

from planner.arrays import Floats
from planner.errors import Conflict, Infeasible
from planner.experts.ahead import plan_ahead
from planner.experts.instance import lay_out
from planner.experts.layout import Layout
from planner.experts.ranks import Ranks
from planner.experts.readers import read_resident
from planner.experts.steps import CopyRules, StepPlanner
from planner.kinds.experts.plan import envelope
from planner.kinds.experts.setting import ExpertsSetting, memory_of, read_setting
from planner.plan.schema import (
    Envelope,
)
from planner.problem.resolve import Resolved
from planner.progress import Limits
from planner.solvers.result import Status

EVEN = 1.0  # imbalance where all ranks are equally loaded, which no layout beats


def solve(resolved: Resolved, limits: Limits) -> Envelope:
    """The layout of every expert layer, as a plan.

    Raises PlannerError for loads that do not fit the model or the ranks, and Infeasible where the slots do not hold
    the experts, or their weights not the memory.
    """
    setting = read_setting(resolved)
    memory = memory_of(setting)
    layout = _layout(setting, limits)
    require_room(setting, layout)
    return envelope(setting, layout, memory)


def _layout(setting: ExpertsSetting, limits: Limits) -> Layout:
    options, ranks = setting.options, setting.ranks
    if options.policy == "realtime":
        return _homes(ranks, setting.micro_batch_WLE.mean(axis=0), setting.rules)
    if options.policy == "periodic":
        resident = None if options.resident is None else read_resident(options.resident)
        return plan_ahead(setting.loads.load_WLE, ranks, groups=options.groups, resident_LP=resident)
    return lay_out(setting.instance, setting.wishes(limits))


def require_room(setting: ExpertsSetting, layout: Layout) -> None:
    """Infeasible where a rank gets more tokens of one layer than it has room for, in any window."""
    most = setting.options.peak_tokens
    if most is None:
        return
    planned = setting.planned_LE
    top = float(setting.ranks.speed_R.max() / setting.ranks.speed_R.sum())
    reached, least = (
        float((planned.sum(axis=1) * ratio * top).max()) for ratio in (layout.imbalance_L, layout.bound_L)
    )
    if reached > most:
        conflict: list[Conflict] = [
            {"limit": f"peak_tokens = {most}", "nearest": f"{int(np.ceil(reached))} tokens"},
            {"limit": f"ep = {setting.options.ep}", "nearest": "more ranks, or smaller steps"},
        ]
        raise Infeasible(conflict, proved=least > most)


def _homes(ranks: Ranks, load_LE: Floats, rules: CopyRules) -> Layout:
    """Homes, and the copies that the mean load asks for until the first step is planned."""
    rows = StepPlanner(ranks, load_LE.shape[1], rules=rules).plan_rows(load_LE)
    filled_NP = rows.expert_NP.copy()
    for row_P, load_E in zip(filled_NP, load_LE, strict=True):
        heaviest = np.argsort(-load_E, kind="stable")
        for rank in range(ranks.num_ranks):
            slots_P = row_P[ranks.first_R[rank] : ranks.first_R[rank + 1]]
            spare = (expert for expert in heaviest if expert not in slots_P)
            for slot in np.nonzero(slots_P < 0)[0]:
                slots_P[slot] = next(spare)
    bound_L = np.minimum(EVEN, rows.imbalance_N)
    closed = bool((rows.imbalance_N <= 1.0 + 1e-9).all())
    status = Status.OPTIMAL if closed else Status.FEASIBLE
    return Layout(filled_NP, rows.quota_NP, rows.imbalance_N, bound_L, status)

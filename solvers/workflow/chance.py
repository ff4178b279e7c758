"""Options of the stages of a graph: least cost with a latency limit that holds with a given probability.

Source      Zhang et al., "Jolteon: Unleashing the Promise of Serverless for Serverless Workflows", NSDI 2024,
            section 4; there the grid is relaxed and sampled, here every option is one that was measured
Sets        s in S stages in topological order, parents P_s;  o in O_s options;  k in K scenarios, equally likely
Parameters  c_so cost;  t_sok [s] time in scenario k;  L [s] limit;  p probability
Variables   x_s in O_s
Minimise    sum_s c_s,x_s
(C1) |{k: l_k <= L}| >= p |K|,   l_k the longest path of t_s,x_s,k over S

Method      best-first branch and bound over the stages in order. A node fixes the first stages; its bound is their
            cost and the least cost of every other; it is left out where (C1) fails although every other stage takes, in
            every scenario, the least time of all its options: longest paths rise with every time.
"""

import heapq
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats
from planner.errors import PlannerError
from planner.solvers.result import SolveResult, Status

SOLVER = "best-first branch and bound over options"
WHERE = "stages"
DUST = 1e-9  # of the number of scenarios, for shares that are decimals


@dataclass(frozen=True, slots=True, eq=False)
class StageOptions:
    """One stage: the stages it waits for, and for every option its cost [O] and its times [s] by scenario [O, K]."""

    parents: tuple[int, ...]
    cost_O: Floats
    time_s_OK: Floats


@dataclass(frozen=True, slots=True, eq=False)
class ChanceProblem:
    """Stages in topological order; raises PlannerError for what cannot be a graph of priced options."""

    stages: tuple[StageOptions, ...]
    limit_s: float
    probability: float

    def __post_init__(self) -> None:
        if not self.stages:
            raise PlannerError("there is no stage", where=WHERE, hint="give at least one")
        scenarios = {stage.time_s_OK.shape[1] for stage in self.stages}
        if len(scenarios) > 1 or 0 in scenarios:
            counts = ", ".join(map(str, sorted(scenarios)))
            raise PlannerError(
                f"stages have {counts} scenarios", where=WHERE, hint="give every stage the same number, at least 1"
            )
        for number, stage in enumerate(self.stages):
            _require_stage(number, stage)
        if not 0.0 < self.probability <= 1.0:
            raise PlannerError(
                f"a limit that holds with probability {self.probability:g}", where=WHERE, hint="above 0, at most 1"
            )

    @property
    def required(self) -> int:
        """Scenarios in which the limit must hold."""
        scenarios = int(self.stages[0].time_s_OK.shape[1])
        return math.ceil(self.probability * scenarios - DUST * scenarios)


def _require_stage(number: int, stage: StageOptions) -> None:
    if not len(stage.cost_O):
        raise PlannerError(f"stage {number} has no option", where=WHERE, hint="give at least one")
    if len(stage.cost_O) != len(stage.time_s_OK):
        what = f"stage {number} has {len(stage.cost_O)} costs and times of {len(stage.time_s_OK)} options"
        raise PlannerError(what, where=WHERE, hint="give each option one cost and one row of times")
    if any(not 0 <= parent < number for parent in stage.parents):
        what = f"stage {number} waits for {', '.join(map(str, stage.parents))}"
        raise PlannerError(what, where=WHERE, hint="order the stages so that each waits for earlier ones alone")
    if not (np.isfinite(stage.cost_O).all() and np.isfinite(stage.time_s_OK).all()) or stage.time_s_OK.min() < 0:
        raise PlannerError(f"costs or times of stage {number} are not numbers of 0 or more", where=WHERE)


def latency_s(problem: ChanceProblem, time_s_SK: Sequence[Floats]) -> Floats:
    """The longest path in every scenario [K], of one row of times for each stage."""
    ends: list[Floats] = []
    for stage, time_s_K in zip(problem.stages, time_s_SK, strict=True):
        begun = np.max([ends[parent] for parent in stage.parents], axis=0) if stage.parents else 0.0
        ends.append(np.asarray(begun + time_s_K))
    return np.asarray(np.max(ends, axis=0))


def share_held(problem: ChanceProblem, options: Sequence[int]) -> float:
    """The share of scenarios in which these options keep the limit."""
    rows = [stage.time_s_OK[option] for stage, option in zip(problem.stages, options, strict=True)]
    return float(np.mean(latency_s(problem, rows) <= problem.limit_s))


def least_limit_s(problem: ChanceProblem) -> float:
    """A limit below which no options hold with the probability asked: that of the least times, scenario by scenario."""
    rows = [stage.time_s_OK.min(axis=0) for stage in problem.stages]
    return float(np.sort(latency_s(problem, rows))[problem.required - 1])


def cheapest_options(problem: ChanceProblem, *, node_limit: int | None = None) -> SolveResult[tuple[int, ...]]:
    """The cheapest option of every stage that keeps the limit, proven over these scenarios.

    INFEASIBLE where no options do; with `node_limit` nodes looked at, UNKNOWN with the bound reached.
    """
    started_s = time.perf_counter()
    least_cost = [float(stage.cost_O.min()) for stage in problem.stages]
    rest = [sum(least_cost[s:]) for s in range(len(least_cost) + 1)]
    fastest = [stage.time_s_OK.min(axis=0) for stage in problem.stages]
    nodes: list[tuple[float, tuple[int, ...], float]] = [(rest[0], (), 0.0)]  # bound, options so far, their cost
    looked, bound = 0, rest[0]
    while nodes:
        bound, options, cost = heapq.heappop(nodes)
        if node_limit is not None and looked >= node_limit:
            return SolveResult(Status.UNKNOWN, "node_limit", None, None, bound, _since(started_s), SOLVER)
        looked += 1
        fixed = len(options)
        rows = [problem.stages[s].time_s_OK[option] for s, option in enumerate(options)]
        if np.count_nonzero(latency_s(problem, [*rows, *fastest[fixed:]]) <= problem.limit_s) < problem.required:
            continue
        if fixed == len(problem.stages):
            return SolveResult(Status.OPTIMAL, "finished", options, cost, cost, _since(started_s), SOLVER)
        for option, price in enumerate(problem.stages[fixed].cost_O):
            paid = cost + float(price)
            heapq.heappush(nodes, (paid + rest[fixed + 1], (*options, option), paid))
    return SolveResult(Status.INFEASIBLE, "finished", None, None, None, _since(started_s), SOLVER)


def _since(started_s: float) -> float:
    return time.perf_counter() - started_s

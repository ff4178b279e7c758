"""Options of the stages of a graph, each simulated: least cost with limits that hold for a share of the requests.

Source      the question of Zhang et al., "Jolteon", NSDI 2024, section 4, where stages are queues and engines besides
            functions: a stage's times are what a simulation of it gives for the requests as stages before end them
Sets        s in S stages in topological order, parents P_s;  o in O_s options;  r in R requests;  p in resources
Parameters  a_r [s] arrival;  c_so cost;  u_sop and U_p, what options use of a resource and what there is of it
            f_so: ready times [R] -> first output and end [R] [s];  e_so,r <= f_so(b)_r - b_r, a request alone
            limits l on first output or end: share q_l of judged requests within L_l [s]
Variables   x_s in O_s
Minimise    sum_s c_s,x_s
(C1) sum_s u_s,x_s,p <= U_p                                       for p
(C2) |{r judged: t_r - a_r <= L_l}| >= q_l |judged|               for l
     b_sr = max over P_s of ends, or a_r;  ends = f_s,x_s(b_s);  t_r the latest of the stages that nobody waits for

Method      best-first branch and bound over the stages in order. A node fixes the first stages, whose simulations are
            kept for all nodes that agree on them and on what is before them; it is left out where (C2) fails although
            every other stage takes the least time that a request takes alone in any option. The first node with every
            stage fixed is the cheapest.
"""

import heapq
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from planner.arrays import Bools, Floats
from planner.errors import PlannerError
from planner.solvers.result import SolveResult, Status
from planner.solvers.workflow.cover import CHOSEN, DEARER, LATE, NO_ROOM, Cover

SOLVER = "best-first branch and bound over simulated stages"
WHERE = "stages"
DUST = 1e-9  # of the number of requests, for shares that are decimals


@dataclass(frozen=True, slots=True, eq=False)
class Times:
    """First output and end of every request [R], or how long they take at least; inf where there is none."""

    first_s_R: Floats
    end_s_R: Floats


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedOption:
    """An option of a stage: `run` gives its times for requests that are ready at given times [R]."""

    cost: float
    run: Callable[[Floats], Times]
    alone: Times
    uses: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedStage:
    """The stages that it waits for, and its options."""

    parents: tuple[int, ...]
    options: tuple[SimulatedOption, ...]


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """That a share of the requests has its end, or its first output, within a time of arrival."""

    bound_s: float
    share: float
    of_first: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedGraph:
    """Stages in topological order; raises PlannerError for what cannot be a graph of options."""

    stages: tuple[SimulatedStage, ...]
    arrival_s_R: Floats
    judged_R: Bools
    limits: tuple[TimeLimit, ...]
    available: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.stages or not self.judged_R.any():
            raise PlannerError("there is no stage, or no request to judge", where=WHERE, hint="give at least one")
        for number, stage in enumerate(self.stages):
            if not stage.options:
                raise PlannerError(f"stage {number} has no option", where=WHERE, hint="give at least one")
            if any(not 0 <= parent < number for parent in stage.parents):
                what = f"stage {number} waits for {', '.join(map(str, stage.parents))}"
                raise PlannerError(what, where=WHERE, hint="order stages so that each waits for earlier ones alone")

    @property
    def last(self) -> tuple[int, ...]:
        """Stages that nobody waits for."""
        waited = {parent for stage in self.stages for parent in stage.parents}
        return tuple(s for s in range(len(self.stages)) if s not in waited)

    def ready(self, s: int, times: Sequence[Times]) -> Floats:
        """When requests can begin a stage, of the times of all before it [R]."""
        parents = self.stages[s].parents
        return np.max([times[parent].end_s_R for parent in parents], axis=0) if parents else self.arrival_s_R

    def taken(self, times: Sequence[Times]) -> Times:
        """From arrival to first output and end of the whole, of judged requests."""
        first = np.max([times[s].first_s_R for s in self.last], axis=0) - self.arrival_s_R
        end = np.max([times[s].end_s_R for s in self.last], axis=0) - self.arrival_s_R
        return Times(first[self.judged_R], end[self.judged_R])

    def kept(self, taken: Times, limits: Sequence[TimeLimit] | None = None) -> bool:
        """Whether these times keep all limits."""
        return all(share_within(limit, taken) >= limit.share - DUST for limit in limits or self.limits)


@dataclass(slots=True, eq=False)
class Simulations:
    """What was simulated, by stage and the options of it and of all before it; the searches of a graph share them."""

    graph: SimulatedGraph
    known: dict[tuple[int, ...], Times] = field(default_factory=dict)
    runs: int = 0
    _before: list[tuple[int, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for number, stage in enumerate(self.graph.stages):
            above = {number, *stage.parents}.union(*(self._before[parent] for parent in stage.parents))
            self._before.append(tuple(sorted(above)))

    def times(self, options: Sequence[int]) -> list[Times]:
        """Of the first stages, which these options fix."""
        times: list[Times] = []
        for s, option in enumerate(options):
            key = (s, *(options[before] for before in self._before[s]))
            if key not in self.known:
                self.runs += 1
                self.known[key] = self.graph.stages[s].options[option].run(self.graph.ready(s, times))
            times.append(self.known[key])
        return times


def share_within(limit: TimeLimit, taken: Times) -> float:
    """The share of times that keep a limit."""
    values = taken.first_s_R if limit.of_first else taken.end_s_R
    return float(np.mean(values <= limit.bound_s))


def quantile_s(limit: TimeLimit, taken: Times) -> float:
    """The time within which the share of a limit is: the least bound that it would keep."""
    values = np.sort(taken.first_s_R if limit.of_first else taken.end_s_R)
    return float(values[max(math.ceil(limit.share * len(values) - DUST * len(values)), 1) - 1])


def least_taken(graph: SimulatedGraph, fixed: Sequence[Times] = ()) -> Times:
    """Times of the whole that no options go below, with the first stages fixed: all others alone at their fastest."""
    times = list(fixed)
    for s in range(len(times), len(graph.stages)):
        ready, options = graph.ready(s, times), graph.stages[s].options
        first = ready + np.min([option.alone.first_s_R for option in options], axis=0)
        times.append(Times(first, ready + np.min([option.alone.end_s_R for option in options], axis=0)))
    return graph.taken(times)


def cost_of(graph: SimulatedGraph, options: Sequence[int]) -> float:
    """Of the options of the first stages."""
    return math.fsum(stage.options[option].cost for stage, option in zip(graph.stages, options, strict=False))


def fits(graph: SimulatedGraph, options: Sequence[int]) -> bool:
    """Whether the options of the first stages leave no resource below 0."""
    used = [graph.stages[s].options[option].uses for s, option in enumerate(options)]
    return all(sum(uses[p] for uses in used) <= most for p, most in enumerate(graph.available))


def cheapest_simulated(
    graph: SimulatedGraph,
    simulations: Simulations | None = None,
    *,
    time_limit_s: float | None = None,
    cover: Cover | None = None,
) -> SolveResult[tuple[int, ...]]:
    """The cheapest option of every stage that keeps all limits, proven over these requests.

    INFEASIBLE where no options do; at the time limit UNKNOWN with the cost below which none do. A search that finishes
    leaves in `cover` what became of all combinations.
    """
    started_s = time.perf_counter()
    kept, ends = simulations or Simulations(graph), cover if cover is not None else Cover()
    least = [min(option.cost for option in stage.options) for stage in graph.stages]
    rest = [math.fsum(least[s:]) for s in range(len(least) + 1)]
    below = [math.prod(len(stage.options) for stage in graph.stages[s:]) for s in range(len(least) + 1)]
    nodes: list[tuple[float, int, tuple[int, ...]]] = [(rest[0], 0, ())]  # bound, stages left first, options so far
    while nodes:
        bound, _, options = heapq.heappop(nodes)
        if time_limit_s is not None and time.perf_counter() - started_s > time_limit_s:
            return SolveResult(Status.UNKNOWN, "time_limit", None, None, bound, _since(started_s), SOLVER)
        if not graph.kept(least_taken(graph, kept.times(options))):
            ends.add(LATE, below[len(options)])
            continue
        if len(options) == len(graph.stages):
            value = cost_of(graph, options)
            ends.add(CHOSEN, 1, value)
            for left, _, prefix in nodes:
                ends.add(DEARER, below[len(prefix)], left)
            return SolveResult(Status.OPTIMAL, "finished", options, value, value, _since(started_s), SOLVER)
        for option in range(len(graph.stages[len(options)].options)):
            further = (*options, option)
            if fits(graph, further):
                paid = cost_of(graph, further) + rest[len(further)]
                heapq.heappush(nodes, (paid, -len(further), further))
            else:
                ends.add(NO_ROOM, below[len(further)])
    return SolveResult(Status.INFEASIBLE, "finished", None, None, None, _since(started_s), SOLVER)


def _since(started_s: float) -> float:
    return time.perf_counter() - started_s

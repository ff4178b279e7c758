"""Functions of the stages of a graph, and which linked stages share a server's memory: the shortest longest path.

Source      Jin et al., "Ditto: Efficient Serverless Analytics with Elastic Parallelism", SIGCOMM 2023, sections 3 to 5;
            there ratios by square roots along paths and greedy groups
Sets        s in S stages in topological order with parents P_s and children C_s;  v in V servers of R_v slots
            g in G linked sets of at most m stages
Parameters  t_s(d, r, w) [s] = max(0, a_s,rw) / d + max(0, b_s,rw) with d functions;  r, w: whether all of P_s, all of
            C_s lie in the group of s, so that reads, writes go through shared memory;  a stage that cannot be split has
            d = 1 and a time for each (r, w)
Variables   z_g whether g is a group;  d_s in {1, 2, ...};  y_gv whether g is on v
Minimise    the longest path of t_s over S
(C1) sum over g with s in g of z_g <= 1
(C2) sum_v y_gv = z_g;  sum_g y_gv sum over s in g of d_s <= R_v
(C3) sum_s d_s <= sum_v R_v

Method      every set of disjoint groups that bring some stage nearer is bounded along paths: n stages of a path that
            share D slots need at least (sum sqrt a)^2 / D + sum b (Ditto, equation 3). Sets are solved by CP-SAT in the
            order of their bounds, each within the best so far, until no bound is below it. Groups that bring nothing
            nearer take part in no optimum that has none of them with the same value, and are left out.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from planner.errors import PlannerError
from planner.solvers.result import SolveResult, Status
from planner.solvers.workflow.cover import Cover

if TYPE_CHECKING:
    from planner.solvers.backends.cpsat_functions import Grouping

SOLVER = "groupings by bound, each by CP-SAT"
WHERE = "stages"
PROOF = 5e-7  # share of the objective by which another answer must be shorter, for times in whole units to tell
CLOSED = 1e-6  # share of the objective within which a bound proves it
BOUNDED, SOLVED = "bounded", "solved"  # ends of groupings
MOST_PATHS = 10_000  # of a grouping; bounds of more would take longer than what they save

Nearness = tuple[bool, bool]  # reads, writes
NOT_NEAR: Nearness = (False, False)
EVERY: tuple[Nearness, ...] = ((False, False), (False, True), (True, False), (True, True))


@dataclass(frozen=True, slots=True)
class Work:
    """Time of a stage with d functions: max(0, split_s) / d + max(0, whole_s)."""

    split_s: float
    whole_s: float

    def time_s(self, functions: int) -> float:
        return max(0.0, self.split_s) / functions + max(0.0, self.whole_s)


@dataclass(frozen=True, slots=True)
class GraphStage:
    """A stage: what it waits for, its work by nearness of reads and writes, and whether it may be split at all."""

    parents: tuple[int, ...]
    work: dict[Nearness, Work]
    splits: bool = True


@dataclass(frozen=True, slots=True)
class ServerGroups:
    """The problem; stages in topological order. Raises PlannerError where slots do not suffice, and for bad figures."""

    stages: tuple[GraphStage, ...]
    slots_V: tuple[int, ...]
    most_members: int

    def __post_init__(self) -> None:
        for number, stage in enumerate(self.stages):
            if any(not 0 <= parent < number for parent in stage.parents):
                what = f"stage {number} waits for {', '.join(map(str, stage.parents))}"
                raise PlannerError(what, where=WHERE, hint="order the stages so that each waits for earlier ones alone")
            if set(stage.work) != set(EVERY) or not all(
                math.isfinite(value) for work in stage.work.values() for value in (work.split_s, work.whole_s)
            ):
                raise PlannerError(f"work of stage {number} is not given for each nearness", where=WHERE)
        if not self.stages or self.slots < len(self.stages):
            what = f"{len(self.stages)} stages and {self.slots} slots"
            raise PlannerError(what, where=WHERE, hint="give at least one stage, and as many slots as stages")

    @property
    def slots(self) -> int:
        return sum(self.slots_V)

    @property
    def children_S(self) -> tuple[tuple[int, ...], ...]:
        stages = range(len(self.stages))
        return tuple(tuple(c for c in stages if s in self.stages[c].parents) for s in stages)


@dataclass(frozen=True, slots=True)
class Grouped:
    """Functions of every stage, the groups, and the server of each group."""

    functions_S: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]
    server_G: tuple[int, ...]


def longest_path_s(problem: ServerGroups, answer: Grouped) -> float:
    """The end of the last stage."""
    near_S = nearness(problem, answer.groups)
    times = [
        stage.work[near].time_s(functions)
        for stage, near, functions in zip(problem.stages, near_S, answer.functions_S, strict=True)
    ]
    return _longest_s(problem, times)


def _longest_s(problem: ServerGroups, time_s_S: Sequence[float]) -> float:
    ends: list[float] = []
    for stage, time_s in zip(problem.stages, time_s_S, strict=True):
        ends.append(max((ends[parent] for parent in stage.parents), default=0.0) + time_s)
    return max(ends)


def nearness(problem: ServerGroups, groups: Sequence[Sequence[int]]) -> tuple[Nearness, ...]:
    """Whether all parents, and all children, of each stage lie in its group."""
    group_of = {stage: number for number, group in enumerate(groups) for stage in group}
    children_S = problem.children_S

    def together(stage: int, others: Sequence[int]) -> bool:
        return bool(others) and stage in group_of and all(group_of.get(o) == group_of[stage] for o in others)

    return tuple((together(s, stage.parents), together(s, children_S[s])) for s, stage in enumerate(problem.stages))


def useful_groups(problem: ServerGroups) -> list[tuple[int, ...]]:
    """The linked sets of two to `most_members` stages that bring some stage's reads or writes nearer."""
    sizes = range(2, min(problem.most_members, len(problem.stages)) + 1)
    sets: list[tuple[int, ...]] = []
    for size in sizes:
        sets.extend(combinations(range(len(problem.stages)), size))
    return [m for m in sets if _linked(problem, m) and any(near != NOT_NEAR for near in nearness(problem, [m]))]


def _linked(problem: ServerGroups, members: Sequence[int]) -> bool:
    reached, waiting = {members[0]}, [members[0]]
    while waiting:
        stage = waiting.pop()
        for other in set(members) - reached:
            if stage in problem.stages[other].parents or other in problem.stages[stage].parents:
                reached.add(other)
                waiting.append(other)
    return len(reached) == len(members)


def groupings(groups: Sequence[tuple[int, ...]]) -> Iterator[tuple[tuple[int, ...], ...]]:
    """All sets of disjoint groups, the empty one first."""
    yield ()
    for number, group in enumerate(groups):
        rest = [other for other in groups[number + 1 :] if not set(other) & set(group)]
        for more in groupings(rest):
            yield (group, *more)


def lower_bound_s(problem: ServerGroups, groups: Sequence[Sequence[int]], paths: Sequence[tuple[int, ...]]) -> float:
    """What no functions are below under this grouping: every path by square roots, in slots that the rest leaves."""
    work_S = [stage.work[near] for stage, near in zip(problem.stages, nearness(problem, groups), strict=True)]
    bound_s = 0.0
    for path in paths:
        split = [s for s in path if problem.stages[s].splits]
        room = problem.slots - (len(problem.stages) - len(split))
        roots = sum(math.sqrt(max(0.0, work_S[s].split_s)) for s in split)
        fixed_s = sum(max(0.0, work_S[s].whole_s) for s in path)
        fixed_s += sum(max(0.0, work_S[s].split_s) for s in path if not problem.stages[s].splits)
        bound_s = max(bound_s, fixed_s + (roots**2 / room if split else 0.0))
    return bound_s


def _paths(problem: ServerGroups) -> list[tuple[int, ...]]:
    """Paths from a stage without parents to one without children, up to `MOST_PATHS`; any subset bounds."""
    children_S = problem.children_S
    paths: list[tuple[int, ...]] = []
    waiting: list[tuple[int, ...]] = [(s,) for s, stage in enumerate(problem.stages) if not stage.parents]
    while waiting and len(paths) < MOST_PATHS:
        path = waiting.pop()
        if not children_S[path[-1]]:
            paths.append(path)
        waiting.extend((*path, child) for child in children_S[path[-1]])
    return paths


def group_stages(
    problem: ServerGroups, *, time_limit_s: float = 60.0, cover: Cover | None = None
) -> SolveResult[Grouped]:
    """The shortest longest path [s], proven within a millionth unless the time limit ends the search first.

    `cover` holds what became of all groupings.
    """
    from planner.solvers.backends.cpsat_functions import functions_within

    started_s, ends = time.perf_counter(), cover if cover is not None else Cover()
    paths = _paths(problem)
    bounded = sorted((lower_bound_s(problem, g, paths), g) for g in groupings(useful_groups(problem)))
    best: Grouped | None = None
    best_s = math.inf
    for place, (bound_s, groups) in enumerate(bounded):
        left_s, most_s = time_limit_s - (time.perf_counter() - started_s), best_s * (1.0 - PROOF)
        if bound_s >= most_s or left_s <= 0:
            ends.add(BOUNDED, len(bounded) - place, bound_s)
            break
        solved = functions_within(_grouping(problem, groups), most_s, time_limit_s=left_s)
        ends.add(SOLVED, 1, max(bound_s, min(solved.bound_s, most_s)))
        if solved.functions_S is None:
            continue
        answer = Grouped(solved.functions_S, groups, solved.server_G)
        value_s = longest_path_s(problem, answer)
        if value_s < best_s:
            best, best_s = answer, value_s
    least_s = min((end.least for end in ends.ends.values() if end.least is not None), default=0.0)
    return _result(best, best_s, least_s, time.perf_counter() - started_s)


def _grouping(problem: ServerGroups, groups: tuple[tuple[int, ...], ...]) -> "Grouping":
    """Times of every number of functions that leaves each other stage one slot."""
    from planner.solvers.backends.cpsat_functions import Grouping

    most = problem.slots - len(problem.stages) + 1
    times = tuple(
        tuple(stage.work[near].time_s(d) for d in range(1, most + 1 if stage.splits else 2))
        for stage, near in zip(problem.stages, nearness(problem, groups), strict=True)
    )
    return Grouping(tuple(stage.parents for stage in problem.stages), times, problem.slots_V, groups)


def _result(best: Grouped | None, best_s: float, least_s: float, solve_s: float) -> SolveResult[Grouped]:
    if best is None:
        return SolveResult(Status.UNKNOWN, "time_limit", None, None, least_s, solve_s, SOLVER)
    bound_s = min(best_s, least_s)
    proven = bound_s >= best_s * (1.0 - CLOSED)
    status, reason = (Status.OPTIMAL, "finished") if proven else (Status.FEASIBLE, "time_limit")
    return SolveResult(status, reason, best, best_s, bound_s, solve_s, SOLVER)

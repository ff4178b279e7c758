"""Moves from the placement that runs to one that keeps its limits: fewest bytes, in an order that always has room.

Sets        m in M models, d in D devices
Parameters  w_m bytes of a copy, q_m load of a copy, C_d bytes of a device, L load limit;  S_m devices of m now
            pairs of models that are to be apart
Variables   T_m devices of m afterwards, as many as now;  steps, each a copy that is brought, and then one that goes
Objective   min bytes brought, over all steps
(C1) copies on a device take C_d at most, at every step with the new copy beside the old
(C2) load on a device is L at most afterwards;  no pair shares a device afterwards
(C3) a device holds a model once at most;  no step leaves a model fewer copies than it has now, and is to have
Method      targets in the order of their bytes (an integer program with a cut for each that was tried), for each the
            cheapest order (A*, where bytes still missing are the estimate); the first target whose bytes are no less
            than those of the best order ends it, and proves it. Where copies block each other, an order takes one
            to a third device first, and its bytes count.
"""

import heapq
import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planner.errors import PlannerError
from planner.solvers.backends.model import LinearModel, total
from planner.solvers.backends.solve import solve
from planner.solvers.result import SolveResult, Status

WHERE, SOLVER = "moves", "targets by integer programs, orders by A*"
DUST = 1e-9  # of a size or a load
MOST_STATES = 200_000  # of one order
MOST_TARGETS = 200

State = tuple[tuple[int, ...], ...]
"""Devices of every model, in ascending order."""


@dataclass(frozen=True, slots=True)
class Moves:
    """What runs now, and what is to hold afterwards; raises PlannerError for a start that cannot be."""

    memory_D: tuple[float, ...]
    size_M: tuple[float, ...]
    load_M: tuple[float, ...]  # of each copy
    start: State
    apart: tuple[tuple[int, int], ...] = ()
    most_load: float = math.inf

    def __post_init__(self) -> None:
        for model, (size, devices) in enumerate(zip(self.size_M, self.start, strict=True)):
            if size < 0 or not devices or len(set(devices)) < len(devices):
                what = f"model {model} of {size:g} bytes is on devices {list(devices)}"
                raise PlannerError(what, where=WHERE, hint="give a size of 0 or more, and each device once")
            if not set(devices) <= set(range(len(self.memory_D))):
                what = f"model {model} is on devices {list(devices)}"
                raise PlannerError(what, where=WHERE, hint=f"devices are 0 to {len(self.memory_D) - 1}")
        for device, free in enumerate(self.free(self.start)):
            if free < -DUST * self.memory_D[device]:
                what = f"device {device} holds {self.memory_D[device] - free:g} of {self.memory_D[device]:g} bytes now"
                raise PlannerError(what, where=WHERE, hint="give the placement that runs")

    def free(self, state: State) -> list[float]:
        """Bytes of each device that no copy takes."""
        free = list(self.memory_D)
        for size, devices in zip(self.size_M, state, strict=True):
            for device in devices:
                free[device] -= size
        return free

    def kept(self, state: State) -> bool:
        """Whether a placement keeps what is to hold afterwards: (C2)."""
        loads = [0.0] * len(self.memory_D)
        for load, devices in zip(self.load_M, state, strict=True):
            for device in devices:
                loads[device] += load
        return max(loads) <= self.most_load + DUST and not any(set(state[a]) & set(state[b]) for a, b in self.apart)


@dataclass(frozen=True, slots=True)
class Step:
    """A copy of a model is brought to a device (None: none is), and then the one on another goes (None: none does)."""

    model: int
    to: int | None
    leaves: int | None


@dataclass(frozen=True, slots=True)
class MovePlan:
    """The steps in their order, and what is where after them."""

    steps: tuple[Step, ...]
    target: State


def least_moves(problem: Moves, *, time_limit_s: float | None = None) -> SolveResult[MovePlan]:
    """The target and the order that bring fewest bytes; INFEASIBLE where no placement that can be reached keeps (C2).

    The bound is that of the targets that were not tried, and of the orders that were not looked for to their end.
    """
    started_s, deadline_s = (
        time.perf_counter(),
        math.inf if time_limit_s is None else time.perf_counter() + time_limit_s,
    )
    tried: list[State] = []
    best, plan = math.inf, None
    unfinished = math.inf  # least bytes of orders that were not looked for to their end
    left = 0.0  # least bytes of the targets that were not tried
    while len(tried) < MOST_TARGETS and time.perf_counter() < deadline_s:
        limit_s = None if time_limit_s is None else max(deadline_s - time.perf_counter(), 0.01)
        target, bound, status = _next_target(problem, tried, limit_s)
        if status is Status.INFEASIBLE:
            left = math.inf
            break
        left = max(left, bound)
        if target is None or left >= best * (1.0 - DUST):
            break
        order = cheapest_order(problem, target)
        tried.append(target)
        if order.status is Status.UNKNOWN:
            unfinished = min(unfinished, order.bound or 0.0)
        if order.solution is not None and order.objective is not None and order.objective < best:
            best, plan = order.objective, order.solution
    bound, solve_s = min(left, unfinished, best), time.perf_counter() - started_s
    if plan is None:
        status = Status.INFEASIBLE if math.isinf(bound) else Status.UNKNOWN
        known = None if math.isinf(bound) else bound
        return SolveResult(status, "finished" if known is None else "time_limit", None, None, known, solve_s, SOLVER)
    if bound >= best * (1.0 - DUST):
        return SolveResult(Status.OPTIMAL, "finished", plan, best, best, solve_s, SOLVER)
    return SolveResult(Status.FEASIBLE, "time_limit", plan, best, bound, solve_s, SOLVER)


def _next_target(
    problem: Moves, tried: Sequence[State], time_limit_s: float | None
) -> tuple[State | None, float, Status]:
    """The target of fewest bytes that was not tried, and a bound on the bytes of all such."""
    model, devices = LinearModel(), range(len(problem.memory_D))
    x = [[model.binary(f"x[{m},{d}]") for d in devices] for m in range(len(problem.size_M))]
    for m, row in enumerate(x):
        model.add(total(row) == float(len(problem.start[m])), f"copies[{m}]")
    for d in devices:
        held = total(size * row[d] for size, row in zip(problem.size_M, x, strict=True))
        model.add(held <= problem.memory_D[d], f"C1[{d}]")
        if math.isfinite(problem.most_load):
            load = total(q * row[d] for q, row in zip(problem.load_M, x, strict=True))
            model.add(load <= problem.most_load, f"C2[{d}]")
        for number, (a, b) in enumerate(problem.apart):
            model.add(x[a][d] + x[b][d] <= 1.0, f"apart[{number},{d}]")
    for number, state in enumerate(tried):
        same = total(x[m][d] for m, there in enumerate(state) for d in there)
        model.add(same <= float(sum(map(len, state)) - 1), f"tried[{number}]")
    brought = [problem.size_M[m] * row[d] for m, row in enumerate(x) for d in devices if d not in problem.start[m]]
    model.objective = total(brought).terms
    result = solve(model, time_limit_s=time_limit_s)
    if result.solution is None:
        return None, 0.0, result.status
    value = result.solution.value
    target = tuple(tuple(d for d, each in enumerate(row) if value(each) > 0.5) for row in x)
    return target, result.bound or 0.0, result.status


def cheapest_order(problem: Moves, target: State, *, most_states: int = MOST_STATES) -> SolveResult[MovePlan]:
    """The order of fewest bytes from what runs to the target, whose models may have more or fewer copies.

    INFEASIBLE where there is none at all, UNKNOWN where more states would have to be looked at; the bound holds then.
    """
    started_s = time.perf_counter()
    came: dict[State, tuple[State, Step] | None] = {problem.start: None}
    cost = {problem.start: 0.0}
    ties = itertools.count()
    heap = [(_missing(problem, problem.start, target), next(ties), problem.start)]
    closed: set[State] = set()
    while heap:
        estimate, _, state = heapq.heappop(heap)
        if state in closed:
            continue
        closed.add(state)
        solve_s = time.perf_counter() - started_s
        if state == target:
            plan = MovePlan(_steps(came, state), target)
            return SolveResult(Status.OPTIMAL, "finished", plan, cost[state], cost[state], solve_s, "A*")
        if len(closed) > most_states:
            return SolveResult(Status.UNKNOWN, "node_limit", None, None, estimate, solve_s, "A*")
        for step, after in _after(problem, state, target):
            brought = 0.0 if step.to is None else problem.size_M[step.model]
            if after not in closed and cost[state] + brought < cost.get(after, math.inf) - DUST:
                cost[after], came[after] = cost[state] + brought, (state, step)
                heapq.heappush(heap, (cost[after] + _missing(problem, after, target), next(ties), after))
    return SolveResult(Status.INFEASIBLE, "finished", None, None, None, time.perf_counter() - started_s, "A*")


def _missing(problem: Moves, state: State, target: State) -> float:
    """Bytes of the copies that are still to be brought: no order from here brings fewer."""
    return math.fsum(size * len(set(b) - set(a)) for size, a, b in zip(problem.size_M, state, target, strict=True))


def _after(problem: Moves, state: State, target: State) -> Iterator[tuple[Step, State]]:
    """Every step that has room and leaves each model as many copies as it has now or is to have, if those are fewer."""
    free = problem.free(state)
    for model, devices in enumerate(state):
        counts = len(problem.start[model]), len(target[model])
        if len(devices) > min(counts):
            for leaves in devices:
                yield Step(model, None, leaves), _replaced(state, model, {*devices} - {leaves})
        for to in range(len(free)):
            if to in devices or free[to] < problem.size_M[model] * (1.0 - DUST):
                continue
            if len(devices) < max(counts):
                yield Step(model, to, None), _replaced(state, model, {*devices, to})
            for leaves in devices:
                yield Step(model, to, leaves), _replaced(state, model, {*devices, to} - {leaves})


def _replaced(state: State, model: int, devices: set[int]) -> State:
    return (*state[:model], tuple(sorted(devices)), *state[model + 1 :])


def _steps(came: dict[State, tuple[State, Step] | None], state: State) -> tuple[Step, ...]:
    steps: list[Step] = []
    link = came[state]
    while link is not None:
        before, step = link
        steps.append(step)
        link = came[before]
    return tuple(reversed(steps))

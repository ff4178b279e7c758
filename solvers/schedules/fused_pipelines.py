"""Flow shop with the least makespan, for pipelines fused over the same machines: the order in which passes run.

Source: Zhong et al., arXiv:2409.13221 (NSDI 2025), section 5: training of two models fused into one pipeline schedule,
the smaller models against the direction of the larger one. There annealing searches the order; here it is the warm
start, its schedule is compared with a proven bound, and small instances are closed by an exact method.

Sets        i in I pipelines, s in S_i stages, j in 1..J_i equal jobs, m in M machines; passes F (forward), B (backward)
Parameters  f_is, b_is > 0 durations;  a_i >= 0 what a job holds on each of its machines from the start of F to the end
            of B;  C_m capacity;  m(i, s) the machine of a stage, another for each stage of a pipeline
Variables   x >= 0 the start of each pass of each job on each stage;  T makespan
Minimise    T
(C1) F of stage s ends before F of s + 1 starts, F of the last before B of the last, B of s + 1 before B of s
(C2) a machine runs one pass at a time
(C3) sum of a_i over jobs resident on m at any time <= C_m
(C4) x + duration <= T

A schedule is the order of passes on each machine, every pass as early as it can. Equal jobs are taken in order.
Array suffixes: T task type (pass of a stage of a pipeline, in the order of a job's way), M machine, P position.
"""

import math
import time
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations

import numpy as np

from planner.arrays import Floats, Ints
from planner.errors import PlannerError
from planner.solvers.flow_shop import TOLERANCE, FlowShop, ShopSchedule, most_resident, read_off
from planner.solvers.result import SolveResult, Status

STARTS = 200  # dispatched schedules from which the smallest instance of a series is improved
RESTARTS = 6
ITERATIONS = 150_000
REPLAYED = 6e8  # tasks replayed by one annealing at most
THREADS = 2  # of the exact method
EXACT_TASKS = 400  # more are not given to the exact method
CUTS = (0.3, 0.4, 0.5, 0.6, 0.7)  # of the makespan, where a schedule is opened to take in more jobs


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Equal jobs that go forward over machines and back; durations by stage, `resident_bytes` of a job on each."""

    machines: tuple[int, ...]
    jobs: int
    forward: tuple[float, ...]
    backward: tuple[float, ...]
    resident_bytes: float = 0.0

    def __post_init__(self) -> None:
        if not self.machines or len(set(self.machines)) != len(self.machines) or min(self.machines) < 0:
            raise PlannerError(
                "a pipeline has one machine or more, each once", where="machines", hint="number them from 0"
            )
        if not len(self.machines) == len(self.forward) == len(self.backward):
            raise PlannerError(
                f"{len(self.machines)} machines, {len(self.forward)} forward and {len(self.backward)} backward times",
                where="pipeline",
                hint="give one of each for every stage",
            )
        if self.jobs < 1 or min(*self.forward, *self.backward) <= 0 or self.resident_bytes < 0:
            raise PlannerError(
                "jobs and durations are positive, what a job holds is not negative",
                where="pipeline",
                hint="leave out pipelines that do nothing",
            )

    @property
    def work(self) -> float:
        """Time of one job on its busiest machine."""
        return max(f + b for f, b in zip(self.forward, self.backward, strict=True))


@dataclass(frozen=True)
class FusedProblem:
    """Pipelines over machines 0..M-1; `capacity` by machine, unlimited when absent."""

    pipelines: tuple[Pipeline, ...]
    capacity: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if not self.pipelines:
            raise PlannerError("there is no pipeline", where="pipelines", hint="give one or more")
        if self.capacity is not None and len(self.capacity) < self.num_machines:
            raise PlannerError(
                f"{len(self.capacity)} capacities for {self.num_machines} machines",
                where="capacity",
                hint="give one for each machine",
            )

    @cached_property
    def num_machines(self) -> int:
        return 1 + max(machine for pipeline in self.pipelines for machine in pipeline.machines)

    @cached_property
    def pipeline_T(self) -> Ints:
        """The pipeline of each task type."""
        return np.repeat(np.arange(len(self.pipelines)), [2 * len(p.machines) for p in self.pipelines])

    @cached_property
    def shop(self) -> FlowShop:
        """The passes as task types of a flow shop: of each pipeline forward by stage, then backward the other way."""
        count_T = np.array([p.jobs for p in self.pipelines], np.int64)[self.pipeline_T]
        T = np.arange(len(count_T))
        first_T = np.searchsorted(self.pipeline_T, self.pipeline_T)
        last_T = np.searchsorted(self.pipeline_T, self.pipeline_T, side="right") - 1
        partner_T = first_T + last_T - T
        resident_T = np.array([p.resident_bytes for p in self.pipelines], np.float64)[self.pipeline_T]
        machine_T = np.array([m for p in self.pipelines for m in (*p.machines, *reversed(p.machines))], np.int64)
        return FlowShop(
            machine_T=machine_T,
            duration_T=np.array([d for p in self.pipelines for d in (*p.forward, *reversed(p.backward))], np.float64),
            count_T=count_T,
            before_T=np.where(first_T == T, -1, T - 1),
            partner_T=partner_T,
            resident_T=np.where(partner_T > T, resident_T, -resident_T),
            capacity_M=np.array(self.capacity or [math.inf] * self.num_machines, np.float64)[: self.num_machines],
            width=int(np.bincount(machine_T, weights=count_T).max()),
        )


def lower_bound(problem: FusedProblem) -> float:
    """A bound on the makespan: the way of a pipeline alone, and the work of a machine between least head and tail.

    A pipeline alone takes one job's whole way and J_i - 1 times the work of a job on its busiest machine. On a machine
    no pass starts before the least head (time from the start of a job's way to that pass), and after its last pass
    the least tail follows. The published bound is the same but for stages that differ.
    """
    bound = max(sum(p.forward) + sum(p.backward) + (p.jobs - 1) * p.work for p in problem.pipelines)
    shop = problem.shop
    duration, before = shop.duration_T, shop.before_T
    head, tail = np.zeros(len(duration)), np.zeros(len(duration))
    for t in range(len(duration)):
        if before[t] >= 0:
            head[t] = head[before[t]] + duration[before[t]]
    for t in range(len(duration) - 1, -1, -1):
        if before[t] >= 0:
            tail[before[t]] = tail[t] + duration[t]
    for machine in range(problem.num_machines):
        here = shop.machine_T == machine
        if here.any():
            work = float((duration * shop.count_T)[here].sum())
            bound = max(bound, float(head[here].min()) + work + float(tail[here].min()))
    return float(bound)


def one_after_the_other(problem: FusedProblem) -> ShopSchedule | None:
    """Each pipeline alone in turn, one forward one backward; None where one job does not fit on its machines."""
    order: list[list[int]] = [[] for _ in range(problem.num_machines)]
    first = 0
    for pipeline in problem.pipelines:
        stages = len(pipeline.machines)
        ahead = pipeline.jobs
        for stage, machine in enumerate(pipeline.machines):
            room = (
                math.inf
                if pipeline.resident_bytes == 0
                else problem.shop.capacity_M[machine] / pipeline.resident_bytes + TOLERANCE
            )
            ahead = min(ahead, stages - stage, int(min(room, pipeline.jobs)))
            if ahead < 1:
                return None
            forward, backward = first + stage, first + 2 * stages - 1 - stage
            steady = [backward, forward] * (pipeline.jobs - ahead)
            order[machine] += [forward] * ahead + steady + [backward] * ahead
        first += 2 * stages
    return read_off(problem.shop, order)


def solve_fused(
    problem: FusedProblem,
    *,
    time_limit_s: float = 10.0,
    seed: int = 0,
    threads: int = THREADS,
    restarts: int = RESTARTS,
    replayed: float = REPLAYED,
) -> SolveResult[ShopSchedule]:
    """The best schedule found, with a proven bound; `optimal` where they meet.

    Annealing along the critical path, started from the schedule of half as many jobs opened in its middle (a steady
    state repeats there), is run again with other seeds until it meets the bound. Instances of at most `EXACT_TASKS`
    passes that remain open go to CP-SAT with the best schedule as a hint. One annealing replays at most `replayed`
    passes.
    """
    started = time.perf_counter()
    best = one_after_the_other(problem)
    if best is None:
        return SolveResult(Status.INFEASIBLE, "finished", None, None, None, time.perf_counter() - started, "annealing")
    bound, stop, solver = lower_bound(problem), "finished", "annealing"
    for attempt in range(restarts):
        if best.makespan <= bound * (1 + TOLERANCE):
            break
        if attempt and time.perf_counter() - started > time_limit_s / 2:
            stop = "time_limit"
            break
        annealed = read_off(problem.shop, _grown(problem, seed + attempt, replayed))
        best = min(best, annealed, key=lambda schedule: schedule.makespan)
    if best.makespan > bound * (1 + TOLERANCE) and problem.shop.num_tasks <= EXACT_TASKS:
        from planner.solvers.backends.cpsat_flow_shop import improve

        left_s = time_limit_s - (time.perf_counter() - started)
        exact = improve(problem.shop, best, bound, time_limit_s=left_s, seed=seed, threads=threads)
        best, stop, solver = read_off(problem.shop, exact.order), exact.stop_reason, exact.solver
        bound = max(bound, exact.bound)
    proven = best.makespan <= bound * (1 + TOLERANCE)
    status = Status.OPTIMAL if proven else Status.FEASIBLE
    stop = "finished" if proven else stop
    bound = min(bound, best.makespan)
    return SolveResult(status, stop, best, best.makespan, bound, time.perf_counter() - started, solver)


Order = list[list[int]]


def _grown(problem: FusedProblem, seed: int, replayed: float) -> Order:
    """An annealed order: from that of half the jobs while every pipeline keeps as many jobs as it has stages.

    The smallest instance starts from the best dispatched order, or, with odd seeds, from the one that holds least,
    which leads further where capacities are tight.
    """
    shop = problem.shop
    starts: list[Order] = []
    if all(p.jobs // 2 >= len(p.machines) for p in problem.pipelines):
        fewer = tuple(replace(p, jobs=(p.jobs + 1) // 2) for p in problem.pipelines)
        smaller = FusedProblem(fewer, problem.capacity)
        starts = _opened(problem, smaller.shop, _grown(smaller, seed, replayed))
    if not starts:
        starts = _dispatched(problem, seed)
        if seed % 2:
            starts = [min(starts, key=lambda order: (round(max(_resident(shop, order)), 9), -_makespan(shop, order)))]
    best = min(starts, key=lambda order: _makespan(shop, order))
    return _annealed(shop, best, lower_bound(problem), seed, replayed)


def _padded(shop: FlowShop, order: Order) -> tuple[Ints, Ints]:
    sequence_MP = np.full((shop.num_machines, shop.width), -1, np.int64)
    for machine, types in enumerate(order):
        sequence_MP[machine, : len(types)] = types
    return sequence_MP, np.array([len(types) for types in order], np.int64)


def _as_order(sequence_MP: Ints) -> Order:
    return [[int(t) for t in types if t >= 0] for types in sequence_MP]


def _annealed(shop: FlowShop, order: Order, bound: float, seed: int, replayed: float) -> Order:
    """The order after annealing; from the mean duration of a pass down to a tenth of it."""
    from planner.solvers.compiled.fused_pipelines import anneal

    sequence_MP, length_M = _padded(shop, order)
    hot = float((shop.duration_T * shop.count_T).sum() / shop.count_T.sum())
    iterations = int(min(ITERATIONS, replayed / shop.num_tasks))
    best_MP, _ = anneal(shop, sequence_MP, length_M, bound, iterations, hot, hot / 10, seed)
    return _as_order(best_MP)


def _replayed(shop: FlowShop, order: Order) -> tuple[float, list[Floats]]:
    """Makespan, infinite where passes wait for each other, and the starts by machine."""
    from planner.solvers.compiled.fused_pipelines import replay

    sequence_MP, length_M = _padded(shop, order)
    first_T = np.concatenate([np.zeros(1, np.int64), np.cumsum(shop.count_T)])[:-1]
    start_O, job_MP = np.zeros(shop.num_tasks), np.zeros(sequence_MP.shape, np.int64)
    makespan = float(replay(shop, sequence_MP, length_M, first_T, start_O, job_MP))
    starts = [start_O[first_T[types] + job_MP[m, : len(types)]] for m, types in enumerate(order)]
    return makespan, starts


def _makespan(shop: FlowShop, order: Order) -> float:
    return _replayed(shop, order)[0]


def _resident(shop: FlowShop, order: Order) -> list[float]:
    """The most that each machine holds at any time."""
    return [most_resident(shop, types) for types in order]


def _opened(problem: FusedProblem, smaller: FlowShop, order: Order) -> list[Order]:
    """The smaller instance's order, opened at a moment on all machines, with the further jobs put in there.

    They go in as rounds of equal parts, one pass after the other, in each order of the kinds of passes.
    """
    shop = problem.shop
    makespan, starts = _replayed(smaller, order)
    more_T = shop.count_T - smaller.count_T
    family_T, forward_T = np.minimum(problem.pipeline_T, 1).tolist(), shop.forward_T.tolist()
    orders = []
    for kinds in permutations([(family, forward) for family in sorted(set(family_T)) for forward in (False, True)]):
        rank_T = [kinds.index(kind) for kind in zip(family_T, forward_T, strict=True)]
        rounds = [_rounds(shop, machine, more_T, rank_T) for machine in range(shop.num_machines)]
        for cut in CUTS:
            place = [int(np.searchsorted(start_P, cut * makespan)) for start_P in starts]
            longer = [
                [*types[:here], *added, *types[here:]] for types, here, added in zip(order, place, rounds, strict=True)
            ]
            fits = all(h <= c + TOLERANCE for h, c in zip(_resident(shop, longer), shop.capacity_M, strict=True))
            if fits and math.isfinite(_makespan(shop, longer)):
                orders.append(longer)
    return orders


def _rounds(shop: FlowShop, machine: int, more_T: Ints, rank_T: list[int]) -> list[int]:
    """`more_T` tasks of each type of a machine, spread evenly over as many rounds as the most of them."""
    here = sorted((int(t) for t in np.nonzero(shop.machine_T == machine)[0]), key=lambda t: rank_T[t])
    most = max((int(more_T[t]) for t in here), default=0)
    return [t for r in range(most) for t in here if r * more_T[t] // most != (r + 1) * more_T[t] // most]


def _dispatched(problem: FusedProblem, seed: int) -> list[Order]:
    """Orders of machines that never wait, by weights drawn at random; and the pipelines one after the other."""
    from planner.solvers.compiled.fused_pipelines import dispatch

    rng = np.random.default_rng(seed)
    shop, serial = problem.shop, one_after_the_other(problem)
    assert serial is not None
    orders: list[Order] = [[list(types) for types in serial.order]]  # where every dispatched order gets stuck
    pipelines = len(problem.pipelines)
    stages_left_T = np.concatenate([[*range(len(p.machines), 0, -1)] * 2 for p in problem.pipelines])
    for trial in range(STARTS):
        weight, slack = rng.random(pipelines), rng.integers(-2, 4, pipelines)
        weight[2:], slack[2:] = weight[1:2], slack[1:2]
        backward_first = float(rng.choice([0.5, 2.0, 2.0]))
        weight_T = weight[problem.pipeline_T] + np.where(shop.forward_T, 0.0, backward_first)
        in_flight_T = np.maximum(stages_left_T + slack[problem.pipeline_T], 1)
        noise = float(rng.choice([0.0, 0.3, 1.5]))
        sequence_MP, whole = dispatch(shop, weight_T, in_flight_T, noise, seed * STARTS + trial)
        if whole:
            orders.append(_as_order(sequence_MP))
    return orders

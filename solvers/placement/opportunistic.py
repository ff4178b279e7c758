"""Opportunistic jobs on GPUs of production jobs that may lose little (TGS): which job runs where, at which rate.

Source      Wu et al., "Transparent GPU Sharing in Container Clouds for Deep Learning Workloads", NSDI 2023, whose rate
            control keeps production jobs whole; the placement is not part of it
Sets        o in O jobs, p in P kinds of GPUs that are alike, r in R rates
Parameters  N_p GPUs of a kind;  g_o GPUs of job o, w_o its worth;  s_opr >= 0 its speed on p at rate r, l_opr what the
            production job of p loses then, e the most that one may lose
            a in A_o ways of job o: a rate r_a and a speed s_a with E_a, the kinds p where s_opr >= s_a and l_opr <= e;
            ways whose GPUs are among those of another, no slower one, are left out
Variables   z_oa in {0,1} job o runs in way a;  x_op in {0, ..., min(g_o, N_p)} GPUs of kind p that it runs on
Maximise    sum_oa w_o g_o s_a z_oa
(C1) sum_a z_oa <= 1                       for o in O
(C2) sum_p x_op = g_o sum_a z_oa           for o in O
(C3) x_op <= min(g_o, N_p) sum over a with p in E_a of z_oa
(C4) sum_o x_op <= N_p                     for p in P
A GPU takes one job beside its production job. A job is as fast as on its slowest GPU.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats
from planner.errors import PlannerError
from planner.solvers.backends.model import LinearModel, total
from planner.solvers.backends.solve import solve
from planner.solvers.result import SolveResult

WHERE = "jobs"
DUST = 1e-9  # of a loss
SIGNIFICANT = 9  # digits of worths that the solver is given, so that it can count in whole numbers


@dataclass(frozen=True, slots=True, eq=False)
class Sharing:
    """Jobs' GPUs and worths [O], speeds and losses by job, kind of GPU and rate, and how many there are of each kind.

    Raises PlannerError for other shapes.
    """

    gangs: tuple[int, ...]
    worths: tuple[float, ...]
    speed_OPR: Floats
    loss_OPR: Floats
    most_loss: float
    there: tuple[int, ...] | None = None  # GPUs of each kind; one where absent

    def __post_init__(self) -> None:
        if self.speed_OPR.shape != self.loss_OPR.shape or len(self.gangs) != len(self.worths):
            what = f"speeds of {self.speed_OPR.shape}, losses of {self.loss_OPR.shape}, {len(self.gangs)} jobs"
            raise PlannerError(what, where=WHERE, hint="give one for every job, GPU and rate")
        if self.there is not None and (len(self.there) != self.speed_OPR.shape[1] or min(self.there, default=0) < 0):
            what = f"{list(self.there)} GPUs of {self.speed_OPR.shape[1]} kinds"
            raise PlannerError(what, where=WHERE, hint="give how many there are of every kind")
        for job, (gang, worth) in enumerate(zip(self.gangs, self.worths, strict=True)):
            if gang < 1 or worth < 0.0:
                what = f"job {job} runs on {gang} GPUs and is worth {worth:g}"
                raise PlannerError(what, where=WHERE, hint="give at least one GPU, and a worth of 0 or more")

    @property
    def there_P(self) -> tuple[int, ...]:
        """GPUs of each kind."""
        return (1,) * self.speed_OPR.shape[1] if self.there is None else self.there

    def value(self, jobs: "Sequence[Shared | None]") -> float:
        """What is maximised."""
        return sum(
            worth * gang * float(min(self.speed_OPR[o, p, shared.rate] for p in shared.gpus))
            for o, (worth, gang, shared) in enumerate(zip(self.worths, self.gangs, jobs, strict=True))
            if shared is not None
        )


@dataclass(frozen=True, slots=True)
class Shared:
    """Where a job runs: the kind of each of its GPUs, and the index of its rate."""

    gpus: tuple[int, ...]
    rate: int


@dataclass(frozen=True, slots=True)
class _Way:
    rate: int
    speed: float
    gpus: frozenset[int]


def share_gpus(problem: Sharing, *, time_limit_s: float | None = None) -> SolveResult[tuple[Shared | None, ...]]:
    """Where every job runs, None for those that wait, for the most worth."""
    started_s = time.perf_counter()
    ways = [_ways(problem, o) for o in range(len(problem.gangs))]
    model = LinearModel()
    z = [[model.binary(f"z[{o},{a}]") for a in range(len(own))] for o, own in enumerate(ways)]
    x = [
        {
            p: model.integer_variable(f"x[{o},{p}]", 0, min(problem.gangs[o], problem.there_P[p]))
            for p in sorted(frozenset().union(*(way.gpus for way in own)))
        }
        for o, own in enumerate(ways)
    ]
    worths = []
    for o, own in enumerate(ways):
        worths += [_worth(problem, o, way) * each for way, each in zip(own, z[o], strict=True)]
        model.add(total(z[o]) <= 1.0, f"C1[{o}]")
        model.add(total(x[o].values()) == float(problem.gangs[o]) * total(z[o]), f"C2[{o}]")
        for p, there in x[o].items():
            here = total(each for way, each in zip(own, z[o], strict=True) if p in way.gpus)
            model.add(there <= float(min(problem.gangs[o], problem.there_P[p])) * here, f"C3[{o},{p}]")
    for p, number in enumerate(problem.there_P):
        model.add(total(row[p] for row in x if p in row) <= float(number), f"C4[{p}]")
    model.maximise(total(worths))
    result = solve(model, backend="cpsat", time_limit_s=time_limit_s)
    jobs, value, bound = None, None, result.bound
    if result.solution is not None:
        chosen = result.solution.value
        jobs = tuple(
            next(
                (
                    Shared(tuple(p for p, on in x[o].items() for _ in range(round(chosen(on)))), way.rate)
                    for way, each in zip(own, z[o], strict=True)
                    if chosen(each) > 0.5
                ),
                None,
            )
            for o, own in enumerate(ways)
        )
        value = problem.value(jobs)
        bound = None if bound is None else max(bound, value)
    took_s = time.perf_counter() - started_s
    return SolveResult(result.status, result.stop_reason, jobs, value, bound, took_s, result.solver)


def _worth(problem: Sharing, o: int, way: _Way) -> float:
    """Rounded up, so that the bound holds."""
    worth = problem.worths[o] * problem.gangs[o] * way.speed
    return float(np.ceil(worth * 10**SIGNIFICANT) / 10**SIGNIFICANT)


def _ways(problem: Sharing, o: int) -> list[_Way]:
    """Every rate with every speed that enough GPUs reach at it, without those that another one makes needless."""
    ways: list[_Way] = []
    for rate in range(problem.speed_OPR.shape[2]):
        speed_P = problem.speed_OPR[o, :, rate]
        able_P = (problem.loss_OPR[o, :, rate] <= problem.most_loss + DUST) & (speed_P > 0.0)
        for speed in sorted({float(each) for each in speed_P[able_P]}, reverse=True):
            gpus = frozenset(np.flatnonzero(able_P & (speed_P >= speed)).tolist())
            if sum(problem.there_P[p] for p in gpus) >= problem.gangs[o]:
                ways.append(_Way(rate, speed, gpus))
    ways.sort(key=lambda way: (-way.speed, -len(way.gpus)))
    kept: list[_Way] = []
    for way in ways:
        if not any(way.gpus <= other.gpus for other in kept):
            kept.append(way)
    return kept

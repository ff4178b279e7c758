"""The joint program over all jobs of a day, an hour and a job at a time, without states that lead to no better day.

At prices l of nodes and m of progress (`columns`) every day falls short of the bound by what its steps fall short
of the longest paths of their jobs, and by l_tp for each node of pool p that is idle in hour t. A state (numbers of
nodes of all jobs, those of some already of the next hour) is worth the bound less what it has fallen short by so far:
no day through it is worth more. States worth no more than the day at hand are left out, and of more than `width` those
of least worth; the largest of these is a bound beside the best state at the end. O(T K width A).
"""

import math
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats, Ints
from planner.solvers.schedules.days.columns import Relaxation
from planner.solvers.schedules.days.split import Day, DayJob

Indices = np.ndarray[tuple[int], np.dtype[np.int64]]
CLOSE = 1e-10  # of the worth at hand: states must be above it by as much


@dataclass(frozen=True, slots=True, eq=False)
class _States:
    """Numbers of nodes of all jobs as one number, nodes of the hour so far, and the most a day can be worth."""

    key_S: Indices
    used_SP: Ints
    worth_S: Floats

    def at(self, index_S: Indices) -> "_States":
        """Some of the states."""
        return _States(self.key_S[index_S], self.used_SP[index_S], self.worth_S[index_S])


@dataclass(frozen=True, slots=True, eq=False)
class _Trace:
    """Where the states of a step come from, and the number of nodes that was chosen (its index)."""

    parent_S: Indices
    chosen_S: Indices

    def at(self, index_S: Indices) -> "_Trace":
        """Of some of the states."""
        return _Trace(self.parent_S[index_S], self.chosen_S[index_S])


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """One job in one hour: what its steps lose [from, to], and what is left to it and to the others."""

    counts_AP: Ints
    weight: int  # of its number of nodes in the key
    lost_BA: Floats
    room_P: Ints  # nodes that it and those before it may use
    idle_P: Floats  # price of a node that nobody uses, where it is the last job of the hour


def bounded(relaxation: Relaxation, worth: float, width: int) -> tuple[Day | None, float]:
    """A day that may be worth more than `worth` (None without one), goals as priced, and a bound on all days."""
    problem, floor = relaxation.problem, worth + CLOSE * max(abs(worth), 1.0)
    states = _States(np.zeros(1, np.int64), np.zeros((1, len(problem.nodes)), np.int64), np.array([relaxation.bound]))
    traces, dropped = [], worth
    for t, steps in enumerate(_hours(relaxation)):
        states = _States(states.key_S, np.zeros_like(states.used_SP), states.worth_S)
        for step in steps:
            states, trace = _stepped(states, step, floor, first=t == 0)
            if not len(states.key_S):
                return None, dropped
            states, trace, lost = _narrowed(states, trace, width)
            dropped = max(dropped, lost)
            traces.append(trace)
    best = int(states.worth_S.argmax())
    return _day(traces, best, len(problem.jobs)), max(dropped, float(states.worth_S[best]))


def _hours(relaxation: Relaxation) -> list[list[_Step]]:
    """The steps of every hour, job after job."""
    problem = relaxation.problem
    sizes = [len(job.counts) for job in problem.jobs]
    lost_KT = [_losses(job, relaxation, k) for k, job in enumerate(problem.jobs)]
    last = len(sizes) - 1
    least_KP = np.array([job.nodes_AP.min(axis=0) for job in problem.jobs])
    room_KP = np.array(problem.nodes) - (least_KP.sum(axis=0) - least_KP.cumsum(axis=0))
    return [
        [
            _Step(
                job.nodes_AP,
                math.prod(sizes[k + 1 :]),
                lost_KT[k][t],
                room_KP[k],
                relaxation.prices.hour_TP[t] * (k == last),
            )
            for k, job in enumerate(problem.jobs)
        ]
        for t in range(problem.hours)
    ]


def _losses(job: DayJob, relaxation: Relaxation, k: int) -> list[Floats]:
    """By hour, what a step [from, to] falls short of the best one from there; in the first hour [1, to]."""
    first_A, later_TAA = job.priced(relaxation.prices.hour_TP, relaxation.units[k])
    rest_A, losses = np.zeros(len(job.counts)), []
    for step_AA in later_TAA[::-1]:
        through_AA = step_AA + rest_A
        rest_A = through_AA.max(axis=1)
        losses.append(rest_A[:, None] - through_AA)
    whole_A = first_A + rest_A
    losses.append((whole_A.max() - whole_A)[None, :])
    return losses[::-1]


def _stepped(states: _States, step: _Step, floor: float, *, first: bool) -> tuple[_States, _Trace]:
    """The states after one job's step that have room and are worth enough; of those alike the best one."""
    before_S = (states.key_S // step.weight) % len(step.counts_AP)
    row_S = np.zeros_like(before_S) if first else before_S
    used_SAP = states.used_SP[:, None] + step.counts_AP
    worth_SA = states.worth_S[:, None] - step.lost_BA[row_S] - (step.room_P - used_SAP) @ step.idle_P
    parent, chosen = np.nonzero((used_SAP <= step.room_P).all(axis=-1) & (worth_SA > floor))
    worth = worth_SA[parent, chosen]
    key = states.key_S[parent] + (chosen - before_S[parent]) * step.weight
    order = np.lexsort((-worth, key))
    best = order[np.concatenate(([True], np.diff(key[order]) > 0))] if len(order) else order
    return _States(key, used_SAP[parent, chosen], worth).at(best), _Trace(parent, chosen).at(best)


def _narrowed(states: _States, trace: _Trace, width: int) -> tuple[_States, _Trace, float]:
    """The states worth most, and what the best of the others is worth."""
    if len(states.key_S) <= width:
        return states, trace, -math.inf
    by_worth = np.argpartition(-states.worth_S, width)
    lost = float(states.worth_S[by_worth[width:]].max())
    return states.at(by_worth[:width]), trace.at(by_worth[:width]), lost


def _day(traces: list[_Trace], best: int, jobs: int) -> Day:
    """Back from the best state to the start."""
    chosen, at = [], best
    for trace in reversed(traces):
        chosen.append(int(trace.chosen_S[at]))
        at = int(trace.parent_S[at])
    chosen.reverse()
    return tuple(tuple(chosen[k::jobs]) for k in range(jobs))

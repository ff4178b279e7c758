"""The day of most worth with the progress of every goal counted as it is, by labels over the joint program of all jobs.

A longest path with resources (Irnich and Desaulniers, 2005): a label is a way to the numbers of nodes of all jobs, some
of them already of the next hour, with its worth w without goals and its progress p_k, of which no more than G_k counts.

Parameters  c_k = u_k + f_k, all that a unit below the target is worth;  prices m_k in [0, c_k] of progress
            r(s) the most worth and priced progress that is still to come after state s, by the joint program backwards
A label is worth at most, for any of the prices tried,
    w + sum_k m_k p_k + r(s) + sum_k (c_k - m_k) G_k - f_k G_k
and is left out where that is no more than the worth at hand, or where another label of its state has
    w' >= w + sum_k c_k max(p_k - p'_k, 0).
Of more than `width` labels those worth most go on, and the largest of the others is a bound beside the best at the end.
O(T K A) for each label, and the joint program once for each of the prices.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats, Indices, Ints
from planner.solvers.schedules.days.split import Day, DaySplit

MOST_CELLS = 6_000_000  # of what is still to come, at all states, steps and prices together
CLOSE = 1e-10  # of the worth at hand: labels must be above it by as much
LEADERS = 6  # labels of a state that the others are compared with

Prices = tuple[float, ...]
"""Of progress of every job; without a goal 0. [K]"""


@dataclass(frozen=True, slots=True, eq=False)
class _Labels:
    """States of all jobs as one number, worth without goals, and progress of the jobs with one. [L], [L], [L, G]"""

    key_L: Ints
    worth_L: Floats
    progress_LG: Floats

    def at(self, index_L: Indices) -> "_Labels":
        """Some of them."""
        return _Labels(self.key_L[index_L], self.worth_L[index_L], self.progress_LG[index_L])


@dataclass(frozen=True, slots=True, eq=False)
class _Goals:
    """Jobs with a goal: which, their targets, all that a unit below these is worth, and what missing all costs."""

    jobs: tuple[int, ...]
    target_G: Floats
    unit_G: Floats
    missed: float

    @classmethod
    def of(cls, problem: DaySplit) -> "_Goals":
        """Those of the problem."""
        goals = [(k, job.goal) for k, job in enumerate(problem.jobs) if job.goal is not None]
        return cls(
            tuple(k for k, _ in goals),
            np.array([goal.target for _, goal in goals]),
            np.array([goal.worth + goal.cost for _, goal in goals]),
            sum(goal.cost * goal.target for _, goal in goals),
        )


def affordable_labels(problem: DaySplit, prices: int) -> bool:
    """Whether what is still to come can be kept for all states and steps."""
    states = math.prod(len(job.counts) for job in problem.jobs)
    return states * len(problem.jobs) * problem.hours * prices <= MOST_CELLS


def labelled(problem: DaySplit, worth: float, prices: Sequence[Prices], width: int) -> tuple[Day | None, float]:
    """The best day worth more than `worth` (None where none was met), and a bound on all days."""
    goals, floor, dropped = _Goals.of(problem), worth + CLOSE * max(abs(worth), 1.0), worth
    tables = [_to_come(problem, own) for own in prices]
    sizes = [len(job.counts) for job in problem.jobs]
    labels = _Labels(np.zeros(1, np.int64), np.zeros(1), np.zeros((1, len(goals.jobs))))
    traces: list[tuple[Indices, Indices]] = []
    for t in range(problem.hours):
        for k in range(len(sizes)):
            wider, parent_L, chosen_L = _stepped(problem, goals, labels, t, k)
            most_L = np.min(
                [_most(goals, wider, table[t][k], own) for table, own in zip(tables, prices, strict=True)], axis=0
            )
            kept = np.flatnonzero(most_L > floor)
            kept = kept[_undominated(wider.at(kept), goals.unit_G)]
            if not len(kept):
                return None, dropped
            if len(kept) > width:
                order = np.argpartition(-most_L[kept], width)
                dropped = max(dropped, float(most_L[kept[order[width:]]].max()))
                kept = kept[np.sort(order[:width])]
            labels = wider.at(kept)
            traces.append((parent_L[kept], chosen_L[kept]))
    value_L = labels.worth_L + labels.progress_LG @ goals.unit_G - goals.missed
    best = int(value_L.argmax())
    return _day(traces, best, len(sizes)), max(dropped, float(value_L[best]))


def _to_come(problem: DaySplit, prices: Prices) -> list[list[Floats]]:
    """The most that is to come after the step of job k in hour t, by state, with progress at these prices. [T][K]"""
    sizes, axes = tuple(len(job.counts) for job in problem.jobs), range(len(problem.jobs))
    free = np.zeros((problem.hours, len(problem.nodes)))
    steps = [job.priced(free, unit) for job, unit in zip(problem.jobs, prices, strict=True)]
    nodes = np.zeros((*sizes, len(problem.nodes)), np.int64)
    for axis, job in enumerate(problem.jobs):
        nodes = nodes + job.nodes_AP.reshape(*(-1 if a == axis else 1 for a in axes), len(problem.nodes))
    fits = (nodes <= np.array(problem.nodes)).all(axis=-1)
    value, tables = np.where(fits, 0.0, -np.inf), []
    for t in reversed(range(problem.hours)):
        rows = []
        for axis in reversed(axes):
            rows.append(value.ravel())
            first_A, later_TAA = steps[axis]
            step_BA = later_TAA[t - 1] if t else np.broadcast_to(first_A, (sizes[axis],) * 2)
            through = np.moveaxis(value, axis, -1)[..., None, :] + step_BA
            value = np.moveaxis(through.max(axis=-1), -1, axis)
        value = np.where(fits, value, -np.inf)
        tables.append(rows[::-1])
    return tables[::-1]


def _stepped(problem: DaySplit, goals: _Goals, labels: _Labels, t: int, k: int) -> tuple[_Labels, Indices, Indices]:
    """All labels after the step of a job, with the label that each comes from and the number of nodes chosen."""
    job = problem.jobs[k]
    size, weight = len(job.counts), math.prod(len(other.counts) for other in problem.jobs[k + 1 :])
    before_L = (labels.key_L // weight) % size
    worth_LA = job.first_A[None] if t == 0 else job.later_TAA[t - 1][before_L]
    parent_L = np.repeat(np.arange(len(before_L)), size)
    chosen_L = np.tile(np.arange(size), len(before_L))
    progress_LG = labels.progress_LG[parent_L]
    if k in goals.jobs:
        made_LA = job.progress_first_A[None] if t == 0 else job.progress_in(t)[before_L]
        g = goals.jobs.index(k)
        made_L = np.broadcast_to(made_LA, (len(before_L), size)).ravel()
        progress_LG[:, g] = np.minimum(progress_LG[:, g] + made_L, goals.target_G[g])
    key_L = labels.key_L[parent_L] + (chosen_L - before_L[parent_L]) * weight
    return _Labels(key_L, (labels.worth_L[:, None] + worth_LA).ravel(), progress_LG), parent_L, chosen_L


def _most(goals: _Goals, labels: _Labels, to_come_S: Floats, prices: Prices) -> Floats:
    """What no day through a label is worth more than. [L]"""
    unit_G = np.array([prices[k] for k in goals.jobs])
    rest = float((goals.unit_G - unit_G) @ goals.target_G) - goals.missed
    return np.asarray(labels.worth_L + labels.progress_LG @ unit_G + to_come_S[labels.key_L] + rest)


def _undominated(labels: _Labels, unit_G: Floats) -> Indices:
    """Labels that no leader of their state dominates: those of most worth were all that is missing made good."""
    full_L = labels.worth_L + labels.progress_LG @ unit_G
    order = np.lexsort((-labels.worth_L, -full_L, labels.key_L))
    key_L, worth_L, progress_LG = (rows[order] for rows in (labels.key_L, labels.worth_L, labels.progress_LG))
    first_L = np.concatenate((np.ones(min(len(key_L), 1), bool), np.diff(key_L) > 0))
    start_L = np.flatnonzero(first_L)[np.cumsum(first_L) - 1] if len(key_L) else order
    place_L = np.arange(len(key_L)) - start_L
    kept_L = np.ones(len(key_L), bool)
    for leader in range(LEADERS):
        behind = np.flatnonzero(kept_L & (place_L > leader))
        ahead = start_L[behind] + leader
        short_LG = np.maximum(progress_LG[behind] - progress_LG[ahead], 0.0)
        kept_L[behind] = worth_L[ahead] < worth_L[behind] + short_LG @ unit_G
    return np.asarray(order[kept_L])


def _day(traces: Sequence[tuple[Indices, Indices]], best: int, jobs: int) -> Day:
    """Back from the best label to the start."""
    chosen, at = [], best
    for parent_L, chosen_L in reversed(traces):
        chosen.append(int(chosen_L[at]))
        at = int(parent_L[at])
    chosen.reverse()
    return tuple(tuple(chosen[k::jobs]) for k in range(jobs))

"""Makespan of equal tasks on groups of machines whose members all take the same number: a subset sum under bisection.

Sets        g in G groups
Parameters  N tasks,  c_g machines of a group,  f_g(n) [s] until a machine of it has done n tasks, rising in n,
            u_g the unit in which a machine takes tasks
Variables   n_g in {u_g, 2 u_g, ...}
Minimise    max f_g(n_g)
(C1) sum c_g n_g = N

For a time T every group has a largest n_g, and whether numbers up to these add up to N is a subset sum, here on the
bits of one integer, in O(N sum (N / c_g) / 64). The least T is one of the values of f, and is found by bisection over
each group's; so f is asked for O(|G|^2 log^2 N) numbers only.
"""

import bisect
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from planner.errors import PlannerError
from planner.solvers.result import SolveResult, Status

Done = Callable[[int], float]


@dataclass(frozen=True, slots=True)
class Machines:
    """A group: how many machines, and the unit in which each of them takes tasks."""

    count: int
    unit: int = 1


def can_share(tasks: int, groups: Sequence[Machines]) -> bool:
    """Whether any numbers add up."""
    _require(tasks, groups)
    return _reach(groups, [tasks // group.count for group in groups], tasks)[-1] >> tasks & 1 == 1


def share_tasks(tasks: int, groups: Sequence[Machines], done_s: Sequence[Done]) -> SolveResult[tuple[int, ...]]:
    """Tasks of a machine of each group, proven optimal; INFEASIBLE where no numbers add up."""
    started = time.perf_counter()
    _require(tasks, groups)
    done_at = [cache(group) for group in done_s]
    most = [tasks // group.count // group.unit for group in groups]  # in units

    def limits(value_s: float) -> list[int]:
        return [_largest(done_at[g], group.unit, most[g], value_s) * group.unit for g, group in enumerate(groups)]

    def works(value_s: float) -> bool:
        return bool(_reach(groups, limits(value_s), tasks)[-1] >> tasks & 1)

    best_s: float | None = None
    for g, group in enumerate(groups):
        low, high = 1, most[g]
        while low <= high:
            middle = (low + high) // 2
            value_s = done_at[g](middle * group.unit)
            if (best_s is not None and value_s >= best_s) or works(value_s):
                high = middle - 1
                best_s = value_s if best_s is None else min(best_s, value_s)
            else:
                low = middle + 1
    took_s = time.perf_counter() - started
    if best_s is None or not works(best_s):
        return SolveResult(Status.INFEASIBLE, "finished", None, None, None, took_s)
    numbers = _numbers(groups, limits(best_s), tasks)
    return SolveResult(Status.OPTIMAL, "finished", numbers, best_s, best_s, took_s, "subset sum and bisection")


def _largest(done_s: Done, unit: int, most: int, value_s: float) -> int:
    """The most units that a machine has done by `value_s`."""
    return bisect.bisect_right(range(1, most + 1), value_s, key=lambda number: done_s(number * unit))


def _reach(groups: Sequence[Machines], most: Sequence[int], tasks: int) -> list[int]:
    """Sums that the first groups can make, as bits, for no group, one, two, ..."""
    kept = (1 << tasks + 1) - 1
    sums = [1]
    for group, limit in zip(groups, most, strict=True):
        reached = 0
        for number in range(group.unit, limit + 1, group.unit):
            reached |= sums[-1] << group.count * number
        sums.append(reached & kept)
    return sums


def _numbers(groups: Sequence[Machines], most: Sequence[int], tasks: int) -> tuple[int, ...]:
    """Numbers up to `most` that add up, the largest for the last groups."""
    sums, left, chosen = _reach(groups, most, tasks), tasks, []
    for g in reversed(range(len(groups))):
        group = groups[g]
        numbers = range(group.unit, min(most[g], left // group.count) + 1, group.unit)
        number = next(n for n in reversed(numbers) if sums[g] >> left - group.count * n & 1)
        chosen.append(number)
        left -= group.count * number
    return tuple(reversed(chosen))


def _require(tasks: int, groups: Sequence[Machines]) -> None:
    if tasks < 1 or not groups or any(group.count < 1 or group.unit < 1 for group in groups):
        raise PlannerError(
            f"{tasks} tasks for {len(groups)} groups",
            where="machines",
            hint="give at least one task, group, machine and unit",
        )

"""Flow-shop problem of equal jobs that go forward over machines and back: task types, and a schedule from an order.

A task type is one pass (forward or backward) of one stage; its k-th task is the k-th job of its pipeline. A job holds
something on each of its machines from the start of its forward pass to the end of its backward pass. A schedule is the
order of the task types on each machine, every task as early as it can.

Array suffixes: T task type, in the order of a job's way; M machine.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from planner.arrays import Bools, Floats, Ints
from planner.errors import PlannerError

TOLERANCE = 1e-9


class FlowShop(NamedTuple):
    """The task types and machines, as compiled loops and CP-SAT read them."""

    machine_T: Ints
    duration_T: Floats
    count_T: Ints  # equal jobs
    before_T: Ints  # the type before it on a job's way, -1 for the first
    partner_T: Ints  # the backward type of a forward type, and the other way round
    resident_T: Floats  # what its start adds to its machine; negative: what its end gives back
    capacity_M: Floats  # infinite where unlimited
    width: int  # tasks of the machine that has most

    @property
    def num_machines(self) -> int:
        return len(self.capacity_M)

    @property
    def num_tasks(self) -> int:
        return int(self.count_T.sum())

    @property
    def forward_T(self) -> Bools:
        """Whether a type is a forward pass."""
        return self.partner_T > np.arange(len(self.partner_T))


@dataclass(frozen=True, slots=True)
class ShopSchedule:
    """Task types in order by machine, the start of each, and the most that a machine ever holds."""

    order: tuple[tuple[int, ...], ...]
    starts: tuple[tuple[float, ...], ...]
    makespan: float
    peak: float


def read_off(shop: FlowShop, order: Sequence[Sequence[int]]) -> ShopSchedule:
    """The schedule of an order of tasks, in O(tasks); raises PlannerError where one is left out or memory is short."""
    ended: dict[tuple[int, int], float] = {}
    done, free = [0] * len(shop.machine_T), [0.0] * shop.num_machines
    starts: list[list[float]] = [[] for _ in order]
    progress = True
    while progress:
        progress = False
        for machine, types in enumerate(order):
            while len(starts[machine]) < len(types):
                task_type = types[len(starts[machine])]
                job, before = done[task_type], int(shop.before_T[task_type])
                if before >= 0 and (before, job) not in ended:
                    break
                start = max(free[machine], ended[before, job] if before >= 0 else 0.0)
                free[machine] = ended[task_type, job] = start + float(shop.duration_T[task_type])
                done[task_type] += 1
                starts[machine].append(start)
                progress = True
    _require_whole(shop, order, done)
    peak = max(_peak(shop, machine, types) for machine, types in enumerate(order))
    return ShopSchedule(
        tuple(tuple(int(t) for t in types) for types in order), tuple(tuple(s) for s in starts), max(free), peak
    )


def _require_whole(shop: FlowShop, order: Sequence[Sequence[int]], done: list[int]) -> None:
    if done != shop.count_T.tolist():
        raise PlannerError("the order leaves passes out, or they wait for each other", where="order")
    for machine, types in enumerate(order):
        if any(shop.machine_T[task_type] != machine for task_type in types):
            raise PlannerError(f"a pass of another machine is on machine {machine}", where="order")


def most_resident(shop: FlowShop, types: Sequence[int]) -> float:
    """The most that a machine holds at any time when it runs these task types in order."""
    return float(np.cumsum(shop.resident_T[np.array(types, np.int64)]).max()) if len(types) else 0.0


def _peak(shop: FlowShop, machine: int, types: Sequence[int]) -> float:
    peak, capacity = most_resident(shop, types), shop.capacity_M[machine]
    if peak > capacity * (1 + TOLERANCE) + TOLERANCE:
        raise PlannerError(f"machine {machine} holds {peak:.6g} of {capacity:.6g}", where="order")
    return peak

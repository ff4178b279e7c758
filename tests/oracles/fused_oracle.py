"""The least makespan of tiny fused pipelines by trying every order of passes on every machine, from the definition.

A task is (pipeline, pass, stage, job): pass 0 goes forward over the stages, pass 1 backward. Equal jobs are in order.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from math import inf
from typing import Protocol

Task = tuple[int, int, int, int]


class Line(Protocol):
    """A pipeline as the problem states it."""

    @property
    def machines(self) -> tuple[int, ...]: ...
    @property
    def jobs(self) -> int: ...
    @property
    def forward(self) -> tuple[float, ...]: ...
    @property
    def backward(self) -> tuple[float, ...]: ...
    @property
    def resident_bytes(self) -> float: ...


def least_makespan(lines: Sequence[Line], capacity: Sequence[float] | None) -> float:
    """Infinite where no order keeps the capacities."""
    machines = range(1 + max(machine for line in lines for machine in line.machines))
    room = [inf] * len(machines) if capacity is None else capacity
    orders = [list(_orders(lines, machine, room[machine])) for machine in machines]
    return min((_makespan(lines, order) for order in product(*orders)), default=inf)


def _orders(lines: Sequence[Line], machine: int, room: float) -> Iterator[tuple[Task, ...]]:
    """Every order of a machine's tasks with each backward pass after its forward pass, holding no more than fits."""
    passes = [(i, way, line.machines.index(machine)) for i, line in enumerate(lines) if machine in line.machines
              for way in (0, 1)]  # fmt: skip
    count = sum(lines[i].jobs for i, _, _ in passes)

    def extend(order: tuple[Task, ...], resident: float) -> Iterator[tuple[Task, ...]]:
        if len(order) == count:
            yield order
        for i, way, stage in passes:
            job = sum((i, way) == task[:2] for task in order)
            more = -lines[i].resident_bytes if way else lines[i].resident_bytes
            if job < lines[i].jobs and resident + more <= room + 1e-9 and (way == 0 or (i, 0, stage, job) in order):
                yield from extend((*order, (i, way, stage, job)), resident + more)

    return extend((), 0.0)


def _makespan(lines: Sequence[Line], order: Sequence[Sequence[Task]]) -> float:
    """Every task as early as it can; infinite where tasks wait for each other."""
    end: dict[Task, float] = {}
    free, rest = [0.0] * len(order), [list(tasks) for tasks in order]
    while any(rest):
        ready = [m for m, tasks in enumerate(rest) if tasks and _before(lines, tasks[0]) in (None, *end)]
        if not ready:
            return inf
        for machine in ready:
            task = rest[machine].pop(0)
            i, way, stage, _ = task
            before = _before(lines, task)
            start = max(free[machine], 0.0 if before is None else end[before])
            free[machine] = end[task] = start + (lines[i].backward if way else lines[i].forward)[stage]
    return max(free)


def _before(lines: Sequence[Line], task: Task) -> Task | None:
    """The task on its job's way before it."""
    i, way, stage, job = task
    last = len(lines[i].machines) - 1
    if way == 0:
        return None if stage == 0 else (i, 0, stage - 1, job)
    return (i, 0, last, job) if stage == last else (i, 1, stage + 1, job)

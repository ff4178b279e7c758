"""The order in which copies on sets of devices are brought and dropped: always room, never a model without a copy.

Sets        c in C copies: a model, the devices that it stands on, and what it takes of each of these
Parameters  M_d bytes of a device;  b_c bytes to bring a copy;  S copies that stand now, T that are to stand
            P further copies that may stand on the way (of models of S and T, on devices of others' copies)
            k_m of the copies of a model that stand now and those that are to stand the lesser number
Variables   steps, each a copy of T or P that is brought, or one outside T that is dropped
Minimise    sum of b_c over the copies that are brought
(C1) copies on a device take M_d at most, at every step
(C2) a model that stands now and is to stand has k_m copies at the least, at every step
Method      A* over the sets of copies that stand, with the bytes of copies of T still to be brought as the estimate.
            Copies of models that are to have none are dropped at once: no later step needs them.
"""

import heapq
import itertools
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planner.errors import PlannerError
from planner.solvers.result import SolveResult, Status

WHERE, SOLVER = "moves", "A*"
DUST = 1e-9  # of a device's bytes
MOST_STATES = 50_000


Device = tuple[str, int]
"""A pool, and the number of the device there."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A model on some devices: what it takes of each of them, and the bytes to bring it there."""

    model: str
    devices: tuple[Device, ...]
    taken_bytes: float
    brought_bytes: float


@dataclass(frozen=True, slots=True)
class Step:
    """A copy that is brought, or one that is dropped."""

    copy: Copy
    brought: bool


@dataclass(frozen=True, slots=True)
class Regroup:
    """What stands and what is to stand; raises PlannerError where either takes more of a device than it has."""

    memory_bytes: float  # of every device
    now: frozenset[Copy]
    target: frozenset[Copy]

    def __post_init__(self) -> None:
        for name, copies in (("now", self.now), ("afterwards", self.target)):
            for device, taken in self.taken(copies).items():
                if taken > self.memory_bytes * (1.0 + DUST):
                    what = f"device {device[1]} of `{device[0]}` holds {taken:g} of {self.memory_bytes:g} bytes {name}"
                    raise PlannerError(what, where=WHERE, hint="give placements that fit")

    def taken(self, copies: frozenset[Copy]) -> dict[Device, float]:
        """Bytes of every device that copies stand on."""
        taken: dict[Device, float] = {}
        for copy in copies:
            for device in copy.devices:
                taken[device] = taken.get(device, 0.0) + copy.taken_bytes
        return taken

    def least(self) -> dict[str, int]:
        """(C2): copies that every model keeps."""
        now, then = (Counter(copy.model for copy in copies) for copies in (self.now, self.target))
        return {model: min(now[model], then[model]) for model in now if then[model]}

    @property
    def missing_bytes(self) -> float:
        """Of copies that are to stand and do not: no order brings fewer."""
        return sum(copy.brought_bytes for copy in self.target - self.now)


def order_moves(problem: Regroup, *, most_states: int = MOST_STATES) -> SolveResult[tuple[Step, ...]]:
    """The order of fewest bytes; INFEASIBLE where there is none, UNKNOWN where more states would be looked at."""
    started_s = time.perf_counter()
    least, between = problem.least(), _between(problem)
    came: dict[frozenset[Copy], tuple[frozenset[Copy], Step] | None] = {problem.now: None}
    cost = {problem.now: 0.0}
    ties = itertools.count()
    heap = [(problem.missing_bytes, 0, next(ties), problem.now)]
    closed: set[frozenset[Copy]] = set()
    while heap:
        estimate, _, _, state = heapq.heappop(heap)
        if state in closed:
            continue
        closed.add(state)
        took_s = time.perf_counter() - started_s
        if state == problem.target:
            steps = _steps(came, state)
            return SolveResult(Status.OPTIMAL, "finished", steps, cost[state], cost[state], took_s, SOLVER)
        if len(closed) > most_states:
            return SolveResult(Status.UNKNOWN, "node_limit", None, None, estimate, took_s, SOLVER)
        for step, after in _after(problem, state, least, between):
            value = cost[state] + (step.copy.brought_bytes if step.brought else 0.0)
            if after not in closed and value < cost.get(after, float("inf")) - DUST:
                cost[after], came[after] = value, (state, step)
                missing = sum(copy.brought_bytes for copy in problem.target - after)
                left = len(after ^ problem.target)
                heapq.heappush(heap, (value + missing, left, next(ties), after))
    took_s = time.perf_counter() - started_s
    return SolveResult(Status.INFEASIBLE, "finished", None, None, None, took_s, SOLVER)


def _between(problem: Regroup) -> list[Copy]:
    """Copies that may stand on the way: those of models that go on, on devices of others' copies of as many devices."""
    kept = set(problem.least())
    places = sorted({copy.devices for copy in problem.now | problem.target}, key=repr)
    shapes = {(c.model, len(c.devices), c.taken_bytes, c.brought_bytes) for c in problem.now | problem.target}
    copies = {
        Copy(model, devices, taken, brought)
        for model, size, taken, brought in shapes
        if model in kept
        for devices in places
        if len(devices) == size
    }
    return sorted(copies - problem.now - problem.target, key=repr)


def _after(
    problem: Regroup, state: frozenset[Copy], least: dict[str, int], between: Sequence[Copy]
) -> Iterator[tuple[Step, frozenset[Copy]]]:
    taken, counts = problem.taken(state), Counter(copy.model for copy in state)
    for copy in sorted(state - problem.target, key=repr):
        if counts[copy.model] > least.get(copy.model, 0):
            yield Step(copy, brought=False), state - {copy}
            if copy.model not in least:
                return  # nothing will stand of it: dropped at once
    for copy in [*sorted(problem.target - state, key=repr), *between]:
        room = all(
            taken.get(device, 0.0) + copy.taken_bytes <= problem.memory_bytes * (1.0 + DUST) for device in copy.devices
        )
        if copy not in state and room:
            yield Step(copy, brought=True), state | {copy}


def _steps(
    came: dict[frozenset[Copy], tuple[frozenset[Copy], Step] | None], state: frozenset[Copy]
) -> tuple[Step, ...]:
    steps, link = list[Step](), came[state]
    while link is not None:
        before, step = link
        steps.append(step)
        link = came[before]
    return tuple(reversed(steps))

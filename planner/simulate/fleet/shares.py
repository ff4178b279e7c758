"""Splits requests over the paths of a fleet by the plan's shares; routing then chooses among equal instances."""

import math
from collections.abc import Sequence

import numpy as np

from planner.arrays import Ints
from planner.errors import PlannerError
from planner.simulate.fleet.instances import Fleet, RequestPath
from planner.simulate.requests.stream import Requests

GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0


def shared_out(shares: Sequence[float], count: int) -> Ints:
    """The path of each of `count` requests [R], so that every stretch of them has nearly these shares.

    Multiples of the golden ratio, modulo 1, fill every interval evenly (Knuth, The Art of Computer Programming, volume
    3, section 6.4, theorem S).
    """
    place, ends = (np.arange(1, count + 1) * GOLDEN) % 1.0, np.cumsum(shares)
    return np.searchsorted(ends[:-1] / ends[-1], place, side="right").astype(np.int64)


def instances_of(fleet: Fleet, requests: Requests) -> tuple[Ints, Ints]:
    """Numbers [R] of the instances that take each request first and last: those of its model, or of its path.

    A request that is too long for its path goes the way with most room. Raises PlannerError where no instance serves.
    """
    if not fleet.paths:
        model = _numbers(requests.model, len(requests))
        _require(model, "model", {instance.model for instance in fleet.instances})
        return model, model
    workload = _numbers(requests.workload, len(requests))
    _require(workload, "workload", set(range(len(fleet.paths))))
    first, last = np.zeros_like(workload), np.zeros_like(workload)
    for number, paths in enumerate(fleet.paths):
        own = np.flatnonzero(workload == number)
        room = np.array([_room(fleet, path) for path in paths])
        chosen = shared_out([path.share for path in paths], len(own))
        long = (requests.input_tokens + requests.output_tokens)[own] > room[chosen]
        chosen = np.where(long, int(np.argmax(room)), chosen)
        first[own] = np.array([path.first for path in paths])[chosen]
        last[own] = np.array([path.last for path in paths])[chosen]
    return first, last


def _numbers(given: Ints | None, count: int) -> Ints:
    return np.zeros(count, dtype=np.int64) if given is None else given


def _require(numbers: Ints, what: str, served: set[int]) -> None:
    strange = np.flatnonzero(~np.isin(numbers, sorted(served)))
    if len(strange):
        problem = f"request {strange[0]} is for {what} {numbers[strange[0]]}, which no instance serves"
        raise PlannerError(problem, hint=f"instances serve {', '.join(map(str, sorted(served)))}")


def _room(fleet: Fleet, path: RequestPath) -> int:
    """Tokens that some instance at either end of a path can hold."""
    first, last = (
        max(
            instance.kv_tokens
            for instance in fleet.instances
            if instance.model == number and (instance.role == "decode") == decoding
        )
        for number, decoding in ((path.first, False), (path.last, path.first != path.last))
    )
    return min(first, last) // fleet.block_tokens * fleet.block_tokens

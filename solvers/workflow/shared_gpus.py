"""GPUs that replicas of several stages share: the fewest that hold a share of a GPU for every replica.

Sets        t in T sizes;  g in G GPUs
Parameters  f_t in (0, 1] share of a GPU, k_t replicas
Variables   n_tg replicas of a size on a GPU
Minimise    |G|
(C1) sum_g n_tg = k_t
(C2) sum_t f_t n_tg <= 1

Method      first fit of falling shares; where that is more than the sum of shares, rounded up, every way to fill a
            GPU that leaves no room for another replica, with what is left filled likewise (kept by what is left).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

DUST = 1e-9  # of a GPU


@dataclass(frozen=True, slots=True)
class Part:
    """The share that a replica takes of a GPU of some type."""

    gpu: int
    share: float


def gpus_of(replicas: Sequence[tuple[float, int]]) -> tuple[tuple[int, ...], ...]:
    """For each GPU how many replicas of each (share, replicas) it holds; as few GPUs as can be."""
    sizes = sorted({share for share, count in replicas if count}, reverse=True)
    left = tuple(sum(count for share, count in replicas if share == size) for size in sizes)
    filled: Sequence[tuple[int, ...]] = _first_fit(tuple(sizes), left)
    if len(filled) > least_gpus(replicas):
        filled = _fewest(tuple(sizes), left)
    return tuple(_by_stage(replicas, sizes, filled))


def spread(replicas: Sequence[tuple[float, int]]) -> tuple[tuple[int, ...], ...]:
    """As `gpus_of`, with replicas of a stage on different GPUs where these few hold them so."""
    packed = gpus_of(replicas)
    room, rows = [1.0] * len(packed), [[0] * len(replicas) for _ in packed]
    for stage in sorted(range(len(replicas)), key=lambda stage: -replicas[stage][0]):
        share, count = replicas[stage]
        for _ in range(count):
            free = [gpu for gpu, left in enumerate(room) if left >= share - DUST]
            if not free:
                return packed
            gpu = min(free, key=lambda gpu: (rows[gpu][stage], room[gpu]))
            rows[gpu][stage] += 1
            room[gpu] -= share
    return tuple(map(tuple, rows))


def least_gpus(replicas: Sequence[tuple[float, int]]) -> int:
    """No fewer hold them: the sum of shares, rounded up."""
    return math.ceil(sum(share * count for share, count in replicas) - DUST)


def _by_stage(
    replicas: Sequence[tuple[float, int]], sizes: Sequence[float], filled: Sequence[tuple[int, ...]]
) -> Iterator[tuple[int, ...]]:
    """Counts by size as counts by stage, the first stage of a size first."""
    left = [count for _, count in replicas]
    for held in filled:
        by_size = dict(zip(sizes, held, strict=True))
        row = []
        for stage, (share, _) in enumerate(replicas):
            taken = min(left[stage], by_size.get(share, 0))
            by_size[share] = by_size.get(share, 0) - taken
            left[stage] -= taken
            row.append(taken)
        yield tuple(row)


def _first_fit(sizes: tuple[float, ...], left: tuple[int, ...]) -> list[tuple[int, ...]]:
    room: list[float] = []
    rows: list[list[int]] = []
    for size, (share, count) in enumerate(zip(sizes, left, strict=True)):
        for _ in range(count):
            gpu = next((g for g, free in enumerate(room) if free >= share - DUST), len(room))
            if gpu == len(room):
                room.append(1.0)
                rows.append([0] * len(sizes))
            room[gpu] -= share
            rows[gpu][size] += 1
    return [tuple(row) for row in rows]


@cache
def _fewest(sizes: tuple[float, ...], left: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The largest replica that is left stands on the next GPU, with every set of others that fills it."""
    if not any(left):
        return ()
    largest = next(size for size, count in enumerate(left) if count)
    first = tuple(int(size == largest) for size in range(len(sizes)))
    best: tuple[tuple[int, ...], ...] | None = None
    for row in _fillings(sizes, left, first, 1.0 - sizes[largest], largest):
        rest = tuple(count - taken for count, taken in zip(left, row, strict=True))
        others = _fewest(sizes, rest)
        if best is None or len(others) + 1 < len(best):
            best = (row, *others)
    assert best is not None
    return best


def _fillings(
    sizes: tuple[float, ...], left: tuple[int, ...], row: tuple[int, ...], room: float, size: int
) -> Iterator[tuple[int, ...]]:
    """Rows that leave no room for a replica of any size that is left, sizes in order."""
    if size == len(sizes):
        fits = (share <= room + DUST and left[s] > row[s] for s, share in enumerate(sizes))
        if not any(fits):
            yield row
        return
    most = min(left[size] - row[size], math.floor((room + DUST) / sizes[size]))
    for more in range(most, -1, -1):
        taken = (*row[:size], row[size] + more, *row[size + 1 :])
        yield from _fillings(sizes, left, taken, room - more * sizes[size], size + 1)


class Priced(Protocol):
    """An option of a stage: the price of a replica, and the share of a GPU that it takes, if it takes no whole ones."""

    @property
    def cost(self) -> float: ...
    @property
    def part(self) -> Part | None: ...


@dataclass(frozen=True, slots=True)
class Price:
    """The price alone of such an option."""

    cost: float
    part: Part | None


def cost_of(chosen: Sequence[tuple[Priced, int]], *, whole: bool) -> float:
    """Of options with their replicas; where all are there (`whole`) the GPUs that some share are paid for as such."""
    shared = [(option.part, option.cost, k) for option, k in chosen if option.part is not None]
    if not whole or not shared:
        return sum(k * option.cost for option, k in chosen)
    return sum(k * option.cost for option, k in chosen if option.part is None) + gpus_cost(shared)


def gpus_cost(parts: Sequence[tuple[Part, float, int]]) -> float:
    """Of GPUs that hold replicas of (part, cost of a replica, replicas): whole GPUs are paid for."""
    total = 0.0
    for gpu in {part.gpu for part, _, _ in parts}:
        own = [(part.share, count) for part, _, count in parts if part.gpu == gpu]
        price = next(cost / part.share for part, cost, _ in parts if part.gpu == gpu)
        total += price * len(gpus_of(own))
    return total

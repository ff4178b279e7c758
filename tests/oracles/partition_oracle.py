"""Every cut of a row into stages with every choice of options, one by one."""

from collections.abc import Iterator, Sequence
from itertools import product


def cuts(items: int, stages: int) -> Iterator[tuple[int, ...]]:
    """Every way to give `items` to `stages` in order."""
    if stages == 1:
        yield (items,)
        return
    for first in range(items + 1):
        yield from ((first, *rest) for rest in cuts(items - first, stages - 1))


def least_slowest(
    time: Sequence[Sequence[float]],
    held: Sequence[Sequence[float]],
    fixed: Sequence[float],
    stages: Sequence[tuple[float, float, float, float, int]],
) -> float | None:
    """The least slowest stage; a stage is (depth, more time, more bytes, capacity, least items)."""
    best = None
    for counts in cuts(len(fixed), len(stages)):
        if any(count < stage[4] for count, stage in zip(counts, stages, strict=True)):
            continue
        slowest, first = 0.0, 0
        for count, (depth, more_time, more_bytes, capacity, _) in zip(counts, stages, strict=True):
            span = range(first, first + count)
            first += count
            room = capacity * (1 + 1e-12) - more_bytes - sum(fixed[item] for item in span)
            fastest = [
                sum(time[option][item] for option, item in zip(chosen, span, strict=True))
                for chosen in product(range(len(time)), repeat=count)
                if depth * sum(held[option][item] for option, item in zip(chosen, span, strict=True)) <= room
            ]
            slowest = max(slowest, more_time + min(fastest)) if fastest else float("inf")
        if slowest < float("inf") and (best is None or slowest < best):
            best = slowest
    return best

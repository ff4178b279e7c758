"""Expert layouts by definition: every way to fill the slots of ranks, tokens shared equally among copies or freely."""

import itertools
from collections.abc import Iterator, Sequence

Held = tuple[tuple[int, ...], ...]
"""Experts of every rank."""


def layouts(slots_R: Sequence[int], allowed_ER: Sequence[Sequence[bool]]) -> Iterator[Held]:
    """Every layout that fills all slots, has a copy of each expert, and none twice on a rank or where it may not be."""
    experts = range(len(allowed_ER))
    of_rank = [
        list(itertools.combinations([e for e in experts if allowed_ER[e][r]], slots)) for r, slots in enumerate(slots_R)
    ]
    return (held for held in itertools.product(*of_rank) if {e for rank in held for e in rank} == {*experts})


def equal_time(load_E: Sequence[float], speed_R: Sequence[float], held: Held) -> float:
    """The slowest rank where copies of an expert have equal shares of its tokens."""
    copies = [sum(e in rank for rank in held) for e in range(len(load_E))]
    return max(sum(load_E[e] / copies[e] for e in rank) / speed for rank, speed in zip(held, speed_R, strict=True))


def free_time(load_E: Sequence[float], speed_R: Sequence[float], held: Held) -> float:
    """The same with the best shares: the most that any experts take of the ranks that hold one of them (Hall)."""
    experts = range(len(load_E))
    some = (chosen for size in range(1, len(load_E) + 1) for chosen in itertools.combinations(experts, size))
    return max(
        sum(load_E[e] for e in chosen)
        / sum(speed for rank, speed in zip(held, speed_R, strict=True) if {*rank} & {*chosen})
        for chosen in some
    )


def least_imbalance(
    load_E: Sequence[float],
    slots_R: Sequence[int],
    speed_R: Sequence[float],
    allowed_ER: Sequence[Sequence[bool]],
    *,
    free: bool,
) -> float:
    """Time of the slowest rank over the mean, of the best layout; infinite where there is none."""
    mean = sum(load_E) / sum(speed_R)
    time = free_time if free else equal_time
    return min((time(load_E, speed_R, held) for held in layouts(slots_R, allowed_ER)), default=float("inf")) / mean

"""Evens the loads of instances that hold blocks: blocks of one copy are exchanged, then copies share as is best.

Exchanges are between the most and the least loaded instance, each bringing the two as near as it can. What is left is
levelled by the shares of blocks with several copies:

Sets        i in N instances, b in M blocks of several copies, i in A_b those that hold b
Parameters  f_i load of blocks of one copy, l_b accesses
Variables   x_bi >= 0 the share of b that i carries;  T
Minimise    T
(E1) sum_{i in A_b} x_bi = 1            for b
(E2) f_i + sum_b l_b x_bi <= T          for i
N instance.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from planner.arrays import Floats, Ints

MOST_EXCHANGES = 20  # by instance


@dataclass(slots=True)
class Alone:
    """Blocks of one copy by the instance that holds them and by load, and what room instances have left."""

    load_N: Floats  # of all copies
    room_N: Ints
    blocks: list[dict[float, list[int]]] = field(init=False)

    def __post_init__(self) -> None:
        self.blocks = [{} for _ in self.load_N]

    def hold(self, block: int, load: float, at: int) -> None:
        """Takes in a block whose load and slot are counted."""
        self.blocks[at].setdefault(load, []).append(block)

    def even(self) -> None:
        """Exchanges blocks of the most and the least loaded instance, or moves them, as long as these come nearer."""
        for _ in range(MOST_EXCHANGES * len(self.load_N)):
            most, least = int(np.argmax(self.load_N)), int(np.argmin(self.load_N))
            pair = self._nearest(most, least)
            if pair is None:
                return
            down, up = pair
            self._move(down, most, least)
            if up > 0.0:
                self._move(up, least, most)

    def homes(self) -> dict[int, int]:
        """The instance of each block."""
        return {block: at for at, by_load in enumerate(self.blocks) for blocks in by_load.values() for block in blocks}

    def _nearest(self, most: int, least: int) -> tuple[float, float] | None:
        """Loads to be exchanged, 0 for nothing in return, so that half of what they differ by is nearest to moved."""
        gap = float(self.load_N[most] - self.load_N[least])
        returned = [*([0.0] if self.room_N[least] else []), *self.blocks[least]]
        pairs = [(down, up) for down in self.blocks[most] for up in returned if 0.0 < down - up < gap]
        return min(pairs, key=lambda pair: abs(gap - 2.0 * (pair[0] - pair[1])), default=None)

    def _move(self, load: float, start: int, end: int) -> None:
        blocks = self.blocks[start][load]
        self.blocks[end].setdefault(load, []).append(blocks.pop())
        if not blocks:
            del self.blocks[start][load]
        self.load_N[[start, end]] += (-load, load)
        self.room_N[[start, end]] += (1, -1)


def even_shares(fixed_N: Floats, copied: Mapping[int, Ints], load: Mapping[int, float]) -> dict[int, Floats]:
    """The shares of (E1) and (E2), by block; `fixed_N` is what instances carry of other blocks."""
    from scipy.optimize import linprog

    if not copied:
        return {}
    counts = [len(at) for at in copied.values()]
    instance_C, block_C = np.concatenate(list(copied.values())), np.repeat(np.arange(len(copied)), counts)
    load_C, width = np.array([load[block] for block in copied])[block_C], len(block_C) + 1
    copies = np.arange(width - 1)
    most, whole, worth = np.zeros((len(fixed_N), width)), np.zeros((len(copied), width)), np.zeros(width)
    most[instance_C, copies], most[:, -1] = load_C, -1.0
    whole[block_C, copies] = 1.0
    worth[-1] = 1.0
    answer = linprog(
        worth, A_ub=most, b_ub=-fixed_N, A_eq=whole, b_eq=np.ones(len(copied)), bounds=(0.0, None), method="highs"
    )
    even = 1.0 / np.repeat(counts, counts)
    share_C = even if answer.x is None else np.maximum(answer.x[:-1], 0.0)
    return {
        block: part / part.sum() for block, part in zip(copied, np.split(share_C, np.cumsum(counts)[:-1]), strict=True)
    }

"""Lower bounds on step time across pools: what no pipeline layout and no split of the batch can beat.

Pipelines. Let W be the work of a micro-batch in the whole model on the first pool, and r_p the least ratio, over all
parts of the model, of seconds on pool p to those on the first. The slowest rank takes at least T where n_p ranks of
each pool p hold at most T / r_p of W each: W <= T sum n_p / r_p. And layers are resident whole: l of them take a
rank of pool p at least l t_p + min(l, F) f_p seconds, the first F computed again whole, so that with the most that T
has time for, l_p(T), sum n_p l_p(T) >= L.

Replicas. Every rank of pool p does m_p micro-batches, which take at least m_p t_p there, and a_p more from some number
on; the batch is shared out on these least times (`planner.solvers.schedules.even_finish`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from planner.arrays import Floats
from planner.kinds.train.evaluation.choice import PlanChoice
from planner.kinds.train.search.bounds import Floor
from planner.kinds.train.space.tables import CostTable, RecomputeMode


@dataclass(frozen=True, slots=True)
class PoolFloor:
    """Least seconds of the pipelines of one pool by the number of micro-batches of each."""

    each_s: float
    start_s: float = 0.0  # more, from `least` micro-batches on
    least: float = 0.0

    def least_s(self, batches: int) -> float:
        """Of so many micro-batches."""
        return batches * self.each_s + (self.start_s if batches >= self.least else 0.0)


@dataclass(frozen=True)
class Speeds:
    """The pools beside each other, for one shape and way to recompute; the first is what others are measured by."""

    floors: tuple[Floor, ...]  # of all layers but those computed again whole
    full_layers: int = 0  # F

    @classmethod
    def of(
        cls, tables: Sequence[CostTable], pp: int, modes: Sequence[RecomputeMode | None], full_layers: int, heads: bool
    ) -> "Speeds":
        """`heads`: whether heads of multi-token prediction count."""
        pairs = zip(tables, modes, strict=True)
        return cls(tuple(Floor(table, pp, mode, further_heads=heads) for table, mode in pairs), full_layers)

    @cached_property
    def part_PX2(self) -> Floats:
        """Seconds forwards and backwards of every kind of layer, and of the ends."""
        rows = []
        for floor in self.floors:
            table = floor.table
            pass_K3 = table.pass_K3
            again_K = np.zeros(len(pass_K3)) if floor.mode is None else np.array(floor.mode.extra_s)
            layers = [(p[0], p[1] + p[2] + again) for p, again in zip(pass_K3, again_K, strict=True)]
            ends = [(p[0], p[1] + p[2]) for p in (table.first.pass_s, floor.last_s)]
            rows.append([*layers, *ends])
        return np.array(rows)

    @cached_property
    def ratio_P(self) -> Floats:
        """r_p."""
        total_PX = self.part_PX2.sum(axis=2)
        return np.asarray((total_PX / total_PX[0]).min(axis=1))

    @cached_property
    def pass_ratio_P(self) -> Floats:
        """r_p of the passes forwards and backwards each on its own."""
        counted_X = (self.part_PX2[0] > 0).all(axis=1)
        part_PX2 = self.part_PX2[:, counted_X]
        return np.asarray((part_PX2 / part_PX2[0]).min(axis=(1, 2)))

    @cached_property
    def layers_PL(self) -> Floats:
        """Least seconds of 1, 2, ... layers on a rank of each pool."""
        kinds = len(self.floors[0].table.layers)
        part_PK2 = self.part_PX2[:, :kinds]
        each_P, forward_P = part_PK2.sum(axis=2).min(axis=1), part_PK2[:, :, 0].min(axis=1)
        number_L = np.arange(1, self.floors[0].table.job.arch.num_layers + 1)
        again_L = np.minimum(number_L, self.full_layers)
        return np.asarray(each_P[:, None] * number_L + forward_P[:, None] * again_L)

    @cached_property
    def least_work_s(self) -> float:
        """Of one micro-batch through the whole model, wherever each part of it lies."""
        return float(self.floors[0].work_s * min(1.0, float(self.ratio_P.min())))

    @cached_property
    def forward_share(self) -> float:
        """The largest share of the forward pass in what it belongs to, on any pool."""
        return max(floor.forward_share for floor in self.floors)

    def slowest_s(self, ranks_MP: Floats) -> Floats:
        """Least seconds of a micro-batch on the slowest rank [M], for numbers of ranks on each pool."""
        shared_M = self.floors[0].work_s / (ranks_MP / self.ratio_P).sum(axis=1)
        value_C = np.unique(self.layers_PL)
        layers_PC = np.array([np.searchsorted(row, value_C * (1.0 + 1e-12), side="right") for row in self.layers_PL])
        low_M = np.zeros(len(ranks_MP), np.int64)
        high_M = np.full(len(ranks_MP), len(value_C) - 1)  # in which a rank of any pool has time for all layers
        while (low_M < high_M).any():
            middle_M = (low_M + high_M) // 2
            enough_M = (ranks_MP * layers_PC[:, middle_M].T).sum(axis=1) >= self.layers_PL.shape[1]
            low_M, high_M = np.where(enough_M, low_M, middle_M + 1), np.where(enough_M, middle_M, high_M)
        return np.asarray(np.maximum(shared_M, value_C[high_M]))


def pool_floor(choice: PlanChoice, floor: Floor, more_s: float) -> PoolFloor:
    """Least seconds of the pipelines of one pool; `more_s` of every micro-batch on every rank."""
    each_s = floor.slowest_s + more_s
    if choice.schedule != "1f1b" or choice.pp == 1:
        return PoolFloor(each_s)
    least = 1.0 + (choice.pp - 1) * floor.forward_share
    return PoolFloor(each_s, max(floor.work_s - least * each_s, 0.0), least)

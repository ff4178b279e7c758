"""Jobs across several pools, priced: one pipeline with stages on each pool, or data-parallel replicas in each.

Every part is a choice as it would be on its pool alone, so that all costs are those of that pool's GPUs and links; a
layout is priced on each pool, and every rank takes its figures from its own. Shape suffixes: P pool, R rank, S stage,
U unit of the pipeline.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from planner.arrays import Floats
from planner.kinds.train.evaluation.evaluate import (
    Choice,
    Evaluation,
    Memory,
    Part,
    Spent,
    each_micro_batch,
    evaluate,
    handover,
    lay_out,
    load_of,
    memory_of,
    played,
    room_of,
    shown_s,
    spent,
)
from planner.kinds.train.evaluation.layout import Counts
from planner.kinds.train.pools.links import crossing_s
from planner.kinds.train.pools.speeds import Speeds, pool_line
from planner.kinds.train.search.bounds import Floor, exchanging_s, once_s
from planner.kinds.train.space.tables import Mode
from planner.solvers.schedules.even_finish import Machines, share_tasks


@dataclass(frozen=True)
class Across(ABC):
    """A job across pools but for its layout; every part has the same shape, schedule and recomputation."""

    parts: tuple[Choice, ...]

    @property
    @abstractmethod
    def whole(self) -> Choice:
        """The whole job as priced on the first pool."""

    @abstractmethod
    def room_U(self) -> Floats:
        """Bytes of each unit of the pipeline for its layers."""

    @abstractmethod
    def floor_s(self, mode: Mode | None, full_layers: int) -> float:
        """Least seconds of a step under any layout, where at least this is computed again."""

    @abstractmethod
    def priced(self) -> Evaluation | None:
        """The job laid out and played; None where its layers do not fit."""

    def under(self, mode: Mode, full_layers: int) -> "Across":
        """The job with another recomputation."""
        parts = tuple(
            replace(part, mode=part.table.mode(mode.recompute), full_layers=full_layers) for part in self.parts
        )
        return replace(self, parts=parts)

    def _modes(self, mode: Mode | None) -> list[Mode | None]:
        return [None if mode is None else part.table.mode(mode.recompute) for part in self.parts]


@dataclass(frozen=True)
class StagesAcross(Across):
    """One pipeline: `ranks` of it on each pool, in its order. Every part is priced as if all ranks were on its pool."""

    ranks: tuple[int, ...]

    @property
    def whole(self) -> Choice:
        return self.parts[0]

    @cached_property
    def pool_R(self) -> list[int]:
        """The pool of each rank."""
        return [pool for pool, number in enumerate(self.ranks) for _ in range(number)]

    @cached_property
    def pool_S(self) -> list[int]:
        """The pool of each stage."""
        ranks = enumerate(self.whole.pipe.stages_of_rank)
        return [pool for _, pool in sorted((stage, self.pool_R[rank]) for rank, held in ranks for stage in held)]

    def room_U(self) -> Floats:
        """Units are ranks here: schedules in which two ranks hold the same stages keep to one pool."""
        capacity_P = np.array([part.table.job.capacity_bytes for part in self.parts])
        return np.asarray(room_of(self.whole) + (capacity_P - capacity_P[0])[self.pool_R])

    def floor_s(self, mode: Mode | None, full_layers: int) -> float:
        whole, ranks_P = self.whole, np.array(self.ranks, np.float64)
        batches, pp = whole.num_micro_batches, whole.pp
        speeds = Speeds.of([part.table for part in self.parts], pp, self._modes(mode), full_layers, heads=True)
        share_2 = whole.table.model_2 / pp
        once_P3 = np.array([part.sharing.rate_F2[:3] @ share_2 for part in self.parts])
        slowest_s = float(speeds.slowest_s(ranks_P[None, :])[0])
        often = each_micro_batch(whole.zero_stage, batches)
        if often:
            slowest_s = max(slowest_s, self._exchanging_s(speeds, once_P3, ranks_P))
        slowest_s += 2.0 * whole.vpp * min(message_s * exposed for message_s, exposed in map(handover, self.parts))
        pipeline_s = batches * slowest_s
        ahead = batches - 1 - (pp - 1) * speeds.forward_share
        if whole.schedule == "1f1b" and ahead >= 0 and not often:
            pipeline_s = max(pipeline_s, speeds.least_work_s + ahead * slowest_s)
        reduce_s, gather_s, optimizer_s = once_P3.min(axis=0).tolist()
        return pipeline_s + once_s(whole, reduce_s, gather_s, optimizer_s)

    def _exchanging_s(self, speeds: Speeds, once_P3: Floats, ranks_P: Floats) -> float:
        """As `Speeds.slowest_s` shares the work out, with what is exchanged beside it."""
        gathered = [0, 1] if self.whole.zero_stage == 3 else [0]
        rate_PX = np.array([part.sharing.rate_F2[gathered].ravel() for part in self.parts])
        known_X = rate_PX[0] > 0
        exchange_P = (rate_PX[:, known_X] / rate_PX[0, known_X]).min(axis=1) if known_X.any() else np.ones(len(ranks_P))
        ratio_P = np.minimum(speeds.pass_ratio_P, exchange_P)
        reduce_s, gather_s = float(once_P3[0, 0]), float(once_P3[0, 1])
        first_s = exchanging_s(self.whole, speeds.floors[0], reduce_s, gather_s)
        return float(self.whole.pp * first_s / (ranks_P / ratio_P).sum())

    def priced(self) -> Evaluation | None:
        counts = self._laid_out()
        return None if counts is None else self.evaluated(counts)

    def _laid_out(self) -> Counts | None:
        loads = [load_of(part) for part in self.parts]
        room_U = loads[0].room_R - room_of(self.whole) + self.room_U()
        by_pool = [(loads[pool].time_RL[rank], loads[pool].more_time_R[rank]) for rank, pool in enumerate(self.pool_R)]
        time_RL, more_R = np.array([row[0] for row in by_pool]), np.array([row[1] for row in by_pool])
        return lay_out(self.whole, replace(loads[0], time_RL=time_RL, more_time_R=more_R, room_R=room_U))

    def evaluated(self, counts_S: Sequence[int]) -> Evaluation:
        """Step time and memory of a layout."""
        whole, pool_R = self.whole, np.array(self.pool_R)
        each = [spent(part, counts_S) for part in self.parts]
        stages = Spent(
            np.array([each[pool].pass_S3[stage] for stage, pool in enumerate(self.pool_S)]),
            each[0].held_S2,
            each[0].activations_S,
            each[0].joined_S,
        )
        pipeline_s, busy_R = played(whole, stages, self._messages_s(), handover(whole)[1])
        pass_R3, held_R2 = stages.by_rank(whole)
        mine = [pool_R == pool for pool in range(len(self.parts))]
        shown = [shown_s(part, held_R2[rows], pass_R3[rows]) for part, rows in zip(self.parts, mine, strict=True)]
        update = [part.sharing.most("optimizer_s", held_R2[rows]) for part, rows in zip(self.parts, mine, strict=True)]
        step_s = pipeline_s + max(shown) + max(update) + whole.table.job.rates.get("step_s")
        edges = np.concatenate([[0], np.cumsum(self.ranks)])
        return Evaluation(
            whole,
            tuple(counts_S),
            step_s,
            pipeline_s,
            max(shown),
            max(update),
            pass_R3,
            busy_R,
            whole.pipe.peak_R,
            memory_of(whole, stages),
            across=tuple(Part(part, range(edges[at], edges[at + 1])) for at, part in enumerate(self.parts)),
        )

    def _messages_s(self) -> Floats:
        """Seconds of a hand-over between each stage and the next."""
        own = [handover(part)[0] for part in self.parts]
        pairs = zip(self.pool_S, self.pool_S[1:], strict=False)
        return np.array([own[a] if a == b else crossing_s(self.parts[a], self.parts[b]) for a, b in pairs])


@dataclass(frozen=True)
class ReplicasAcross(Across):
    """Replicas: every part has its own data-parallel ranks, of which each does the same share of the batch."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """Data-parallel ranks of each pool."""
        return tuple(part.dp for part in self.parts)

    @property
    def batches(self) -> int:
        """Micro-batches of a step in all."""
        table = self.parts[0].table
        return table.job.options.global_batch // table.shape.micro_batch

    @property
    def whole(self) -> Choice:
        return replace(self.parts[0], dp=sum(self.ranks))

    @property
    def _machines(self) -> list[Machines]:
        """Data-parallel ranks; interleaved pipelines take micro-batches in rounds."""
        first = self.parts[0]
        unit = first.pp if first.schedule == "interleaved" else 1
        return [Machines(number, unit) for number in self.ranks]

    def room_U(self) -> Floats:
        """All replicas are laid out alike, for the GPU with the least memory; pipelines are taken to be full."""
        least = min(part.table.job.capacity_bytes for part in self.parts)
        return np.asarray(room_of(self.parts[0]) + least - self.parts[0].table.job.capacity_bytes)

    def floor_s(self, mode: Mode | None, full_layers: int) -> float:
        modes = self._modes(mode)
        lines = []
        for part, own in zip(self.parts, modes, strict=True):
            message_s, exposed = handover(part)
            floor = Floor(part.table, part.pp, own, full_layers)
            lines.append(pool_line(part, floor, 2.0 * part.vpp * exposed * message_s))
        first = self.parts[0]
        exchange_s, gather_s, update_s = (first.sharing.rate_F2[:3] @ (first.table.model_2 / first.pp)).tolist()
        shared = share_tasks(self.batches, self._machines, [line.least_s for line in lines])
        assert shared.objective is not None, "what cannot be shared out is no candidate"
        return shared.objective + once_s(first, exchange_s, gather_s, update_s)

    def priced(self) -> Evaluation | None:
        """The best of the layouts that suit one of the pools."""
        first, room_U = self.parts[0], self.room_U()
        layouts: dict[Counts, None] = {}
        for part in self.parts:
            load = load_of(part)
            more_U = load_of(first).room_R - room_of(first)
            counts = lay_out(part, replace(load, room_R=room_U + more_U))
            if counts is not None:
                layouts[counts] = None
        found = [one for counts in layouts if (one := self._shared_out(counts)) is not None]
        return min(found, key=lambda one: one.step_s, default=None)

    def _shared_out(self, counts: Counts) -> Evaluation | None:
        """The batch shared out so that the last pool ends as early as can be."""
        stages = [spent(part, counts) for part in self.parts]
        hops = [handover(part) for part in self.parts]

        def done_s(pool: int, batches: int) -> float:
            message_B = np.full(max(len(counts) - 1, 0), hops[pool][0])
            return played(replace(self.parts[pool], batches=batches), stages[pool], message_B, hops[pool][1])[0]

        pools = [partial(done_s, pool) for pool in range(len(self.parts))]
        shares = share_tasks(self.batches, self._machines, pools).solution
        return None if shares is None else self.evaluated(counts, shares)

    def evaluated(self, counts: Sequence[int], shares: Sequence[int]) -> Evaluation:
        """Step time and memory of a layout, with so many micro-batches of a rank of each pool."""
        parts = [replace(part, batches=share) for part, share in zip(self.parts, shares, strict=True)]
        each = [evaluate(part, counts) for part in parts]
        pipeline_s, exchange_s, optimizer_s = (
            max(getattr(one, name) for one in each) for name in ("pipeline_s", "exchange_s", "optimizer_s")
        )
        pp = parts[0].pp
        return Evaluation(
            replace(parts[0], dp=sum(self.ranks)),
            tuple(counts),
            pipeline_s + exchange_s + optimizer_s + parts[0].table.job.rates.get("step_s"),
            pipeline_s,
            exchange_s,
            optimizer_s,
            np.concatenate([one.pass_R3 for one in each]),
            np.concatenate([one.busy_R for one in each]),
            np.concatenate([one.peak_R for one in each]),
            Memory(*(np.concatenate([getattr(one.memory, name) for one in each]) for name in _MEMORY)),
            across=tuple(Part(part, range(pool * pp, (pool + 1) * pp)) for pool, part in enumerate(parts)),
        )


_MEMORY = ("weights_R", "gradients_R", "optimizer_R", "activations_R", "workspace_R")

"""Evaluates training across pools: one pipeline with stages on each pool, or data-parallel replicas in each.

Every part is a choice as it would be on its pool alone, so that all costs are those of that pool's GPUs and links; a
layout is priced on each pool, and every rank takes its figures from its own. Shape suffixes: P pool, R rank, S stage,
U unit of the pipeline.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise

import numpy as np

from planner.arrays import Floats
from planner.costs.training.memory import RankBytes
from planner.costs.training.zero_overlap import each_micro_batch
from planner.kinds.train.evaluation.choice import PlanChoice, PoolShare, handover
from planner.kinds.train.evaluation.choice_layouts import lay_out, layout_problem, room_of
from planner.kinds.train.evaluation.evaluate import evaluate, evaluate_stages, simulated
from planner.kinds.train.evaluation.evaluation import Evaluation, fits_hosts
from planner.kinds.train.evaluation.layout import Counts, LayoutProblem
from planner.kinds.train.evaluation.stages import stage_costs
from planner.kinds.train.pools.links import crossing_s
from planner.kinds.train.pools.speeds import Speeds, pool_floor
from planner.kinds.train.search.bounds import Floor, exchanging_s, once_s
from planner.kinds.train.search.search import JobCandidate
from planner.kinds.train.space.tables import RecomputeMode
from planner.solvers.partition import SecondMemory
from planner.solvers.schedules.even_finish import Machines, share_tasks


def _own_modes(parts: Sequence[PlanChoice], mode: RecomputeMode | None) -> list[RecomputeMode | None]:
    """The same recomputation as each pool's costs have it."""
    return [None if mode is None else part.table.mode(mode.recompute) for part in parts]


def host_of(host_R: Sequence[SecondMemory | None]) -> SecondMemory | None:
    """The hosts' memory where each rank has that of its own pool; None where that of no pool is known."""
    known = next((host for host in host_R if host is not None), None)
    if known is None:
        return None
    room = [np.inf if host is None else float(host.capacity_S[rank]) for rank, host in enumerate(host_R)]
    return replace(known, capacity_S=np.array(room))


def least_host(host_P: Sequence[SecondMemory | None]) -> SecondMemory | None:
    """The hosts' memory that suits every pool; None where that of none is known."""
    known = [host for host in host_P if host is not None]
    return replace(known[0], capacity_S=np.min([host.capacity_S for host in known], axis=0)) if known else None


@dataclass(frozen=True)
class StagesAcross(JobCandidate):
    """One pipeline: `ranks` of it on each pool, in its order. Every part is priced as if all ranks were on its pool."""

    ranks: tuple[int, ...]

    @property
    def whole(self) -> PlanChoice:
        return self.parts[0]

    @cached_property
    def pool_R(self) -> list[int]:
        """The pool of each rank."""
        return [pool for pool, number in enumerate(self.ranks) for _ in range(number)]

    @cached_property
    def pool_S(self) -> list[int]:
        """The pool of each stage."""
        ranks = enumerate(self.whole.pipe.stages_of_rank)
        return [pool for _, pool in sorted((stage, self.pool_R[rank]) for rank, stages in ranks for stage in stages)]

    def room_U(self) -> Floats:
        """Units are ranks here: schedules in which two ranks hold the same stages keep to one pool."""
        capacity_P = np.array([part.table.job.capacity_bytes for part in self.parts])
        return np.asarray(room_of(self.whole) + (capacity_P - capacity_P[0])[self.pool_R])

    def floor_s(self, mode: RecomputeMode | None, full_layers: int) -> float:
        whole, ranks_P = self.whole, np.array(self.ranks, np.float64)
        batches, pp = whole.num_micro_batches, whole.pp
        speeds = Speeds.of(
            [part.table for part in self.parts], pp, _own_modes(self.parts, mode), full_layers, heads=True
        )
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

    def priced(self, worthy: float = float("inf")) -> Evaluation | None:
        loads = self._loads()
        room_U = loads[0].room_R - room_of(self.whole) + self.room_U()
        counts = self._laid_out(loads, room_U, host_of([loads[pool].host for pool in self.pool_R]))
        return None if counts is None else self.evaluated(counts)

    def crowded(self, evaluation: Evaluation) -> bool:
        loads = self._loads()
        return self._laid_out(loads, loads[0].room_of_everything()) != evaluation.counts_S

    def _loads(self) -> list[LayoutProblem]:
        return [layout_problem(part) for part in self.parts]

    def _laid_out(self, loads: list[LayoutProblem], room_U: Floats, host: SecondMemory | None = None) -> Counts | None:
        by_pool = [(loads[pool].time_RL[rank], loads[pool].more_time_R[rank]) for rank, pool in enumerate(self.pool_R)]
        time_RL, more_R = np.array([row[0] for row in by_pool]), np.array([row[1] for row in by_pool])
        return lay_out(self.whole, replace(loads[0], time_RL=time_RL, more_time_R=more_R, room_R=room_U, host=host))

    def evaluated(self, counts_S: Sequence[int]) -> Evaluation:
        """Step time and memory of a layout."""
        each = [stage_costs(part, counts_S) for part in self.parts]
        pass_S3 = np.array([each[pool].pass_S3[stage] for stage, pool in enumerate(self.pool_S)])
        edges = np.cumsum([0, *self.ranks]).tolist()
        across = tuple(
            PoolShare(part, range(first, end)) for part, (first, end) in zip(self.parts, pairwise(edges), strict=True)
        )
        return evaluate_stages(self.whole, counts_S, replace(each[0], pass_S3=pass_S3), self._messages_s(), across)

    def _messages_s(self) -> Floats:
        """Seconds of a hand-over between each stage and the next."""
        own = [handover(part)[0] for part in self.parts]
        pairs = zip(self.pool_S, self.pool_S[1:], strict=False)
        return np.array([own[a] if a == b else crossing_s(self.parts[a], self.parts[b]) for a, b in pairs])


@dataclass(frozen=True)
class ReplicasAcross(JobCandidate):
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
    def whole(self) -> PlanChoice:
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

    def floor_s(self, mode: RecomputeMode | None, full_layers: int) -> float:
        modes = _own_modes(self.parts, mode)
        lines = []
        for part, own in zip(self.parts, modes, strict=True):
            message_s, exposed = handover(part)
            floor = Floor(part.table, part.pp, own, full_layers)
            lines.append(pool_floor(part, floor, 2.0 * part.vpp * exposed * message_s))
        first = self.parts[0]
        exchange_s, gather_s, update_s = (first.sharing.rate_F2[:3] @ (first.table.model_2 / first.pp)).tolist()
        shared = share_tasks(self.batches, self._machines, [line.least_s for line in lines])
        assert shared.objective is not None, "what cannot be shared out is no candidate"
        return shared.objective + once_s(first, exchange_s, gather_s, update_s)

    def priced(self, worthy: float = float("inf")) -> Evaluation | None:
        """The best of the layouts that suit one of the pools."""
        loads = [layout_problem(part) for part in self.parts]
        room_U = self.room_U() + loads[0].room_R - room_of(self.parts[0])
        host = least_host([load.host for load in loads])
        layouts: dict[Counts, None] = {}
        for part, load in zip(self.parts, loads, strict=True):
            counts = lay_out(part, replace(load, room_R=room_U, host=host))
            if counts is not None:
                layouts[counts] = None
        evaluations = [evaluation for counts in layouts if (evaluation := self._shared_out(counts)) is not None]
        return min(evaluations, key=lambda priced: (not fits_hosts(priced), priced.step_s), default=None)

    def _shared_out(self, counts: Counts) -> Evaluation | None:
        """The batch shared out so that the last pool ends as early as can be."""
        stages = [stage_costs(part, counts) for part in self.parts]
        hops = [handover(part) for part in self.parts]

        def done_s(pool: int, batches: int) -> float:
            message_B = np.full(max(len(counts) - 1, 0), hops[pool][0])
            return simulated(replace(self.parts[pool], batches=batches), stages[pool], message_B, hops[pool][1])[0]

        pools = [partial(done_s, pool) for pool in range(len(self.parts))]
        shares = share_tasks(self.batches, self._machines, pools).solution
        return None if shares is None else self.evaluated(counts, shares)

    def evaluated(self, counts: Sequence[int], shares: Sequence[int]) -> Evaluation:
        """Step time and memory of a layout, with so many micro-batches of a rank of each pool."""
        parts = [replace(part, batches=share) for part, share in zip(self.parts, shares, strict=True)]
        each = [evaluate(part, counts) for part in parts]
        pipeline_s, exchange_s, optimizer_s = (
            max(getattr(evaluation, name) for evaluation in each)
            for name in ("pipeline_s", "exchange_s", "optimizer_s")
        )
        pp = parts[0].pp
        return Evaluation(
            replace(parts[0], dp=sum(self.ranks)),
            tuple(counts),
            pipeline_s,
            exchange_s,
            optimizer_s,
            np.concatenate([evaluation.pass_R3 for evaluation in each]),
            np.concatenate([evaluation.busy_R for evaluation in each]),
            np.concatenate([evaluation.peak_R for evaluation in each]),
            RankBytes(*(np.concatenate([getattr(evaluation.memory, name) for evaluation in each]) for name in _MEMORY)),
            across=tuple(PoolShare(part, range(pool * pp, (pool + 1) * pp)) for pool, part in enumerate(parts)),
        )


_MEMORY = ("weights_R", "gradients_R", "optimizer_R", "activations_R", "workspace_R", "host_R")

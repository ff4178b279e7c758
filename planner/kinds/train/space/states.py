"""How the states of a training job are shared out: ZeRO stages, ranks that shard them, what lies in host memory."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np

from planner.arrays import Bools, Ints
from planner.costs.training.config import ContextParallel
from planner.kinds.train.job import TrainJob

CONTEXTS: tuple[ContextParallel, ...] = ("ring", "all_gather", "ulysses")


@dataclass(frozen=True, slots=True)
class ShardShape:
    """What the costs of a layer hang on."""

    tp: int
    cp: int
    ep: int
    etp: int
    micro_batch: int
    context: ContextParallel = "ring"


def shard_shape(tp: int, cp: int, ep: int, etp: int, micro_batch: int, context: int) -> ShardShape:
    """The shape of these values of the columns of a space."""
    return ShardShape(tp, cp, ep, etp, micro_batch, CONTEXTS[context])


def zero_stages(job: TrainJob, pp: int) -> tuple[int, ...]:
    """ZeRO stages that may be used with so many pipeline ranks: those that the engine launches.

    What the problem fixes stands where it names no engine: some code may do it.
    """
    asked, able = job.options.search.zero_stage, job.engine.stages(pp, job.options.task)
    if job.options.optimizer == "muon":  # whole layers lie on data-parallel ranks, as the distributed optimizer has it
        return tuple(stage for stage in able if stage == 1 and stage in (asked or able))
    if asked is None:
        return able
    return tuple(stage for stage in asked if stage in able) if job.strict else asked


def shard_counts(job: TrainJob, tp: int) -> tuple[int | Literal["all"], ...]:
    """Numbers of ranks that may share out the sharded states: all of them, or as many as one NVLink domain holds."""
    if job.options.optimizer == "muon":
        return ("all",)
    if job.options.search.zero_shards is not None:
        return job.options.search.zero_shards
    inside = job.machine.domain_gpus // tp
    return ("all", inside) if inside > 1 else ("all",)


def shardings(job: TrainJob, shape: ShardShape, dp: int, pp: int) -> tuple[tuple[int, int], ...]:
    """(ZeRO stage, ranks that share out its states) over the data- and context-parallel ranks; 0 stands for all.

    Fewer than all is hybrid sharding (HSDP, Zhao et al., arXiv:2304.11277, section 3.2.2), which ZeRO 0 cannot have.
    """
    ranks, asked, stages = dp * shape.cp, shard_counts(job, shape.tp), zero_stages(job, pp)
    experts = np.array(max(shape.tp * ranks // (shape.ep * shape.etp), 1))
    fewer = sorted({part for part in asked if part != "all" and part < ranks})
    parts = [part for part in fewer if _whole_copies(job, part, np.array(ranks), experts)]
    whole = [(stage, 0) for stage in stages if "all" in asked or (stage and ranks in asked)]
    every = (*whole, *((stage, part) for stage in stages if stage for part in parts))
    if not job.strict:
        return every
    return tuple(row for row in every if job.engine.shards(*row, tp=shape.tp, cp=shape.cp))


def _whole_copies(job: TrainJob, part: int, ranks: Ints, expert_ranks: Ints) -> Bools:
    """Where so many ranks can share the states: copies divide the ranks, and those that hold the same experts."""
    copies = np.maximum(ranks // part, 1)
    whole = ranks % part == 0
    return np.asarray(whole & (expert_ranks % copies == 0) if job.num_experts else whole)


def offloads(job: TrainJob, stage: int, pp: int) -> tuple[frozenset[str], ...]:
    """Every choice of what is moved to host memory at this ZeRO stage with so many pipeline ranks."""
    allowed = job.options.search.offload
    every = (frozenset(some) for size in range(len(allowed) + 1) for some in combinations(allowed, size))
    return tuple(some for some in every if not job.strict or job.engine.moves(some, stage, pp))


def kept_states(job: TrainJob, shape: ShardShape, dp: int, pp: int) -> Iterator[tuple[int, int, frozenset[str]]]:
    """`shardings`, each with every choice of `offloads`."""
    for stage, shards in shardings(job, shape, dp, pp):
        for offload in offloads(job, stage, pp):
            yield stage, shards, offload


def shared_out(job: TrainJob, ranks: Ints, expert_ranks: Ints) -> Bools:
    """Where `shardings` finds any."""
    asked = job.options.search.zero_shards or ("all",)
    legal = np.full(np.broadcast_shapes(ranks.shape, expert_ranks.shape), "all" in asked)
    if any(zero_stages(job, 1)):
        for part in asked:
            if part != "all":
                legal |= _whole_copies(job, part, ranks, expert_ranks)
    return legal

"""Traffic between pools: pipeline activations, and gradient exchange between replicas.

Traffic between two pools goes at the rate of the slower of their fabrics; a link that the problem states between them
carries all of it together.
"""

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from planner.arrays import Floats
from planner.costs.training.volumes import BF16_BYTES, message_bytes
from planner.kinds.train.evaluation.choice import PlanChoice
from planner.kinds.train.job import TrainJob
from planner.kinds.train.space.tables import SHARED, CostTable, Sharing, sharing_of
from planner.problem.schema import PoolLinkSpec


def stated_link(job: TrainJob, other: TrainJob) -> PoolLinkSpec | None:
    """The link that the problem states between two pools."""
    names = {job.pool.name, other.pool.name}
    return next((link for link in job.resolved.problem.cluster.links if set(link.pools) == names), None)


def crossing_s(sender: PlanChoice, receiver: PlanChoice) -> float:
    """Seconds of one hand-over between a stage on one pool and the next on another, all its ranks at once."""
    rates, size = sender.table.job.rates, message_bytes(sender.config)
    moved_s = max(
        size / machine.fabric_bytes_per_s / rates.get("fabric.p2p", machine.generation)
        for machine in (sender.table.job.machine, receiver.table.job.machine)
    )
    link = stated_link(sender.table.job, receiver.table.job)
    if link is not None:
        ranks = sender.num_gpus // sender.pp
        moved_s = max(moved_s, size * ranks / link.bandwidth_bytes_per_s + link.latency_s)
    return moved_s + rates.get("start.p2p")


def joined_sharing(tables: Sequence[CostTable], pp: int, dp: int, zero_stage: int, offload: frozenset[str]) -> Sharing:
    """Per element, for data-parallel ranks over several pools: the slowest of their fabrics and links counts."""
    rate_PF2 = np.array([sharing_of(table, dp, zero_stage, offload).rate_F2 for table in tables])
    rate_F2 = rate_PF2.max(axis=0)
    bandwidth = _narrowest(tables)
    if bandwidth is not None:
        once_2 = _crossing_bytes(tables[0], pp, dp) / bandwidth
        reduce, gather = SHARED.index("reduce_s"), SHARED.index("gather_s")
        reduce_bytes = tables[0].job.framework.reduce_bytes * (2.0 if zero_stage == 0 else 1.0)
        rate_F2[reduce] = np.maximum(rate_F2[reduce], reduce_bytes * once_2)
        if zero_stage:
            rate_F2[gather] = np.maximum(rate_F2[gather], BF16_BYTES * once_2)
    return Sharing(rate_F2)


def _narrowest(tables: Sequence[CostTable]) -> float | None:
    """Of the links stated between the pools."""
    links = [stated_link(table.job, other.job) for table, other in combinations(tables, 2)]
    return min((link.bandwidth_bytes_per_s for link in links if link is not None), default=None)


def _crossing_bytes(table: CostTable, pp: int, dp: int) -> Floats:
    """Values that cross from pool to pool for each element that a rank holds [2], in one sweep over a ring of ranks.

    Every ring carries what its ranks hold but for the part of one of them; there is one for each rank of a stage that
    holds other elements, in all stages at once.
    """
    shape = table.shape
    ranks = dp * shape.cp
    groups = max(shape.tp * ranks / (shape.ep * shape.etp), 1.0)
    dense = (1.0 - 1.0 / ranks) * shape.tp * pp
    expert = (1.0 - 1.0 / groups) * shape.ep * shape.etp * pp
    return np.array([dense, expert])

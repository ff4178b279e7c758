"""What the stages of a layout take of one micro-batch, and hold.

Shape suffixes: S stage, R rank of the pipeline, K kind of layer.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats
from planner.costs.training import zero_overlap
from planner.costs.training.pipeline import copies_of
from planner.costs.training.step import joined_seconds
from planner.costs.training.zero_overlap import ExchangeSwitches, each_micro_batch
from planner.kinds.train.evaluation.choice import PlanChoice
from planner.kinds.train.job import TrainJob
from planner.kinds.train.space.tables import Sharing


@dataclass(frozen=True, slots=True, eq=False)
class StageCosts:
    """What each stage of a layout takes of one micro-batch, and holds."""

    pass_S3: Floats  # seconds of forward, gradients of inputs and of weights
    resident_S2: Floats  # elements, dense and of experts
    activations_S: Floats  # bytes in flight on the device
    moved_S: Floats  # those on the host
    joined_S: Floats  # seconds saved where a forward pass runs beside a backward pass

    def by_rank(self, choice: PlanChoice) -> tuple[Floats, Floats]:
        """The passes [R, 3] and the elements [R, 2] of each rank of the pipeline."""
        stage_RC = choice.pipe.stage_RC
        return self.pass_S3[stage_RC].sum(axis=1) / copies_of(choice.schedule), self.resident_S2[stage_RC].sum(axis=1)


def stage_costs(choice: PlanChoice, counts_S: Sequence[int]) -> StageCosts:
    """What the stages of a layout take and hold."""
    resident_S2 = _resident(choice, counts_S)
    pass_S3, activations_S, moved_S = _stages(choice, counts_S)
    batches = choice.num_micro_batches
    pass_S3 = with_exchange(choice.table.job, choice.sharing, choice.zero_stage, batches, pass_S3, resident_S2)
    joins = choice.schedule.startswith("dualpipe")
    joined_S = _joined(choice, counts_S, pass_S3) if joins else np.zeros(len(pass_S3))
    return StageCosts(pass_S3, resident_S2, activations_S, moved_S, joined_S)


def _kinds_of_stages(job: TrainJob, counts_S: Sequence[int]) -> Floats:
    """How many layers of each kind a stage has [S, K]."""
    kinds = np.array(job.kind_of_layer)
    edges = np.concatenate([[0], np.cumsum(counts_S)])
    one_LK = np.concatenate([np.zeros((1, len(job.kinds))), np.cumsum(np.eye(len(job.kinds))[kinds], axis=0)])
    return np.asarray(one_LK[edges[1:]] - one_LK[edges[:-1]])


def _stages(choice: PlanChoice, counts_S: Sequence[int]) -> tuple[Floats, Floats, Floats]:
    """Seconds of the three passes of every stage [S, 3], and its bytes of one micro-batch in flight [S]: those on the
    device, and those on the host."""
    table, job = choice.table, choice.table.job
    count_SK = _kinds_of_stages(job, counts_S)
    pass_S3 = count_SK @ table.pass_K3
    bytes_S = count_SK @ np.array(choice.mode.in_flight_bytes)
    if choice.full_layers:
        first_SK = _first_layers(job, counts_S, choice.full_layers)
        pass_S3[:, 1] += first_SK @ np.array([cost.forward_s for cost in table.layers])
        bytes_S -= first_SK @ np.array([kept.total_bytes - kept.input_bytes for kept in table.activations])
    else:
        pass_S3[:, 1] += count_SK @ np.array(choice.mode.extra_s)
    pass_S3[0] += table.first.pass_s
    pass_S3[-1] += table.last.pass_s
    moved_S = np.zeros(len(counts_S))
    share = choice.config.moved_share if "activations" in choice.offload else 0.0
    if share:
        moved_S = share * bytes_S
        pass_S3[:, :2] = np.maximum(pass_S3[:, :2], (moved_S / job.machine.host_bytes_per_s)[:, None])
        bytes_S = (1.0 - share) * bytes_S
    bytes_S[0] += table.first.in_flight_bytes
    bytes_S[-1] += table.last.in_flight_bytes
    return pass_S3, bytes_S, moved_S


def _first_layers(job: TrainJob, counts_S: Sequence[int], most: int) -> Floats:
    """Of the first `most` layers of each stage, how many are of each kind [S, K]."""
    count_SK = np.zeros((len(counts_S), len(job.kinds)))
    first = 0
    for stage, count in enumerate(counts_S):
        for layer in range(first, first + min(count, most)):
            count_SK[stage, job.kind_of_layer[layer]] += 1.0
        first += count
    return count_SK


def _resident(choice: PlanChoice, counts_S: Sequence[int]) -> Floats:
    """Elements of every stage [S, 2]."""
    table = choice.table
    resident_S2 = _kinds_of_stages(table.job, counts_S) @ table.resident_K2
    resident_S2[0] += table.first.resident_2
    resident_S2[-1] += table.last.resident_2
    if len(resident_S2) == 1:
        resident_S2[0] -= table.tied_2
    return np.asarray(resident_S2)


def with_exchange(
    job: TrainJob, sharing: Sharing, zero_stage: int, num_micro_batches: int, pass_S3: Floats, resident_S2: Floats
) -> Floats:
    """Passes of stages that hold so many elements with what is exchanged every micro-batch beside them."""
    if not each_micro_batch(zero_stage, num_micro_batches):
        return pass_S3
    switches = ExchangeSwitches(job.options.overlap, zero_stage, num_micro_batches, job.rates)
    gather_S, reduce_S = (sharing.of(name, resident_S2) for name in ("gather_s", "reduce_s"))
    return zero_overlap.with_exchange(switches, pass_S3, gather_S, reduce_S)


def _joined(choice: PlanChoice, counts_S: Sequence[int], pass_S3: Floats) -> Floats:
    """Seconds saved where a forward pass of each stage runs beside a backward pass [S]."""
    table, job = choice.table, choice.table.job
    exchange_S = _kinds_of_stages(job, counts_S) @ table.exchange_K
    return joined_seconds(pass_S3, exchange_S, job.machine.num_multiprocessors)

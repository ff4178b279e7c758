"""Evaluates one training plan: simulates the pipeline of its stages pass by pass, and adds memory up.

Shape suffixes: S stage, R rank of the pipeline, B boundary between stages.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from planner.arrays import Floats
from planner.costs.training import zero_overlap
from planner.costs.training.memory import RankBytes, in_flight_bytes
from planner.costs.training.pipeline import pipeline_time
from planner.costs.training.zero_overlap import ExchangeSwitches
from planner.kinds.train.evaluation.choice import PlanChoice, PoolShare, handover
from planner.kinds.train.evaluation.choice_layouts import work_of, working_by
from planner.kinds.train.evaluation.evaluation import Evaluation, fits_devices
from planner.kinds.train.evaluation.stages import StageCosts, stage_costs
from planner.kinds.train.job import TrainJob


def evaluate(choice: PlanChoice, counts_S: Sequence[int]) -> Evaluation:
    """Step time and memory of a layout."""
    message_B = np.full(max(len(counts_S) - 1, 0), handover(choice)[0])
    return evaluate_stages(choice, counts_S, stage_costs(choice, counts_S), message_B)


def evaluate_stages(
    choice: PlanChoice,
    counts_S: Sequence[int],
    stages: StageCosts,
    message_B: Floats,
    across: tuple[PoolShare, ...] = (),
) -> Evaluation:
    """Step time and memory of stages that take and hold this, with hand-overs between each and the next of so many
    seconds; `across`: the pools that share the ranks, where there are several."""
    pipeline_s, busy_R = simulated(choice, stages, message_B, handover(choice)[1])
    pass_R3, resident_R2 = stages.by_rank(choice)
    shares = [(share.choice, list(share.rows)) for share in across] or [(choice, list(range(len(busy_R))))]
    return Evaluation(
        choice,
        tuple(counts_S),
        pipeline_s,
        exchange_s=max(shown_s(own, resident_R2[rows], pass_R3[rows]) for own, rows in shares),
        optimizer_s=max(own.sharing.most("optimizer_s", resident_R2[rows]) for own, rows in shares),
        pass_R3=pass_R3,
        busy_R=busy_R,
        peak_R=choice.pipe.peak_R,
        memory=memory_of(choice, stages),
        across=across,
    )


def with_fewest_moved(choice: PlanChoice, counts_S: Sequence[int]) -> PlanChoice:
    """The choice with as few layers' activations on the host as fit beside it; as it is where stages or lengths are
    several.

    Megatron-Core has one number of layers, the first of a model without a pipeline
    (megatron/core/model_parallel_config.py, `cpu_offloading_num_layers`).
    """
    offloaded = "activations" in choice.offload and len(counts_S) == 1 and not choice.table.job.options.lengths
    low, high = 1, sum(counts_S) - 1
    if not offloaded or high <= low:
        return choice
    while low < high:
        middle = (low + high) // 2
        if fits_devices(evaluate(replace(choice, moved_layers=middle), counts_S)):
            high = middle
        else:
            low = middle + 1
    return replace(choice, moved_layers=low)


def simulated(choice: PlanChoice, stages: StageCosts, message_B: Floats, exposed: float) -> tuple[float, Floats]:
    """Seconds of all micro-batches, and of each rank at work.

    message_B: seconds of a hand-over between a stage and the next; ranks spend the share `exposed` of it on each pass.
    """
    joined_S = stages.joined_S if choice.schedule.startswith("dualpipe") else None
    ranks, batches = choice.pipe.stages_of_rank, choice.num_micro_batches
    return pipeline_time(choice.schedule, choice.vpp, batches, ranks, stages.pass_S3, message_B, exposed, joined_S)


def shown_s(choice: PlanChoice, resident_R2: Floats, pass_R3: Floats) -> float:
    """What shows of the exchange between data-parallel ranks once a step, beside the slowest rank's passes."""
    slowest_13 = pass_R3[[pass_R3.sum(axis=1).argmax()]]
    gather_1, reduce_1 = (np.array([choice.sharing.most(name, resident_R2)]) for name in ("gather_s", "reduce_s"))
    shown_1 = shown(choice.table.job, choice.zero_stage, choice.num_micro_batches, gather_1, reduce_1, slowest_13)
    return float(shown_1[0])


def shown(
    job: TrainJob, zero_stage: int, num_micro_batches: int, gather_X: Floats, reduce_X: Floats, pass_X3: Floats
) -> Floats:
    """What shows of gathers and reductions once a step, each beside its passes [X]."""
    switches = ExchangeSwitches(job.options.overlap, zero_stage, num_micro_batches, job.rates)
    return zero_overlap.shown(switches, gather_X, reduce_X, pass_X3)


def memory_of(choice: PlanChoice, stages: StageCosts) -> RankBytes:
    """Bytes of each rank at its fullest moment."""
    resident_R2 = stages.by_rank(choice)[1]
    names = ("weights_bytes", "gradients_bytes", "optimizer_bytes")
    weights_R, gradients_R, optimizer_R = (choice.sharing.of(name, resident_R2) for name in names)
    frozen_S = np.zeros(choice.pipe.num_stages)
    frozen_S[0] += choice.table.first.frozen_bytes
    frozen_S[-1] += choice.table.last.frozen_bytes
    weights_R = weights_R + frozen_S[choice.pipe.stage_RC].sum(axis=1)
    sizes = (choice.schedule, choice.pp, choice.vpp, choice.num_micro_batches)
    last_R = np.array(choice.pipe.unit_of_rank) == choice.pipe.last
    workspace_R = choice.table.job.rates.get("memory.context_bytes") + working_by(last_R, work_of(choice))
    kept_R, moved_R = (in_flight_bytes(*sizes, own_S) for own_S in (stages.activations_S, stages.moved_S))
    host_R = choice.sharing.of("host_bytes", resident_R2) + moved_R
    return RankBytes(weights_R, gradients_R, optimizer_R, kept_R, workspace_R, host_R)

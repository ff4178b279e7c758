"""Seconds of one optimizer step: the pipeline simulated, what shows of the data-parallel exchange, and the optimizer.

Training plans are chosen by the same parts (`planner.kinds.train.evaluation`), and rows of measured runs are estimated
by them. Shape suffixes: S stage, B border between two, R rank of the pipeline, 3 forward pass and gradients of inputs
and of weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import log, sqrt

import numpy as np

from planner.arrays import Floats
from planner.costs.rates.overlap import slowed_by_exchange
from planner.costs.training.activations import stage_bytes
from planner.costs.training.config import Shard, TrainingConfig, stages_of_rank
from planner.costs.training.host_idle import idle_s
from planner.costs.training.layer_costs import LayerCost, end_cost, layer_cost
from planner.costs.training.parameters import Parameters, stage_parameters
from planner.costs.training.pipeline import copies_of, exposed_share, pipeline_time
from planner.costs.training.rates import Rates, default_rates
from planner.costs.training.stages import Part, StagePart, stage_contents
from planner.costs.training.volumes import data_parallel_volume, message_volume
from planner.costs.training.zero_overlap import ExchangeSwitches, shown, with_exchange
from planner.models.architecture import Layer, MoeFfn

PASSES = ("forward_s", "backward_input_s", "backward_weight_s")


@dataclass(frozen=True, slots=True)
class OptimizerStepTime:
    """Seconds of one optimizer step and what they are made of."""

    step_s: float
    pipeline_s: float  # all micro-batches, bubbles included
    bubble_s: float  # in which the busiest rank waits
    data_parallel_s: float  # what shows of it
    optimizer_s: float
    pass_R3: Floats = field(repr=False)  # of one micro-batch on each pipeline rank, recomputation in the backward

    def tokens_per_s_per_gpu(self, config: TrainingConfig) -> float:
        return config.global_batch * config.sequence_tokens / self.step_s / config.num_gpus


def step_time(config: TrainingConfig, rates: Rates | None = None) -> OptimizerStepTime:
    """One optimizer step of this configuration; raises PlannerError for sizes that its schedule has no order for."""
    known = rates or default_rates()
    ranks, batches = stages_of_rank(config), config.num_micro_batches
    exchange_S3 = _exchange_of_stages(config, known)
    switches = ExchangeSwitches(config.overlap, config.zero_stage, batches, known)
    pass_S3 = with_exchange(switches, stage_passes(config, known), exchange_S3[:, 1], exchange_S3[:, 0])
    message_B = np.full(len(pass_S3) - 1, message_seconds(config, known))
    exposed = exposed_share(known, config.overlap, config.vpp)
    joined_S = _joined(config, known, pass_S3) if config.schedule.startswith("dualpipe") else None
    pipeline_s, busy_R = pipeline_time(
        config.schedule, config.vpp, batches, ranks, pass_S3, message_B, exposed, joined_S
    )
    held = [list(stages) for stages in ranks]
    pass_R3 = np.array([pass_S3[stages].sum(axis=0) for stages in held]) / copies_of(config.schedule)
    reduce_s, gather_s, optimizer_s = np.array([exchange_S3[stages].sum(axis=0) for stages in held]).max(axis=0)
    slowest_13 = pass_R3[[pass_R3.sum(axis=1).argmax()]]
    shown_s = float(shown(switches, gather_s, reduce_s, slowest_13)[0])
    pipeline_s *= straggling(config.step_spread, config.num_gpus)
    total_s = pipeline_s + shown_s + float(optimizer_s) + known.get("step_s") + idle_s(config, known)
    own, fabric = batches * config.micro_batch, config.machine.fabric_bytes_per_s
    total_s = config.loading.beside_s(total_s, own, config.global_batch, fabric)
    return OptimizerStepTime(
        total_s, pipeline_s, pipeline_s - float(busy_R.max()), shown_s, float(optimizer_s), pass_R3
    )


def straggling(step_spread: float, num_gpus: int) -> float:
    """How much longer the slowest of so many GPUs takes than their mean, steps spread normally and alike.

    sqrt(2 ln n) standard deviations bound the expected maximum of n normal variables from above.
    """
    return 1.0 + step_spread * sqrt(2.0 * log(num_gpus)) if num_gpus > 1 else 1.0


def part_shard(config: TrainingConfig, part: Part, layer: Layer | None) -> Shard:
    """The key of a part's costs: degrees of experts change nothing where there are none."""
    sparse = isinstance(layer.ffn, MoeFfn) if layer is not None and part == "layer" else part == "mtp"
    return config.shard if sparse else config.dense_shard


def stage_passes(config: TrainingConfig, rates: Rates) -> Floats:
    """Seconds of one micro-batch in each stage [S, 3], recomputation in the backward, before any exchange beside it."""
    contents = stage_contents(config)
    priced = {parts: _passes(config, parts, rates) for parts in dict.fromkeys(contents)}
    pass_S3 = np.array([priced[parts] for parts in contents])
    if config.moved_share:
        rate = config.machine.host_bytes_per_s / config.moved_share
        moved = {parts: stage_bytes(config, parts) / rate for parts in priced}
        moved_S = np.array([moved[parts] for parts in contents])
        pass_S3[:, :2] = np.maximum(pass_S3[:, :2], moved_S[:, None])
    return pass_S3


def _passes(config: TrainingConfig, parts: tuple[StagePart, ...], rates: Rates) -> Floats:
    """Seconds [3] of one stage."""
    total_3 = np.zeros(len(PASSES))
    for part in parts:
        cost = part_cost(config, part, rates)
        total_3 += part.count * np.array([getattr(cost, name) for name in PASSES])
        if part.part == "layer":
            total_3[1] += recompute_s(config, cost, part)
    return total_3


def part_cost(config: TrainingConfig, part: StagePart, rates: Rates) -> LayerCost:
    """Seconds of one of these parts."""
    shard = part_shard(config, part.part, part.layer)
    if part.part == "layer" and part.layer is not None:
        return layer_cost(config.machine, part.layer, shard, rates)
    return end_cost(part.part, config.machine, shard, config.arch.vocab_size, rates, part.layer)


def recompute_s(config: TrainingConfig, cost: LayerCost, part: StagePart) -> float:
    """Seconds that the backward pass of these layers computes again."""
    match config.recompute.granularity:
        case "full":
            return part.full * cost.forward_s
        case "selective":
            return part.count * cost.again_s(config.recompute.modules)
        case _:
            return 0.0


def _joined(config: TrainingConfig, rates: Rates, pass_S3: Floats) -> Floats:
    """Seconds saved where a forward pass of each stage runs beside a backward pass [S]."""
    exchange_S = np.array(
        [
            sum(
                part.count * part_cost(config, part, rates).exchange_s.get("ep", 0.0)
                for part in parts
                if part.part == "layer"
            )
            for parts in stage_contents(config)
        ]
    )
    return joined_seconds(pass_S3, exchange_S, config.machine.num_multiprocessors)


def joined_seconds(pass_S3: Floats, exchange_S: Floats, multiprocessors: int) -> Floats:
    """Seconds saved where a forward pass of each stage runs beside a backward pass [S].

    The exchange between experts of both, `exchange_S` of what the passes take, runs beside the products of both, which
    have fewer multiprocessors then.
    """
    total_S = pass_S3.sum(axis=1)
    together_S = np.maximum(exchange_S, (total_S - exchange_S) * slowed_by_exchange(multiprocessors))
    return np.asarray(np.clip(total_S - together_S, 0.0, pass_S3[:, 0]))


@dataclass(frozen=True, slots=True)
class DataParallel:
    """What data-parallel ranks of one pipeline rank exchange and update in a step, in seconds on its own.

    With ZeRO stages up to 2, once a step; with stage 3, gathers for every pass of every micro-batch.
    """

    reduce_s: float  # gradients scattered (and gathered again without a distributed optimizer)
    gather_s: float  # weights gathered
    optimizer_s: float  # with the sums that a host of gradients waits for


def data_parallel(config: TrainingConfig, parameters: Parameters, rates: Rates) -> DataParallel:
    """The exchange of a pipeline rank that holds these parameters; linear in them."""
    volume, generation = data_parallel_volume(config, parameters), config.machine.generation
    link, fabric = rates.get("link.dp", generation), rates.get("fabric.dp", generation)
    copied = rates.get("move.elementwise", generation)
    shards = volume.shards
    reduce_s = volume.reduce_inside_s / link + volume.reduce_outside_s / fabric + volume.reduce_copy_s / copied
    gather_s = volume.gather_inside_s / link + volume.gather_outside_s / fabric + volume.gather_copy_s / copied
    return DataParallel(
        reduce_s + shards.reduce_s,
        gather_s + shards.gather_s,
        volume.update_s / rates.get("move.optimizer", generation)
        + volume.compute_s / rates.get("flop.gemm", generation)
        + volume.offload_s
        + shards.waits * (reduce_s + shards.reduce_s + shards.add_s),
    )


def _exchange_of_stages(config: TrainingConfig, rates: Rates) -> Floats:
    """Seconds of reductions, gathers and the optimizer for what each stage holds [S, 3]."""
    held = stage_parameters(config)
    each: Mapping[Parameters, DataParallel] = {some: data_parallel(config, some, rates) for some in dict.fromkeys(held)}
    return np.array([[each[some].reduce_s, each[some].gather_s, each[some].optimizer_s] for some in held])


def message_seconds(config: TrainingConfig, rates: Rates) -> float:
    """One hand-over between neighbouring pipeline stages, each tensor-parallel rank sending its part."""
    if config.pp == 1:
        return 0.0
    inside, outside = message_volume(config)
    generation = config.machine.generation
    moved = inside / rates.get("link.p2p", generation) + outside / rates.get("fabric.p2p", generation)
    return moved + rates.get("start.p2p")

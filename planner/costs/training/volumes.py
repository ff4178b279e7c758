"""Communication volumes of a training step, as seconds at data-sheet rates: data-parallel and between stages."""

from dataclasses import dataclass

from planner.costs.training.config import TrainingConfig
from planner.costs.training.layers.sizes import message_s, sweep
from planner.costs.training.parameters import MASTER_BYTES, Parameters, lora_parameters, replicas, sharing_ranks

BF16_BYTES = 2.0


@dataclass(frozen=True, slots=True)
class DataParallelVolume:
    """Seconds inside the NVLink domain, beyond it, in device memory, and on the way to host memory."""

    reduce_inside_s: float
    reduce_outside_s: float
    gather_inside_s: float
    gather_outside_s: float
    update_s: float
    offload_s: float


def data_parallel_volume(config: TrainingConfig, parameters: Parameters) -> DataParallelVolume:
    """The exchange of a pipeline rank that holds these parameters."""
    trained = parameters if config.task != "lora" else lora_parameters(config, parameters)
    inside, outside = _swept(config, trained, config.framework.reduce_bytes)
    more = _replicated(config, trained) if config.zero_ranks else (0.0, 0.0)
    reduced = inside + more[0], outside + more[1]
    gathered = _swept(config, parameters if config.zero_stage == 3 else trained, BF16_BYTES)
    if config.zero_stage == 0:  # an all-reduce: gradients gathered again, and no weights
        reduced, gathered = (2.0 * reduced[0], 2.0 * reduced[1]), (0.0, 0.0)
    return DataParallelVolume(*reduced, *gathered, *_updated(config, trained))


def _swept(config: TrainingConfig, elements: Parameters, width: float) -> tuple[float, float]:
    """One sweep over the ranks that share dense parameters, and one over those that share experts."""
    ranks, machine = sharing_ranks(config), config.machine
    dense = sweep(machine, "dp", 0, "", elements.dense * width, ranks.dense, config.tp, 1.0)
    stride = config.ep * config.etp
    expert = sweep(machine, "dp", 0, "", elements.expert * width, ranks.expert, stride, 1.0)
    return dense.inside_s + expert.inside_s, dense.outside_s + expert.outside_s


def _replicated(config: TrainingConfig, elements: Parameters) -> tuple[float, float]:
    """All-reduce of gradient shards over the replicas of hybrid sharding."""
    alike, ranks, width = replicas(config), sharing_ranks(config), config.framework.reduce_bytes
    inside = outside = 0.0
    for size_of_one, each, all_ranks, stride in (
        (elements.dense, ranks.dense, alike.dense, config.tp),
        (elements.expert, ranks.expert, alike.expert, config.ep * config.etp),
    ):
        size, copies = size_of_one / each * width, all_ranks / each
        kernel = sweep(config.machine, "dp", 0, "", size, copies, stride * each, 2.0)
        inside, outside = inside + kernel.inside_s, outside + kernel.outside_s
    return inside, outside


def _updated(config: TrainingConfig, trained: Parameters) -> tuple[float, float]:
    """Adam over the shard of a rank: state read and written, gradients read, cleared, and their norm."""
    ranks, machine = sharing_ranks(config), config.machine
    own = trained.total
    if config.zero_stage >= 1:
        own = trained.dense / ranks.dense + trained.expert / ranks.expert
    gradients = (own if config.zero_stage >= 2 else trained.total) * 2.0 * config.framework.gradient_bytes
    moved = own * (2.0 * MASTER_BYTES + BF16_BYTES + config.framework.gradient_bytes) + gradients
    offload_s = own * 2.0 * MASTER_BYTES / machine.host_bytes_per_s if "optimizer" in config.offload else 0.0
    return moved / machine.memory_bandwidth_bytes_per_s, offload_s


def message_volume(config: TrainingConfig) -> tuple[float, float]:
    """One hand-over between neighbouring stages: inside the NVLink domain, and beyond it."""
    if config.pp == 1:
        return 0.0, 0.0
    return message_s(config.machine, message_bytes(config), config.tp * config.cp * config.dp)


def message_bytes(config: TrainingConfig) -> float:
    """What a rank hands over to its neighbour in the pipeline: its tensor-parallel part of the activations."""
    return config.shard.tokens * config.arch.hidden_size * BF16_BYTES / config.tp

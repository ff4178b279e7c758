"""Communication volumes of a training step, as seconds at data-sheet rates: data-parallel and between stages."""

from dataclasses import dataclass

from planner.costs.training.config import TrainingConfig
from planner.costs.training.layers.sizes import message_s, spread_ranks, sweep
from planner.costs.training.optimizers import muon
from planner.costs.training.optimizers.host import host_update_s
from planner.costs.training.optimizers.shards import ON_DEVICE, ShardsOnHost, lie_on_host, shards_on_host
from planner.costs.training.parameters import (
    MASTER_BYTES,
    Parameters,
    lora_parameters,
    replicas,
    sharing_ranks,
    updated_elements,
)

BF16_BYTES = 2.0


@dataclass(frozen=True, slots=True)
class DataParallelVolume:
    """Seconds inside the NVLink domain, beyond it, in device memory, and on the way to host memory."""

    reduce_inside_s: float
    reduce_outside_s: float
    gather_inside_s: float
    gather_outside_s: float
    update_s: float
    offload_s: float  # of the host, where it updates
    compute_s: float = 0.0  # of products, at the peak of bf16
    gather_copy_s: float = 0.0  # of what is gathered and reduced, between buffers of device memory
    reduce_copy_s: float = 0.0
    shards: ShardsOnHost = ON_DEVICE


def data_parallel_volume(config: TrainingConfig, parameters: Parameters) -> DataParallelVolume:
    """The exchange of a pipeline rank that holds these parameters.

    Where switches add up (SHARP: Graham et al., COMHPC 2016), each adapter sends what is summed over all ranks once and
    takes the sum once; sums that stay scattered are sent as whole as without.
    """
    trained = parameters if config.task != "lora" else lora_parameters(config, parameters)
    inside, outside = _swept(config, trained, config.framework.reduce_bytes)
    more = _replicated(config, trained) if config.zero_ranks else (0.0, 0.0)
    reduced = inside + more[0], outside + more[1]
    gathered = _swept(config, parameters if config.zero_stage == 3 else trained, BF16_BYTES)
    if config.zero_stage == 0:  # an all-reduce: gradients gathered again, and no weights
        reduced, gathered = _summed(config, trained), (0.0, 0.0)
    elif config.optimizer == "muon":  # whole matrices are updated: gradients are summed on every rank
        reduced = _summed(config, trained)
    copied, shards = _copies_s(config, parameters, trained), ON_DEVICE
    if lie_on_host(config):
        gathered_own, reduced_own = (updated_elements(config, each).total for each in (parameters, trained))
        shards = shards_on_host(config, gathered_own, reduced_own)
    update = (0.0, shards.update_s) if shards.update_s else _updated(config, trained)
    return DataParallelVolume(*reduced, *gathered, *update, _orthogonal_s(config, trained), *copied, shards)


def _copies_s(config: TrainingConfig, gathered: Parameters, reduced: Parameters) -> tuple[float, float]:
    """Of codes that shard each parameter by itself: gathered weights copied out of one buffer, gradients into one.

    FSDP2 reads and writes both (`split_with_sizes_copy` and `chunk_cat` of torch/distributed/fsdp/_fully_shard/
    _fsdp_collectives.py); Megatron-FSDP and FSDP of flat parameters exchange in place (megatron/core/distributed/fsdp;
    arXiv:2304.11277, section 4.2).
    """
    if not config.framework.exchange_copies or config.zero_stage < 2:
        return 0.0, 0.0
    rate, weights = config.machine.memory_bandwidth_bytes_per_s, 2.0 * BF16_BYTES
    return gathered.total * weights / rate, reduced.total * (BF16_BYTES + config.framework.reduce_bytes) / rate


def _swept(config: TrainingConfig, elements: Parameters, width: float) -> tuple[float, float]:
    """One sweep over the ranks that share dense parameters, and one over those that share experts."""
    ranks, machine = sharing_ranks(config), config.machine
    dense = sweep(machine, "dp", 0, "", elements.dense * width, ranks.dense, config.tp, 1.0)
    stride = config.ep * config.etp
    expert = sweep(machine, "dp", 0, "", elements.expert * width, ranks.expert, stride, 1.0)
    return dense.inside_s + expert.inside_s, dense.outside_s + expert.outside_s


def _summed(config: TrainingConfig, elements: Parameters) -> tuple[float, float]:
    """All-reduce of gradients over the ranks that share dense parameters, and over those that share experts."""
    ranks, width, tp = sharing_ranks(config), config.framework.reduce_bytes, config.tp
    dense = _all_reduce(config, elements.dense * width, ranks.dense, tp)
    expert = _all_reduce(config, elements.expert * width, ranks.expert, config.ep * config.etp)
    return dense[0] + expert[0], dense[1] + expert[1]


def _all_reduce(config: TrainingConfig, size_bytes: float, group: float, stride: float) -> tuple[float, float]:
    """Seconds inside the domain, and beyond it."""
    kernel = sweep(config.machine, "dp", 0, "", size_bytes, group, stride, 2.0)
    if config.in_network and kernel.outside_s:
        inside, _ = spread_ranks(config.machine, group, stride)
        return kernel.inside_s, size_bytes / inside / config.machine.fabric_bytes_per_s
    return kernel.inside_s, kernel.outside_s


def _replicated(config: TrainingConfig, elements: Parameters) -> tuple[float, float]:
    """All-reduce of gradient shards over the replicas of hybrid sharding."""
    alike, ranks, width = replicas(config), sharing_ranks(config), config.framework.reduce_bytes
    inside = outside = 0.0
    for size_of_one, each, all_ranks, stride in (
        (elements.dense, ranks.dense, alike.dense, config.tp),
        (elements.expert, ranks.expert, alike.expert, config.ep * config.etp),
    ):
        size, copies = size_of_one / each * width, all_ranks / each
        within, beyond = _all_reduce(config, size, copies, stride * each)
        inside, outside = inside + within, outside + beyond
    return inside, outside


def _updated(config: TrainingConfig, trained: Parameters) -> tuple[float, float]:
    """Adam over the shard of a rank: state read and written, gradients read, cleared, and their norm.

    Where the optimizer lies on the host, the host updates and the device only clears and norms its gradients.
    """
    machine, own = config.machine, updated_elements(config, trained).total
    gradients = (own if config.zero_stage >= 2 else trained.total) * 2.0 * config.framework.gradient_bytes
    if "optimizer" in config.offload:
        host_s = host_update_s(machine.node, machine.generation, own, machine.host_bytes_per_s)
        return gradients / machine.memory_bandwidth_bytes_per_s, host_s
    state = muon.MASTER_BYTES if config.optimizer == "muon" else MASTER_BYTES
    moved = own * (2.0 * state + BF16_BYTES + config.framework.gradient_bytes) + gradients
    return moved / machine.memory_bandwidth_bytes_per_s, 0.0


def _orthogonal_s(config: TrainingConfig, trained: Parameters) -> float:
    """Muon's products, at the peak."""
    if config.optimizer != "muon":
        return 0.0
    own, each = updated_elements(config, trained), muon.muon_flop_per_element(config.arch, config.tp, config.etp)
    return (own.dense * each[0] + own.expert * each[1]) / config.machine.peak_flop_per_s["bf16"]


def message_volume(config: TrainingConfig) -> tuple[float, float]:
    """One hand-over between neighbouring stages: inside the NVLink domain, and beyond it."""
    if config.pp == 1:
        return 0.0, 0.0
    return message_s(config.machine, message_bytes(config), config.tp * config.cp * config.dp)


def message_bytes(config: TrainingConfig) -> float:
    """What a rank hands over to its neighbour in the pipeline: its tensor-parallel part of the activations."""
    return config.shard.tokens * config.arch.hidden_size * BF16_BYTES / config.tp

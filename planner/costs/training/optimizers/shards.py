"""Shards of weights, gradients and states of the optimizer on the host: the `CPUOffloadPolicy` of FSDP2.

A shard goes to the device ahead of every gather, in the format that it is kept in (`all_gather_inputs` of torch/
distributed/fsdp/_fully_shard/_fsdp_param.py). What a reduction leaves comes back, and from the second micro-batch on
the host waits for it and adds it up before it launches anything more (`foreach_reduce` of _fsdp_collectives.py, which
cannot run the sum behind the copy), so that those reductions run beside nothing. The host reads and writes weights,
both moments and gradients of 4 bytes each in an update, and reads gradients for their norm and scales them.
"""

from dataclasses import dataclass

from planner.costs.training.config import TrainingConfig
from planner.costs.training.optimizers.host import host_rate

UPDATED_BYTES = 28.0 + 12.0  # of host memory, an element and update
ADDED_BYTES = 12.0  # an element that is added to what lies there


@dataclass(frozen=True, slots=True)
class ShardsOnHost:
    """Seconds of one rank, and how many of its reductions in a step the host waits for."""

    gather_s: float = 0.0  # ahead of each gather
    reduce_s: float = 0.0  # behind each reduction
    add_s: float = 0.0  # of the host, behind each that it waits for
    update_s: float = 0.0
    waits: int = 0


ON_DEVICE = ShardsOnHost()


def lie_on_host(config: TrainingConfig) -> bool:
    """Whether the code moves whole shards where the optimizer is to lie on the host."""
    return "optimizer" in config.offload and config.framework.exchange_copies and config.zero_stage >= 2


def shards_on_host(config: TrainingConfig, gathered: float, reduced: float) -> ShardsOnHost:
    """Of a rank with so many elements of what is gathered and of what is reduced."""
    machine, framework = config.machine, config.framework
    link, memory = machine.host_bytes_per_s, host_rate(machine.node, machine.generation)
    return ShardsOnHost(
        gathered * framework.parameter_bytes / link,
        reduced * framework.gradient_bytes / link,
        reduced * ADDED_BYTES / memory,
        reduced * UPDATED_BYTES / memory,
        config.num_micro_batches - 1,
    )

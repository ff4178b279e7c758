"""Seconds of a step in which GPUs wait for their hosts, by habits of training codes that newer ones have dropped.

Source: Jiang et al., "MegaScale", NSDI 2024, sections 3.2 (hand-overs), 3.4 (data loading).
"""

from planner.costs.training.config import TrainingConfig
from planner.costs.training.layer_costs import host_launch_s
from planner.costs.training.rates import Rates

READ_S = 5e-4
"""One sample read from shared storage: a random read over the network, an assumption and no published figure."""

REFILL_CALLS = 4.0
"""Operations that a device waits for as its host begins to launch again, too short to let the host get ahead: a norm, a
product, its bias, the split into heads. An assumption and no published figure."""


def idle_s(config: TrainingConfig, rates: Rates) -> float:
    """Seconds that the habits of the configuration's training code add to a step.

    Every micro-batch passes each of a rank's vpp stages twice, with a message each time; a data-parallel rank reads the
    samples of its share of the batch. A device that the host waited for has an empty queue: it waits for the wait's own
    latency and for the first operations behind it.
    """
    code, batches = config.framework, config.num_micro_batches
    waits = 2.0 * batches * config.vpp if code.blocking_hand_overs and config.pp > 1 else 0.0
    reads = batches * config.micro_batch * code.loaders_per_node
    wait_s = rates.get("start.sync") + REFILL_CALLS * host_launch_s(rates, config.shard)
    return waits * wait_s + reads * READ_S

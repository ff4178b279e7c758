"""Seconds of a step in which GPUs wait for their hosts, by habits of training codes that newer ones have dropped.

Source: Jiang et al., "MegaScale", NSDI 2024, sections 3.2 (hand-overs), 3.4 (data loading).
"""

from dataclasses import dataclass

from planner.costs.training.config import TrainingConfig
from planner.costs.training.rates import Rates

READ_S = 5e-4
"""One sample read from shared storage: a random read over the network, an assumption and no published figure."""


@dataclass(frozen=True, slots=True)
class HostHabits:
    """What hosts do while their GPUs wait."""

    loaders_per_node: int = 0  # processes that read the same samples one after another as a step begins; 0: read ahead
    blocking_hand_overs: bool = False  # the host waits for the device after each message between pipeline stages


def idle_s(config: TrainingConfig, habits: HostHabits, rates: Rates) -> float:
    """Seconds that the habits add to a step.

    Every micro-batch passes each of a rank's vpp stages twice, with a message each time; a data-parallel rank reads the
    samples of its share of the batch.
    """
    waits = 2.0 * config.num_micro_batches * config.vpp if habits.blocking_hand_overs and config.pp > 1 else 0.0
    reads = config.num_micro_batches * config.micro_batch * habits.loaders_per_node
    return waits * rates.get("start.sync") + reads * READ_S

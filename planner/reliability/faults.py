"""Fault classes: rate, scope (process, node, rack), detection and repair times; defaults from Llama 3.

Source of the default rates: Grattafiori et al., "The Llama 3 Herd of Models", arXiv:2407.21783, table 5: 419 unexpected
interruptions in 54 days on 16,384 GPUs. By what a restart must replace: 63 took processes only (software 54, watchdog
timeouts of collectives 7, dependencies 2), 321 took a node (GPUs 268, unplanned host maintenance 32, adapters 7, parts
of the server 14), 35 the network (switches and cables). Percentages in that table disagree with its counts in one
row; the counts sum to 419 and are used.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from planner.errors import PlannerError

_GPU_SECONDS = 16384 * 54 * 86400.0


class Takes(StrEnum):
    """What a fault takes out of service."""

    PROCESS = "process"  # the memory of GPUs; hosts keep theirs, and nothing needs a replacement
    NODE = "node"
    RACK = "rack"  # all nodes of a rack, or behind one switch


@dataclass(frozen=True, slots=True)
class FaultClass:
    """One class of faults: how often it comes, and how long until the job may start again and the parts are back."""

    name: str
    takes: Takes
    rate_per_gpu_s: float
    detect_s: float  # until the fault is known and its nodes are out of the job
    repair_s: float = 0.0  # mean time until what it took is in service again


@dataclass(frozen=True, slots=True)
class Stragglers:
    """Nodes that fall behind: how often, by how much, and how long until each is found and taken out."""

    rate_per_node_s: float
    speed: float  # of the job while one is in it, 1 = as fast as without
    found_after_s: float


@dataclass(frozen=True, slots=True)
class JobMachines:
    """The machines of one job."""

    num_gpus: int
    gpus_per_node: int
    nodes_per_rack: int = 1

    @property
    def num_nodes(self) -> int:
        return -(-self.num_gpus // self.gpus_per_node)

    def nodes_taken(self, takes: Takes) -> int:
        """Nodes that one fault takes."""
        return {Takes.PROCESS: 0, Takes.NODE: 1, Takes.RACK: min(self.nodes_per_rack, self.num_nodes)}[takes]


DETECT_S = 600.0
"""To detect and diagnose a fault on 12,288 GPUs: under 10 minutes on average (Jiang et al., NSDI 2024, sec. 6.3)."""
REPAIR_S = 86400.0
"""An assumption that operators replace by their own: a node is back after a day."""

DEFAULT = (
    FaultClass("software", Takes.PROCESS, 63 / _GPU_SECONDS, DETECT_S),
    FaultClass("node", Takes.NODE, 321 / _GPU_SECONDS, DETECT_S, REPAIR_S),
    FaultClass("network", Takes.RACK, 35 / _GPU_SECONDS, DETECT_S, 4 * 3600.0),
)


def scaled(faults: Sequence[FaultClass], mean_gap_s: float, fleet: JobMachines) -> tuple[FaultClass, ...]:
    """The same mix of faults, at a mean gap of `mean_gap_s` between two of the whole job."""

    now = sum(fault.rate_per_gpu_s for fault in faults) * fleet.num_gpus
    if mean_gap_s <= 0.0 or now <= 0.0:
        raise PlannerError("the mean time between failures must be above 0", hint="write for example `mtbf: 3h`")
    return tuple(replace(fault, rate_per_gpu_s=fault.rate_per_gpu_s / (now * mean_gap_s)) for fault in faults)

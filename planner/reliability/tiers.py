"""Checkpoint tiers (blocking, asynchronous, on failure): overhead of each, and the work each saves after a fault.

- `synchronous`: the job stops until the state lies in remote storage; every fault rolls back to the last save.
- `asynchronous`: the job stops until the state lies in the memory of its hosts, from where it goes to remote storage
  while training goes on. A fault that leaves the hosts their memory, or takes a host whose shards lie in the memory of
  others too, rolls back to the last snapshot, any other to the last one that has arrived.
- `on_failure`: where every shard has a copy left, the survivors save their state after the fault, and only the step in
  progress is lost; other faults fall back on asynchronous snapshots.

Source: EasyCkpt (Alibaba PAI): failures mostly hit few workers, the host memory of the others survives, and
data-parallel replicas hold the same state.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from planner.errors import PlannerError, did_you_mean
from planner.reliability.faults import FaultClass, JobMachines, Takes
from planner.solvers.stochastic.checkpointing import Hazard, Loss, Saving

Tier = Literal["synchronous", "asynchronous", "on_failure"]
TIERS: tuple[Tier, ...] = get_args(Tier)


@dataclass(frozen=True, slots=True)
class State:
    """What a checkpoint holds, and whether a fault leaves a live copy of all of it."""

    total_bytes: float  # each shard once
    bytes_per_gpu: float
    node_loss_kept: float = 0.0  # share of node losses after which a copy of every shard is left
    rack_loss_kept: float = 0.0
    copies: int = 1

    def kept(self, takes: Takes) -> float:
        """The share of faults of this kind after which the survivors hold a copy of every shard."""
        if takes is Takes.PROCESS:
            return 1.0 if self.copies > 1 else 0.0
        return self.node_loss_kept if takes is Takes.NODE else self.rack_loss_kept


@dataclass(frozen=True, slots=True)
class Storage:
    """Where checkpoints go; rates of remote storage are those of the whole job."""

    remote_write_bytes_per_s: float
    remote_read_bytes_per_s: float
    host_bytes_per_s: float  # of one GPU to the memory of its host, and back
    network_bytes_per_s: float  # of one GPU to another node
    save_slowdown: float = 0.0  # by how much steps are slower while a checkpoint is on its way to remote storage
    start_s: float = 30.0  # processes and communicators: under 30 s on more than 10,000 GPUs (NSDI 2024, section 3.5)


def saving(tier: Tier, state: State, storage: Storage, step_s: float) -> Saving:
    """What a tier costs while nothing fails.

    What goes to remote storage behind training takes the network from it, at most as long as it would alone, and slows
    what else is said to slow; both count as pauses of the snapshot.
    """
    remote_s = state.total_bytes / storage.remote_write_bytes_per_s
    if tier == "synchronous":
        return Saving(step_s, pause_s=remote_s)
    pause_s = state.bytes_per_gpu / storage.host_bytes_per_s
    contention_s = state.bytes_per_gpu / state.copies / storage.network_bytes_per_s
    return Saving(step_s, pause_s + contention_s + storage.save_slowdown * remote_s, remote_s)


def hazards(
    tier: Tier, faults: Sequence[FaultClass], fleet: JobMachines, state: State, storage: Storage
) -> tuple[Hazard, ...]:
    """Each class of faults as what it takes and how long the restart is, split by whether copies are left."""
    rows = []
    for fault in faults:
        rate = fault.rate_per_gpu_s * fleet.num_gpus
        kept = state.kept(fault.takes)
        for share, copied in ((kept, True), (1.0 - kept, False)):
            if rate * share > 0.0:
                rows.append(hazard(tier, fault, copied, rate * share, state, storage))
    return tuple(rows)


def hazard(tier: Tier, fault: FaultClass, copied: bool, rate_per_s: float, state: State, storage: Storage) -> Hazard:
    """What a class of faults takes under a tier, and how long the restart is; `copied`: each shard has a copy left."""
    base_s = fault.detect_s + storage.start_s
    read_s = state.total_bytes / storage.remote_read_bytes_per_s
    host_s = state.bytes_per_gpu / storage.host_bytes_per_s
    if tier == "synchronous":
        return Hazard(rate_per_s, base_s + read_s)
    if tier == "on_failure" and copied:
        write_s = state.total_bytes / storage.remote_write_bytes_per_s
        return Hazard(rate_per_s, base_s + write_s + read_s, Loss.STEP, fault.detect_s + write_s)
    if fault.takes is Takes.PROCESS:
        return Hazard(rate_per_s, base_s + host_s)
    if copied:
        return Hazard(rate_per_s, base_s + host_s + state.bytes_per_gpu / storage.network_bytes_per_s)
    return Hazard(rate_per_s, base_s + read_s, Loss.UNDURABLE)


def require_tier(name: str) -> Tier:
    """`name` as a tier; PlannerError lists those there are."""

    for tier in TIERS:
        if tier == name:
            return tier
    listing = f"the tiers are {', '.join(f'`{tier}`' for tier in TIERS)}"
    raise PlannerError(f"unknown checkpoint tier `{name}`", hint=did_you_mean(name, list(TIERS), otherwise=listing))

"""Simulates a training run on a fault trace, event by event, to compare closed formulas with.

Between two faults a run is deterministic, so whole intervals there are counted at once; nothing is averaged.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from planner.reliability.tiers import State, Storage, Tier, hazard
from planner.reliability.traces import Fault
from planner.solvers.stochastic.checkpointing import Hazard, Loss, Saving


@dataclass(frozen=True, slots=True)
class Policy:
    """How the run is saved and restarted."""

    tier: Tier
    saving: Saving
    interval: int  # steps between snapshots
    spares: int | None = None  # nodes; None: there is always one
    aligned: bool = False  # snapshots at multiples of `interval` steps, else counted from the last save of any kind


@dataclass(frozen=True, slots=True)
class RunShares:
    """Shares of wall-clock time of one run; they sum to 1."""

    effective: float
    pause: float
    rework: float
    restart: float
    waiting: float  # for nodes, with all spares in use
    num_faults: int


@dataclass(slots=True)
class _Run:
    """Steps by how safe they are; `upload` is the latest snapshot not in remote storage yet: when it arrives, steps."""

    policy: Policy
    steps: int = 0
    snapshot: int = 0
    durable: int = 0
    upload: tuple[float, int] | None = None
    pause_s: float = 0.0

    def run(self, now_s: float, until_s: float) -> None:
        """Steps and snapshots up to a fault at `until_s`; the step and the snapshot in progress then are lost."""
        saving, interval = self.policy.saving, self.policy.interval
        since = self.steps % interval if self.policy.aligned else self.steps - self.snapshot
        now_s = self._cycles(now_s, until_s, interval - since, 1)
        if self.steps != self.snapshot:  # the first snapshot is not reached
            return
        cycle_s = interval * saving.step_s + saving.pause_s
        now_s = self._cycles(now_s, until_s, interval, int((until_s - now_s) / cycle_s))
        self._cycles(now_s, until_s, interval, 1)

    def fail(self, time_s: float, loss: Loss) -> None:
        """Rolls back to what a fault at `time_s` leaves."""
        self._arrive(time_s)
        if loss is Loss.UNDURABLE:
            self.snapshot, self.upload = self.durable, None
        self.steps = self.snapshot

    def save(self) -> None:
        """The state of the survivors is in remote storage."""
        self.snapshot = self.durable = self.steps
        self.upload = None

    def _cycles(self, now_s: float, until_s: float, steps: int, count: int) -> float:
        """`count` times `steps` steps and a snapshot, the last of them as far as time allows; when it ends."""
        saving = self.policy.saving
        cycle_s = steps * saving.step_s + saving.pause_s
        whole = min(count, int((until_s - now_s) / cycle_s))
        if whole:
            now_s += whole * cycle_s
            self.steps += whole * steps
            self.pause_s += whole * saving.pause_s
            self._arrive(now_s - saving.pause_s)
            if whole > 1:
                self.durable = self.steps - steps
            self.snapshot = self.steps
            self.upload = (now_s + saving.durable_after_s, self.steps)
        elif count == 1:
            done = min(steps, int((until_s - now_s) / saving.step_s))
            self.steps += done
            if done == steps:
                self.pause_s += until_s - now_s - steps * saving.step_s
        return now_s

    def _arrive(self, time_s: float) -> None:
        if self.upload is not None and self.upload[0] <= time_s:
            self.durable, self.upload = self.upload[1], None


@dataclass(slots=True)
class _Nodes:
    """Nodes under repair; with `spares` of them missing the job still runs."""

    spares: int | None
    back_s: list[float] = field(default_factory=list)

    def enough_at(self, fault: Fault) -> float:
        """When the job has all its nodes again after `fault`."""
        while self.back_s and self.back_s[0] <= fault.time_s:
            heappop(self.back_s)
        for _ in range(fault.nodes):
            heappush(self.back_s, fault.time_s + fault.repair_s)
        missing = 0 if self.spares is None else len(self.back_s) - self.spares
        return sorted(self.back_s)[missing - 1] if missing > 0 else fault.time_s


def simulate_run(
    trace: Sequence[Fault], duration_s: float, policy: Policy, state: State, storage: Storage
) -> RunShares:
    """The run of `duration_s` under `trace`."""
    run, nodes = _Run(policy), _Nodes(policy.spares)
    now_s, restart_s, waiting_s = 0.0, 0.0, 0.0
    faults = [fault for fault in trace if fault.time_s < duration_s]
    saved_at_s: float | None = None
    for index, fault in enumerate(faults):
        if fault.time_s >= now_s:
            run.run(now_s, fault.time_s)
        hit = hazard(policy.tier, fault.fault_class, fault.copied, 0.0, state, storage)
        saved_at_s = _saved_at(run, fault, hit, now_s, saved_at_s)
        next_s = faults[index + 1].time_s if index + 1 < len(faults) else duration_s
        enough_s = nodes.enough_at(fault)
        now_s = enough_s + hit.restart_s
        waiting_s += min(enough_s, next_s) - fault.time_s
        restart_s += max(0.0, min(now_s, next_s) - enough_s)
        if saved_at_s is not None and saved_at_s <= min(now_s, next_s):
            run.save()
            saved_at_s = None
    if now_s < duration_s:
        run.run(now_s, duration_s)
    effective = run.steps * policy.saving.step_s / duration_s
    pause, restart, waiting = (seconds / duration_s for seconds in (run.pause_s, restart_s, waiting_s))
    return RunShares(effective, pause, 1.0 - effective - pause - restart - waiting, restart, waiting, len(faults))


def _saved_at(run: _Run, fault: Fault, hit: Hazard, ready_s: float, saved_at_s: float | None) -> float | None:
    """When the save that a fault leads to is complete, if it leads to one; rolls back where it does not."""
    saving = fault.time_s >= ready_s or saved_at_s is not None  # there is unsaved work on the GPUs
    if hit.loss is Loss.STEP and saving:
        return fault.time_s + hit.saved_after_s
    run.fail(fault.time_s, Loss.UNSAVED if hit.loss is Loss.STEP else hit.loss)
    return None

"""Effective training time ratio: the checkpoint tier, interval and spare nodes that waste least.

The effective share is that of wall-clock time whose steps count. Node-hours of spares count as well: plans are compared
by effective share x nodes / (nodes + spares), the yield of all machines that the job holds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from planner.errors import PlannerError
from planner.reliability.faults import DEFAULT, FaultClass, JobMachines, Stragglers, Takes
from planner.reliability.tiers import TIERS, State, Storage, Tier, hazards, saving
from planner.solvers.stochastic.availability import Outage, Slowness, best_spares, mean_speed
from planner.solvers.stochastic.checkpointing import best_interval, time_shares

MOST_STEPS = 10**7
DAY_S = 86400.0


@dataclass(frozen=True, slots=True)
class Job:
    """A training run: its machines, its state, and one step."""

    fleet: JobMachines
    state: State
    storage: Storage
    step_s: float
    tokens_per_step: float
    faults: tuple[FaultClass, ...] = DEFAULT
    stragglers: Stragglers | None = None


@dataclass(frozen=True, slots=True)
class AtScale:
    """A tier with its interval and spares, and where wall-clock time goes under them; shares sum to 1."""

    tier: Tier
    interval: int  # steps between snapshots
    interval_s: float
    spares: int  # nodes
    effective_share: float
    pause_share: float
    rework_share: float
    restart_share: float
    waiting_share: float  # for nodes, with all spares in use
    slow_share: float  # lost to stragglers
    mean_gap_s: float | None  # between faults of the whole job; None where nothing fails
    tokens_per_day: float
    machine_yield: float  # effective share x nodes / (nodes + spares)

    def days_to(self, tokens: float) -> float:
        """Days of wall-clock time to train on so many tokens."""
        return tokens / self.tokens_per_day


def at_scale(job: Job, tier: Tier, *, interval: int | None = None, spares: int | None = None) -> AtScale:
    """The run under `tier`, with the best interval and number of spares where none is given.

    Raises PlannerError where a state cannot be durable before the next one is due.
    """
    classes = hazards(tier, job.faults, job.fleet, job.state, job.storage)
    how = saving(tier, job.state, job.storage, job.step_s)
    if interval is None:
        interval = best_interval(classes, how, MOST_STEPS).solution
        if interval is None:
            raise PlannerError(
                f"a checkpoint takes {how.durable_after_s:.3g} s to reach remote storage, longer than any interval",
                where="remote storage",
                hint="name a faster one",
            )
    shares = time_shares(classes, how, [interval])
    spares, waiting = _spares(job, float(shares.effective[0]), spares)
    speed = _speed(job)
    effective = float(shares.effective[0]) * (1.0 - waiting) * speed
    rate = sum(hazard.rate_per_s for hazard in classes)
    parts = [float(part[0]) * (1.0 - waiting) for part in (shares.pause, shares.rework, shares.restart)]
    return AtScale(
        tier=tier,
        interval=interval,
        interval_s=interval * job.step_s,
        spares=spares,
        effective_share=effective,
        pause_share=parts[0],
        rework_share=parts[1],
        restart_share=parts[2],
        waiting_share=waiting,
        slow_share=float(shares.effective[0]) * (1.0 - waiting) * (1.0 - speed),
        mean_gap_s=1.0 / rate if rate else None,
        tokens_per_day=effective / job.step_s * job.tokens_per_step * DAY_S,
        machine_yield=effective * job.fleet.num_nodes / (job.fleet.num_nodes + spares),
    )


def best_tier(job: Job, tiers: Sequence[Tier] = TIERS, *, spares: int | None = None) -> AtScale:
    """Of these tiers, with its interval and spares, the one with the best machine yield."""
    return max((at_scale(job, tier, spares=spares) for tier in tiers), key=lambda run: run.machine_yield)


def outages(faults: Sequence[FaultClass], fleet: JobMachines) -> list[Outage]:
    """The faults that take nodes out of service."""
    return [
        Outage(fault.rate_per_gpu_s * fleet.num_gpus, fault.repair_s, fleet.nodes_taken(fault.takes))
        for fault in faults
        if fault.takes is not Takes.PROCESS
    ]


def _spares(job: Job, effective: float, spares: int | None) -> tuple[int, float]:
    """Spare nodes and the share of time in which more are away; the number with the best yield where none is given."""
    away = outages(job.faults, job.fleet)
    nodes = job.fleet.num_nodes

    def machine_yield(count: int, short: float) -> float:
        return effective * (1.0 - short) * nodes / (nodes + count) if spares is None or count == spares else -1.0

    mean = sum(outage.load * outage.units for outage in away)
    most = (
        spares if spares is not None else min(nodes, int(4.0 * mean + 12.0 * max((a.units for a in away), default=1)))
    )
    solution = best_spares(away, machine_yield, most).solution
    assert solution is not None
    return solution


def _speed(job: Job) -> float:
    slow = job.stragglers
    if slow is None:
        return 1.0
    return mean_speed([Slowness(slow.rate_per_node_s * job.fleet.num_nodes, slow.found_after_s, slow.speed)])

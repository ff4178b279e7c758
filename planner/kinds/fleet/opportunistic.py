"""Opportunistic jobs of a day on GPUs of its production jobs (TGS), window after window.

Parameters  of a production job: b share of the time of its GPUs, f bytes it leaves of each; of an opportunistic one:
            b_o, m_o bytes, c_o contention;  o, s, d losses by overload and spill, and the slowdown by spill
At rate r the time of a GPU is overrun by x = max(b + r b_o - 1, 0), and y = max(m_o - f, 0) / m_o of the memory spills:
    loss = c_o r + o x + s y r,   speed = r (1 - d y) max(1 - x, 0).
A job with a load takes b of its GPUs while it serves all that it can, and as much less as it serves less; a window
counts by its fullest slot at any level. `solvers.placement.opportunistic` places the jobs of a window for most worth.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats
from planner.errors import PlannerError
from planner.kinds.fleet.beside_options import OpportunisticJobSpec, OpportunisticSpec
from planner.kinds.fleet.decision import SharedRun, SharedWindow
from planner.kinds.fleet.formulate import FleetDay, loads, rate_of
from planner.kinds.fleet.jobs import free_nodes
from planner.kinds.fleet.options import FleetOptions
from planner.problem.resolve import Resolved
from planner.solvers.placement.opportunistic import Sharing, share_gpus

TIME_LIMIT_S = 60.0  # of a window
Shares = Sequence[Sequence[tuple[int, ...]]]
"""Nodes of every job by window and pool. [K][W][P]"""


@dataclass(frozen=True, slots=True)
class Host:
    """GPUs of a production job in a window, and what it leaves of each."""

    job: str
    like: str
    gpus: int
    busy: float
    free_bytes: float


def shared_windows(day: FleetDay, shares_KWP: Shares) -> tuple[SharedWindow, ...]:
    """What runs beside production in every window; windows that are alike are solved once."""
    spec = day.options.opportunistic
    if spec is None:
        return ()
    solved: dict[tuple[Host, ...], SharedWindow] = {}
    made = []
    for window in range(day.options.windows):
        hosts = tuple(hosts_of(day, shares_KWP, window))
        if hosts not in solved:
            solved[hosts] = _placed(spec, hosts)
        made.append(solved[hosts].model_copy(update={"window": window}))
    return tuple(made)


def require_gpus(resolved: Resolved, options: FleetOptions) -> None:
    """Raises PlannerError for a job on more GPUs together than the nodes of the day have."""
    nodes = zip(resolved.pools, free_nodes(resolved, options), strict=True)
    most = sum(count * pool.node.num_gpus for pool, count in nodes)
    for index, job in enumerate(options.opportunistic.jobs if options.opportunistic else ()):
        if job.gpus > most:
            what = f"`{job.name}` runs on {job.gpus} GPUs together, and jobs can have {most}"
            where = resolved.where(("options", "opportunistic", "jobs", index, "gpus"))
            raise PlannerError(what, where=where, hint=f"write at most {most}")


def hosts_of(day: FleetDay, shares_KWP: Shares, window: int) -> list[Host]:
    """The production jobs that have GPUs in a window and may be shared."""
    made = []
    for job, shares in zip(day.jobs, shares_KWP, strict=True):
        shared, gpus = job.spec.shared, day.gpus(shares[window])
        if shared is None or not gpus:
            continue
        busy = shared.busy
        if job.spec.load is not None:
            most = float(loads(job, day.options)[:, window].max())
            busy *= min(most / max(rate_of(job, shares[window]), 1e-12), 1.0)
        made.append(Host(job.spec.name, shared.like or job.spec.name, gpus, busy, shared.free_memory_bytes))
    return made


def loss_and_speed(
    spec: OpportunisticSpec, job: OpportunisticJobSpec, host: Host, rate_R: Floats
) -> tuple[Floats, Floats]:
    """What a production job loses beside a job at these rates, and how fast that is."""
    contention = job.contention if isinstance(job.contention, float) else job.contention.get(host.like, 0.0)
    over_R = np.maximum(host.busy + rate_R * job.busy - 1.0, 0.0)
    spill = max(job.memory_bytes - host.free_bytes, 0.0) / job.memory_bytes
    loss_R = contention * rate_R + spec.overload_loss * over_R + spec.spill_loss * spill * rate_R
    return loss_R, rate_R * (1.0 - spec.spill_slowdown * spill) * np.maximum(1.0 - over_R, 0.0)


def _placed(spec: OpportunisticSpec, hosts: tuple[Host, ...]) -> SharedWindow:
    """The jobs of a window where they are worth most."""
    if not hosts:
        return SharedWindow(window=0, usd_per_hour=0.0, bound_usd_per_hour=0.0)
    rate_R = np.array(spec.rates)
    tables = [[loss_and_speed(spec, job, host, rate_R) for host in hosts] for job in spec.jobs]
    loss_OPR, speed_OPR = (np.array([[pair[side] for pair in row] for row in tables]) for side in (0, 1))
    problem = Sharing(
        tuple(job.gpus for job in spec.jobs),
        tuple(job.usd_per_gpu_hour for job in spec.jobs),
        speed_OPR,
        loss_OPR,
        spec.most_loss,
        tuple(host.gpus for host in hosts),
    )
    result = share_gpus(problem, time_limit_s=TIME_LIMIT_S)
    chosen = result.solution or (None,) * len(spec.jobs)
    runs = []
    for o, (job, shared) in enumerate(zip(spec.jobs, chosen, strict=True)):
        if shared is None:
            continue
        on = {hosts[p].job: shared.gpus.count(p) for p in sorted(set(shared.gpus))}
        speed = float(min(speed_OPR[o, p, shared.rate] for p in shared.gpus))
        runs.append(SharedRun(job=job.name, rate=spec.rates[shared.rate], speed=speed, gpus=on))
    losses = {
        hosts[p].job: max(float(loss_OPR[o, p, s.rate]) for o, s in enumerate(chosen) if s is not None and p in s.gpus)
        for p in sorted({p for s in chosen if s is not None for p in s.gpus})
    }
    value = problem.value(chosen)
    bound = value if result.bound is None else max(result.bound, value)
    return SharedWindow(window=0, usd_per_hour=value, bound_usd_per_hour=bound, runs=tuple(runs), losses=losses)

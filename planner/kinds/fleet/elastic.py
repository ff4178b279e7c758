"""Elastic jobs of a day: what nodes are worth to them together, and which GPUs each has of those that they have.

By `solvers.schedules.idle_worth` on the GPUs of every number of nodes, they have nodes in the day as one job does whose
units are US dollars; `solvers.schedules.idle_machines` shares out the GPUs of what it has.
"""

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np

from planner.errors import Conflict, Infeasible, PlannerError
from planner.hardware.cluster import Pool
from planner.kinds.fleet.beside_options import ElasticJobSpec, ElasticSpec
from planner.kinds.fleet.decision import ElasticRun
from planner.kinds.fleet.jobs import Job, Point
from planner.kinds.fleet.options import ELASTIC, FleetOptions, JobSpec
from planner.problem.resolve import Resolved
from planner.solvers.schedules.idle_machines import TaskJob, share_machines
from planner.solvers.schedules.idle_worth import with_references, worth_of_machines

MOST_POINTS = 150  # numbers of nodes of all pools that are told apart
DUST = 1e-9


def elastic_job(resolved: Resolved, options: FleetOptions, free: Sequence[int]) -> Job | None:
    """The elastic jobs as one job of the day, None without any; Infeasible where no nodes give all their speeds."""
    spec = options.elastic
    if spec is None:
        return None
    _require_pools(resolved, spec)
    whole = gpus_of(resolved.pools, free)
    worth = worth_of_machines(with_references(task_jobs(spec), whole), whole)
    at_nodes = worth[tuple(slice(None, None, pool.node.num_gpus) for pool in resolved.pools)]
    if not np.isfinite(at_nodes[-1:].max() if at_nodes.ndim == 1 else at_nodes.max()):
        raise _too_slow(spec, whole)
    points = [Point(share, float(at_nodes[share]), 1) for share in _shares(at_nodes)]
    least = 0 if np.isfinite(at_nodes[(0,) * at_nodes.ndim]) else min(sum(point.share) for point in points)
    made = JobSpec.model_construct(
        name=ELASTIC,
        usd_per_unit=1.0,
        least_nodes=least,
        start_up_s=spec.start_up_s,
        restarts="job",
    )
    return Job(made, None, tuple(points), {})


def gpus_of(pools: Sequence[Pool], nodes: Sequence[int]) -> dict[str, int]:
    """GPUs of so many nodes, by pool."""
    return {pool.name: count * pool.node.num_gpus for pool, count in zip(pools, nodes, strict=True)}


def task_jobs(spec: ElasticSpec) -> list[TaskJob]:
    """The jobs as `idle_machines` has them."""
    return [
        TaskJob(
            job.workers,
            job.worker_s,
            {pool: job.most_workers.get(pool, job.workers) for pool in job.worker_s},
            worth=job.usd_per_hour,
            reference_s=job.reference_s,
            least_speed=job.least_speed,
        )
        for job in spec.jobs
    ]


def divided(
    pools: Sequence[Pool], spec: ElasticSpec, free: Sequence[int], nodes: Sequence[int]
) -> dict[str, ElasticRun]:
    """The GPUs of every job that runs, of so many nodes; `free` are those that all jobs of a day share."""
    jobs = with_references(task_jobs(spec), gpus_of(pools, free))
    ways = share_machines(jobs, gpus_of(pools, nodes)).solution or (None,) * len(jobs)
    made = {}
    for job, own, way in zip(spec.jobs, jobs, ways, strict=True):
        if way is not None and own.reference_s is not None:
            gpus = {pool.name: count for pool, count in zip(pools, way.machines, strict=True) if count}
            made[job.name] = ElasticRun(gpus=gpus, step_s=way.round_s, speed=own.reference_s / way.round_s)
    return made


def _shares(worth: "np.ndarray[tuple[int, ...], np.dtype[np.float64]]") -> list[tuple[int, ...]]:
    """Numbers of nodes with which all have their least speeds and that fewer of no pool are worth as much as.

    Of more than MOST_POINTS those in whole steps of each pool, and the ones of fewest nodes and of most worth.
    """
    kept = [share for share in product(*map(range, worth.shape)) if any(share) and _counts(worth, share)]
    if len(kept) <= MOST_POINTS:
        return kept
    step = 2
    ends = {min(kept, key=lambda share: (sum(share), share)), max(kept, key=lambda share: float(worth[share]))}
    while True:
        coarse = sorted({share for share in kept if all(count % step == 0 for count in share)} | ends)
        if len(coarse) <= MOST_POINTS:
            return coarse
        step += 1


def _counts(worth: "np.ndarray[tuple[int, ...], np.dtype[np.float64]]", share: tuple[int, ...]) -> bool:
    """Whether every node of these adds to their worth."""
    if not np.isfinite(worth[share]):
        return False
    fewer = [(*share[:p], count - 1, *share[p + 1 :]) for p, count in enumerate(share) if count]
    return all(worth[share] > worth[less] + DUST for less in fewer)


def _require_pools(resolved: Resolved, spec: ElasticSpec) -> None:
    names = [pool.name for pool in resolved.pools]
    for index, job in enumerate(spec.jobs):
        for field, given in (("worker_s", job.worker_s), ("most_workers", job.most_workers)):
            strange = next((pool for pool in given if pool not in names), None)
            if strange is not None:
                where = resolved.where(("options", "elastic", "jobs", index, field))
                hint = f"the pools are {', '.join(f'`{name}`' for name in names)}"
                raise PlannerError(f"no pool is called `{strange}`", where=where, hint=hint)


def _too_slow(spec: ElasticSpec, machines: dict[str, int]) -> Infeasible:
    """Which least speed a job cannot have even alone, or that they cannot have theirs together."""
    there = ", ".join(f"{count} GPUs of {pool}" for pool, count in machines.items())
    conflict = list(_alone(spec, machines))
    if not conflict:
        limit = f"elastic: the least speeds of {', '.join(job.name for job in spec.jobs if job.least_speed)} together"
        conflict = [Conflict(limit=limit, nearest=f"each has its own alone on {there}: lower one, or add GPUs")]
    return Infeasible(conflict, proved=True)


def _alone(spec: ElasticSpec, machines: dict[str, int]) -> Iterator[Conflict]:
    for job, task in zip(spec.jobs, with_references(task_jobs(spec), machines), strict=True):
        if task.least_speed and not np.isfinite(worth_of_machines([task], machines).max()):
            yield Conflict(limit=f"{job.name}: {job.least_speed:g} of its speed", nearest=_fastest(job, machines))


def _fastest(job: ElasticJobSpec, machines: dict[str, int]) -> str:
    free = ElasticSpec(jobs=(job.model_copy(update={"least_speed": 0.0, "usd_per_hour": 1.0}),))
    worth = worth_of_machines(with_references(task_jobs(free), machines), machines)
    return f"{float(worth.max()):.4g} alone on all GPUs"

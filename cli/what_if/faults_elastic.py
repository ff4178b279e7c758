"""Output of `planner faults elastic`: the GPUs that each elastic job gets, and its logical workers on each of them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from planner.cli.render.columns import table

if TYPE_CHECKING:
    from planner.plan.schema import Decision, Envelope
    from planner.solvers.schedules.idle_machines import TaskJob, Way


def shared_out(plans: "Sequence[tuple[Envelope, Decision]]", gpus: Mapping[str, int]) -> dict[str, Any]:
    """The GPUs of each job by kind, how many run how many workers, and how fast all jobs are together."""
    from planner.estimate.elastic import elastic_job
    from planner.solvers.schedules.idle_machines import share_machines

    jobs = [elastic_job(envelope, decision, list(gpus)) for envelope, decision in plans]
    result = share_machines(jobs, gpus)
    ways = result.solution or (None,) * len(jobs)
    rows = [
        {"plan": envelope.name, "workers": job.tasks, **_job(job, way, list(gpus))}
        for (envelope, _), job, way in zip(plans, jobs, ways, strict=True)
    ]
    return {"status": str(result.status), "speed": result.objective, "bound": result.bound, "jobs": rows}


def _job(job: "TaskJob", way: "Way | None", kinds: Sequence[str]) -> dict[str, Any]:
    """The round of a job that runs, and its rows of GPUs that run equally many workers."""
    from planner.reliability.elastic import GpuKind, place_workers

    if way is None:
        return {"step_s": None, "idle_share": None, "runs": []}
    taken = [(kind, number // job.group) for kind, number in zip(kinds, way.machines, strict=True) if number]
    placed = place_workers(
        job.tasks, [GpuKind(kind, groups, job.task_s[kind], job.most[kind]) for kind, groups in taken], job.more_s
    ).solution
    assert placed is not None, "a way of the job holds all of its workers"
    runs = [
        {"gpu": kind, "gpus": groups * job.group, "workers_of_each": each, "workers": each * groups}
        for kind, each, groups in placed.workers
    ]
    return {"step_s": placed.step_s, "idle_share": placed.idle_share, "runs": runs}


def elastic_table(shared: Mapping[str, Any]) -> str:
    """A row for each job and kind of GPU."""

    lines = []
    for job in shared["jobs"]:
        for row in job["runs"] or [None]:
            gpus = ["waits", "-", "-", "-"]
            if row is not None:
                gpus = [f"{row['gpus']} {row['gpu']}", str(row["workers_of_each"]), f"{job['step_s']:.3g} s"]
                gpus.append(f"{100.0 * job['idle_share']:.1f} %")
            lines.append([job["plan"], str(job["workers"]), *gpus])
    header = ("job", "workers", "GPUs", "workers on each", "step", "idle")
    speed, bound = shared["speed"], shared["bound"]
    return f"{table(header, lines)}\n\nspeed of all jobs together {speed:.3g}, at most {bound:.3g}: {shared['status']}"

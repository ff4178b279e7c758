"""What plans of a day depend on."""

from collections.abc import Iterator

from pydantic import JsonValue

from planner.problem.reads import NETWORK, NODES, Reads, Unread, idle_options
from planner.problem.schema import Problem

_OF_SERVING = ("unit_nodes", "level", "safety")


def _unread(problem: Problem) -> Iterator[Unread]:
    """What is said of jobs that stands beside what decides it."""
    for index, job in enumerate(_jobs(problem)):
        above = f"options.jobs.{index}"
        if job.get("load") is not None:
            yield from idle_options(job, "deadline_s", "deadline", why="for a job with a load", above=above)
        elif job.get("target") is None:
            yield from idle_options(job, "deadline_s", "deadline", why="without a `target`", above=above)
            if job.get("usd_per_missing"):
                yield Unread(f"{above}.usd_per_missing", "without a `load` or a `target`", "remove it")
        if job.get("curve") is not None:
            yield from idle_options(job, "nodes", *_OF_SERVING, why="with a `curve`", above=above)
        planned = job.get("problem")
        if isinstance(planned, dict) and planned.get("kind") != "serve":
            yield from idle_options(job, *_OF_SERVING, why="for a job that does not serve", above=above)
        if job.get("shared") is not None and problem.options.get("opportunistic") is None:
            yield Unread(f"{above}.shared", "without `opportunistic` jobs", "remove it")
        if not job.get("start_up_s") and not job.get("start_up"):
            yield from idle_options(job, "restarts", why="without a `start_up`", above=above)


def _jobs(problem: Problem) -> list[dict[str, JsonValue]]:
    jobs = problem.options.get("jobs")
    return [job for job in jobs if isinstance(job, dict)] if isinstance(jobs, list) else []


READS = Reads(
    plans="plans of a day",
    fields=frozenset({"schema", "kind", "name", "options"}) | NODES | NETWORK | {"cluster.pools.*.usd_per_gpu_hour"},
    limits=frozenset({"time_limit_s", "gap"}),
    instead={
        "models": "write models into the problems of the jobs",
        "workloads": "write workloads into the problems of the jobs",
        "engine": "write it into the problems of the jobs",
        "costs": "write them into the problems of the jobs",
        "cluster.pools.*.topology": "leave it out: jobs are planned on nodes of one pool, whatever joins its racks",
        "objective": "remove it: a day is worth what its jobs are worth",
        "limits.gpus": "write fewer nodes, or `options.reserve_nodes`",
        "availability": "write `options.reserve_nodes`",
        "seed": "leave it out: nothing is drawn",
        "threads": "leave it out: the split runs on one thread",
        "backend": "leave it out: the split uses HiGHS where it needs a solver",
    },
    unread=_unread,
)

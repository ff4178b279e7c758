"""Small training problems, and every plan of them priced one by one."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.documents.read import given_document
from planner.kinds.train.evaluation.evaluate import Choice, Evaluation, evaluate, fits, lay_out
from planner.kinds.train.job import Job, job_of, jobs_of
from planner.kinds.train.space.space import axis_values, offloads, schedules, shardings, space_of
from planner.kinds.train.space.tables import Table, sharing_of, ways_of
from planner.load.problems import resolve_document

ALL_SCHEDULES = ["1f1b", "interleaved", "zb_h1", "zb_h2", "zb_v", "dualpipe", "dualpipev"]


def problem(model: str = "meta-llama/Llama-3.1-8B", **options: Any) -> dict[str, Any]:  # noqa: ANN401
    """A problem on two nodes of H100 unless told otherwise by `gpu`, `nodes`, `cluster`, `limits` and `objective`."""
    gpu, nodes = options.pop("gpu", "h100_sxm"), options.pop("nodes", 2)
    limits, objective = options.pop("limits", {}), options.pop("objective", {"minimize": "step_time"})
    cluster = options.pop("cluster", {"pools": [{"gpu": gpu, "nodes": nodes}]})
    given = {"global_batch": 64, "sequence_tokens": 4096, **options}
    return {
        "schema": "planner.problem/1",
        "kind": "train",
        "models": {"policy": {"name": model}},
        "cluster": cluster,
        "objective": objective,
        "limits": limits,
        "options": given,
    }


def job(data: Mapping[str, Any]) -> Job:
    """The job of a problem."""
    return job_of(resolve_document(given_document(dict(data), "problem"), Path()))


def jobs(data: Mapping[str, Any]) -> tuple[Job, ...]:
    """The job of a problem on each of its pools."""
    return jobs_of(resolve_document(given_document(dict(data), "problem"), Path()))


def every_plan(job: Job) -> Iterator[Evaluation]:
    """Every combination of every axis with every way to recompute, those that fit in memory."""
    space, chunks = space_of(job), axis_values(job)["vpp"]
    for node in range(len(space)):
        table, pp, dp = Table(job, space.shape(node)), int(space.pp[node]), int(space.dp[node])
        batches = job.options.global_batch // (dp * table.shape.micro_batch)
        for schedule, vpp in schedules(job, pp, batches, chunks):
            for zero_stage, shards in shardings(job, table.shape, dp):
                for offload in offloads(job):
                    sharing = sharing_of(table, dp, zero_stage, offload, shards)
                    start = table.modes[0]
                    plain = Choice(table, sharing, pp, dp, schedule, vpp, zero_stage, offload, start, shards=shards)
                    for mode, whole in ways_of(table, pp * vpp, vpp).modes:
                        choice = replace(plain, mode=mode, full_layers=whole)
                        counts = lay_out(choice)
                        found = None if counts is None else evaluate(choice, counts)
                        if found is not None and fits(found):
                            yield found

"""What plans of workflows depend on."""

from collections.abc import Iterator

from pydantic import ValidationError

from planner.kinds.workflow.options import WorkflowOptions
from planner.problem.reads import NODES, WHOLE, Reads, Unread, idle_options
from planner.problem.schema import Problem

OF_ENGINES = ("models.*.weights", "models.*.kv_cache", "engine.memory_utilisation", "costs.calibration")
OF_SERVED = (
    "cluster",
    "engine",
    "costs",
    "limits.gpus",
    "workloads.*.model",
    "workloads.*.input_tokens",
    "workloads.*.output_tokens",
)
OF_STREAMS = ("models", "cluster", "workloads", "engine", "costs", "objective", "limits", "seed")
DRAWN = ("correlation", "simulated_requests", "scenarios", "choices")


def _given(problem: Problem, *keys: str) -> str | None:
    """The first of these options that is given."""
    return next((key for key in keys if problem.options.get(key) is not None), None)


def _serves(problem: Problem) -> bool:
    """Whether any model is served: without one a graph needs neither models nor GPUs."""
    stages = problem.options.get("stages")
    rows = stages if isinstance(stages, list) else []
    return _given(problem, "speech", "images") is not None or any(
        isinstance(stage, dict) and stage.get("serve") is not None for stage in rows
    )


def _sampled(problem: Problem) -> bool:
    return "samples_s" in str(problem.options.get("stages"))


def _every_scenario(problem: Problem) -> bool:
    """As `WorkflowOptions` says; not of options that are not valid, which is told elsewhere."""
    try:
        return WorkflowOptions.model_validate(problem.options).every_scenario
    except ValidationError:
        return False


def _unread(problem: Problem) -> Iterator[Unread]:
    """Schedules draw nothing; pools for speech and images have times as measured; functions stand on no GPUs."""
    once = _given(problem, "servers", "engines")
    if once is not None:
        yield from (Unread(name, f"with `{once}`: the graph runs once", "remove it") for name in OF_STREAMS)
        yield from idle_options(problem.options, *DRAWN, why=f"with `{once}`: nothing is drawn")
        return
    key = _given(problem, "speech", "images")
    if key != "images":
        yield Unread("workloads.*.slo.tpot", "without `images`", "limit `latency` or `ttft` of the whole")
    if not _sampled(problem):
        yield from idle_options(problem.options, "scenarios", why="without `samples_s`")
    if _every_scenario(problem):
        yield from idle_options(problem.options, "simulated_requests", why="where every scenario is looked at")
    if not _serves(problem):
        yield from (Unread(name, "where no stage serves a model", "remove it") for name in OF_SERVED)
    if key is None:
        return
    for name in OF_ENGINES:
        yield Unread(name, f"with `{key}`, whose stages have times as stated", "remove it")
    yield from idle_options(problem.options, "correlation", why=f"with `{key}`, whose stages draw nothing of their own")


READS = Reads(
    plans="workflows",
    fields=WHOLE
    | NODES
    | {"cluster.pools.*.usd_per_gpu_hour"}
    | {"models.*.weights", "models.*.kv_cache"}
    | {f"workloads.*.{name}" for name in ("name", "model", "input_tokens", "output_tokens")}
    | {f"workloads.*.load.{name}" for name in ("rate_per_s", "arrival_cv")}
    | {f"workloads.*.slo.{name}" for name in ("ttft", "tpot", "latency")}
    | {f"engine.{name}" for name in ("name", "version", "memory_utilisation")}
    | {"costs.calibration", "objective.minimize", "limits.gpus", "limits.usd_per_hour", "seed"},
    limits=frozenset({"seed", "time_limit_s"}),
    instead={
        "workloads.*.load.concurrency": "write a `rate`: workflows answer open streams",
        "workloads.*.slo.itl": "limit `latency` or `ttft` of the whole",
        "workloads.*.slo.attainment": "write the share as a percentile: `latency: {p95: 4s}`",
        "costs.profiles": "remove it: stages are priced by formulas",
        "objective": "write `minimize: cost`, and with `servers` or `engines` none",
        "cluster.links": "remove them: every stage stands on one pool",
        "gap": "leave it out: the search ends with the cheapest options",
        "threads": "leave it out: the search runs on one thread",
        "backend": "leave it out: options are searched without a solver",
    },
    unread=_unread,
    models=_serves,
    pools=_serves,
)

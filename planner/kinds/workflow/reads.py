"""What plans of workflows depend on."""

from collections.abc import Iterator

from planner.problem.reads import NODES, WHOLE, Reads, Unread, idle_options
from planner.problem.schema import Problem

OF_ENGINES = ("models.*.weights", "models.*.kv_cache", "engine.memory_utilisation", "costs.calibration")


def _unread(problem: Problem) -> Iterator[Unread]:
    """Pools for speech and images have times as measured; of these alone images have limits on tokens."""
    key = next((key for key in ("speech", "images") if problem.options.get(key) is not None), None)
    if key != "images":
        yield Unread("workloads.*.slo.tpot", "without `images`", "limit `latency` or `ttft` of the whole")
    if key is None:
        return
    for name in OF_ENGINES:
        yield Unread(name, f"with `{key}`, whose stages have times as stated", "remove it")
    yield from idle_options(problem.options, "correlation", why=f"with `{key}`, whose stages draw nothing of their own")


READS = Reads(
    plans="workflows",
    fields=(WHOLE - {"models.*.config"})
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
        "models.*.config": "name a model of the catalog: serving plans of stages are simulated from it",
        "workloads.*.load.concurrency": "write a `rate`: workflows answer open streams",
        "workloads.*.slo.itl": "limit `latency` or `ttft` of the whole",
        "workloads.*.slo.attainment": "write the share as a percentile: `latency: {p95: 4s}`",
        "costs.profiles": "remove it: stages are priced by formulas",
        "objective": "write `minimize: cost`",
        "cluster.links": "remove them: every stage stands on one pool",
        "gap": "leave it out: the search ends with the cheapest options",
        "threads": "leave it out: the search runs on one thread",
        "backend": "leave it out: options are searched without a solver",
    },
    unread=_unread,
)

"""What serving plans depend on."""

from collections.abc import Iterator

from planner.problem.reads import NETWORK, NODES, WHOLE, WIRING, Reads, Unread, idle_options
from planner.problem.schema import Problem

APART = ("attention_gpus", "ffn_gpus", "micro_batches")


def _unread(problem: Problem) -> Iterator[Unread]:
    options = problem.options
    if options.get("judged_by") != "simulation":
        yield from idle_options(options, "simulated_requests", why="without `judged_by: simulation`")
    modes = options.get("modes")
    if not isinstance(modes, list) or "attention-ffn" not in modes:
        yield from idle_options(options, *APART, why="without `attention-ffn` in `modes`")
    if not any(workload.prefix_hits for workload in problem.workloads):
        yield Unread(
            "engine.host_cache_bytes_per_gpu",
            "without `prefix_hits` of a workload: engines keep no prefixes then",
            "say what share of the prompts caches hold, host memory with them, or remove it",
        )


READS = Reads(
    plans="serving plans",
    fields=WHOLE
    | NODES
    | NETWORK
    | WIRING
    | {"cluster.pools.*.topology.rails"}
    | {"models.*.weights", "models.*.kv_cache", "cluster.pools.*.usd_per_gpu_hour", "cluster.links"}
    | {
        f"workloads.*.{name}"
        for name in (
            "name",
            "model",
            "input_tokens",
            "output_tokens",
            "images",
            "audio_s",
            "load",
            "prefix_hits",
            "share",
            "slo",
        )
    }
    | {"cache", "engine", "costs", "objective", "limits", "availability", "seed"},
    limits=frozenset({"time_limit_s", "gap", "seed", "threads", "backend"}),
    instead={
        "workloads.*.priority": "remove it; `priority` of the requests of a trace orders them in `planner simulate`",
        "current": "remove it, and compare the two plans with `planner diff`",
    },
    unread=_unread,
)

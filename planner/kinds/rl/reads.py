"""What plans of RL post-training depend on."""

from collections.abc import Iterator

from planner.problem.reads import NODES, WHOLE, Reads, Unread, idle_options
from planner.problem.schema import Problem


def _unread(problem: Problem) -> Iterator[Unread]:
    """A horizon is planned by a dynamic program that runs to its end; only fused schedules go to a solver."""
    for name in OF_MODELS if not problem.models else ():
        yield Unread(name, "where no model is named and all costs are stated", "leave it out")
    if "late_thresholds" not in problem.options:
        yield from idle_options(problem.options, "late_change", "late_change_s", why="without `late_thresholds`")
    if problem.options.get("horizon") is not None:
        for name in ("time_limit_s", "gap", "threads"):
            yield Unread(name, "on a horizon, whose dynamic program runs to its end", "leave it out")
    elif not problem.options.get("fused_training"):
        yield Unread("threads", "without `fused_training`: the search runs on one thread", "leave it out")


OF_MODELS = (
    *(f"engine.{name}" for name in ("name", "version", "memory_utilisation")),
    *(f"cluster.links.*.{name}" for name in ("pools", "bandwidth_bytes_per_s", "latency_s")),
    *(f"cluster.pools.*.{name}" for name in ("fabric", "nic_bandwidth_bytes_per_s")),
    *("costs.profiles", "costs.calibration", "seed"),
)
"""What prices models alone."""

READS = Reads(
    plans="RL plans",
    fields=WHOLE
    | NODES
    | {f"cluster.pools.*.{name}" for name in ("fabric", "nic_bandwidth_bytes_per_s", "usd_per_gpu_hour")}
    | {f"cluster.pools.*.topology.{name}" for name in ("racks", "uplink_bytes_per_s", "circuits")}
    | {f"models.*.{name}" for name in ("weights", "kv_cache")}
    | {f"workloads.*.{name}" for name in ("model", "input_tokens", "output_tokens")}
    | {f"engine.{name}" for name in ("name", "version", "memory_utilisation")}
    | {
        "cluster.links",
        "costs",
        "objective.maximize",
        "objective.minimize",
        "limits.gpus",
        "current",
        "seed",
    },
    limits=frozenset({"time_limit_s", "gap", "seed", "threads"}),
    instead={
        "cluster.pools.*.oversubscription": "remove it, and write the `nic_bandwidth` that is left",
        "cluster.pools.*.topology.scale_up": "remove it: tensor parallelism of training stays inside nodes in RL plans",
        "cluster.pools.*.topology.rails": "remove it, and write the `nic_bandwidth` that is left",
        "workloads.*.load": "remove it, and write `options.prompts`",
        "engine.max_context_tokens": "remove it, and write `options.max_output_tokens`",
        "workloads.*.slo": "remove it, and write `options.max_iteration`",
        "objective": "write `minimize: iteration_time`, `minimize: cost` or `maximize: tokens_per_usd`",
        "limits.usd_per_hour": "remove it, and write `minimize: cost`",
        "backend": "leave it out: RL plans are searched without a solver",
    },
    unread=_unread,
)

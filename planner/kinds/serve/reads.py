"""What serving plans depend on."""

from planner.problem.reads import NETWORK, NODES, WHOLE, Reads

READS = Reads(
    plans="serving plans",
    fields=WHOLE
    | NODES
    | NETWORK
    | {"models.*.weights", "models.*.kv_cache", "cluster.pools.*.usd_per_gpu_hour", "cluster.links"}
    | {f"workloads.*.{name}" for name in ("name", "model", "input_tokens", "output_tokens", "load", "share", "slo")}
    | {"engine", "costs", "objective", "limits", "seed"},
    limits=frozenset({"time_limit_s", "gap", "seed", "threads", "backend"}),
    instead={
        "workloads.*.priority": "remove it; `priority` of the requests of a trace orders them in `planner simulate`",
        "current": "remove it, and compare the two plans with `planner diff`",
    },
)

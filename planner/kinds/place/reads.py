"""What placements of many models depend on."""

from collections.abc import Iterator

from planner.problem.reads import NODES, WHOLE, Reads, Unread, idle_options
from planner.problem.schema import Problem


def _unread(problem: Problem) -> Iterator[Unread]:
    """Only engines that batch have batches, steps and caches; only without batches groups have stages."""
    yield from _idle_links(problem)
    if problem.options.get("mix") is not None:
        names = ("layers", "lora", "arrivals", *ENGINES)
        yield from idle_options(problem.options, *names, why="with `mix`, which is of instances by measured rates")
        for name in MEASURED:
            yield Unread(name, "with `mix`, whose rates are as measured", "remove it")
        return
    if problem.options.get("lora") is not None:
        others = ("layers", "without", "arrivals", "max_group_gpus", "pp", "batching", "simulated_requests")
        yield from idle_options(problem.options, *others, why="with `lora`, which is of engines of one model")
        why = "with `lora`, whose engines hold one base: of the floor they read what is `taken`"
        yield from idle_options(
            problem.options.get("floor"), "racks", "apart", "never_together", why=why, above="options.floor"
        )
        yield Unread("seed", "with `lora`, whose solver draws nothing", "remove it")
        if problem.objective.minimize is None:
            lora = problem.options["lora"]
            yield from idle_options(lora, "max_busy", why="where tokens are to be many", above="options.lora")
        return
    if problem.options.get("layers") is not None:
        why = "with `layers`, which are over nodes and not on groups"
        yield from idle_options(problem.options, "arrivals", *ENGINES, why=why)
        yield Unread("limits.gpus", "with `layers`, which are over all nodes", "take nodes out of the pools")
        return
    yield from idle_options(problem.options, "without", why="for models on groups, which stand in one pool")
    if problem.options.get("batching", True):
        yield from idle_options(problem.options, "pp", why="where engines batch: their groups have one stage")
        return
    yield from idle_options(problem.options, "max_batch", "chunk_tokens", why="with `batching: false`")
    for name in ("models.*.kv_cache", *(f"workloads.*.slo.tpot.{name}" for name in PERCENTILES)):
        yield Unread(name, "with `batching: false`, where requests answer in one pass", "remove it")


def _idle_links(problem: Problem) -> Iterator[Unread]:
    """Links that nothing of the placement goes over, and racks that copies are not kept apart by."""
    topologies = [pool.topology for pool in problem.cluster.pools if pool.topology is not None]
    if problem.options.get("layers") is not None:
        if all(topology.uplink_bytes_per_s is None for topology in topologies):
            yield Unread(RACKS, "on layers where racks have no `uplink`", "give one, or remove them")
        return
    for name in (UPLINK, *(f"{RAILS}.{part}" for part in ("nodes", "oversubscription"))):
        yield Unread(name, f"without `layers`: {INSIDE}", "remove it")
    floor = problem.options.get("floor")
    apart = isinstance(floor, dict) and floor.get("apart") == "rack" and floor.get("racks") is None
    if not apart or problem.options.get("mix") is not None or problem.options.get("lora") is not None:
        why = "unless copies are kept apart by it: `options.floor.apart: rack`, without racks of its own"
        yield Unread(RACKS, why, "remove them")


RACKS = "cluster.pools.*.topology.racks"
UPLINK = "cluster.pools.*.topology.uplink_bytes_per_s"
RAILS = "cluster.pools.*.topology.rails"
INSIDE = "groups and engines stand inside a node, and mixes have measured rates"
"""Why no link between nodes carries anything of a placement but of layers, which send over adapters and uplinks."""

MEASURED = (
    *(f"models.*.{name}" for name in ("weights", "kv_cache")),
    *("engine.memory_utilisation", "costs.calibration", "limits.gpus", "seed"),
    *("cluster.links", "cluster.pools.*.nic_bandwidth_bytes_per_s"),
)
ENGINES = (
    *("floor", "max_group_gpus", "min_replicas", "tp", "pp"),
    *("batching", "max_batch", "chunk_tokens", "simulated_requests"),
)
PERCENTILES = ("p50_s", "p90_s", "p95_s", "p99_s")
TIMES = ("ttft", "tpot", "latency")

READS = Reads(
    plans="placements",
    fields=WHOLE
    | NODES
    | {RACKS, UPLINK, RAILS}
    | {"cluster.pools.*.nic_bandwidth_bytes_per_s", "cluster.pools.*.usd_per_gpu_hour", "cluster.links"}
    | {"models.*.weights", "models.*.kv_cache"}
    | {f"workloads.*.{name}" for name in ("name", "model", "input_tokens", "output_tokens")}
    | {f"workloads.*.load.{name}" for name in ("rate_per_s", "arrival_cv")}
    | {f"workloads.*.slo.{name}" for name in (*TIMES, "attainment")}
    | {f"engine.{name}" for name in ("name", "version", "memory_utilisation")}
    | {"costs.calibration", "objective.maximize", "objective.minimize", "limits.gpus", "seed"},
    limits=frozenset({"seed", "time_limit_s"}),
    instead={
        "workloads.*.load.concurrency": "write a `rate`: placements serve open streams",
        "workloads.*.slo.itl": "limit a percentile of ttft, tpot or latency",
        "costs.profiles": "remove it: groups that several engines share are priced by formulas",
        "objective": "write `maximize: attainment` or `minimize: gpus`; with `layers` write "
        "`maximize: tokens_per_s_per_gpu`, with `mix` `minimize: cost`, with `lora` one of "
        "`maximize: tokens_per_s_per_gpu` and `minimize: gpus`",
        "cluster.pools.*.topology.scale_up": f"remove it: {INSIDE}; layers send from node to node over adapters",
        "cluster.pools.*.topology.circuits": f"remove them: {INSIDE}; layers send all the time",
        "cluster.pools.*.fabric": "remove it, and write its `nic_bandwidth`",
        "cluster.pools.*.oversubscription": "remove it, and write the `nic_bandwidth` that is left",
        "limits.usd_per_hour": "write `limits: {gpus: N}`",
        "availability": "write `options: {min_replicas: 2}`",
        "gap": "leave it out: the search simulates a number of requests",
        "threads": "leave it out: the search runs on one thread",
        "backend": "leave it out: placements are searched without a solver",
    },
    unread=_unread,
)

"""What training plans depend on."""

from collections.abc import Iterator

from planner.engines.training import TRAINING_ENGINES
from planner.problem.reads import NETWORK, NODES, WHOLE, WIRING, Reads, Unread, idle_options
from planner.problem.schema import Problem


def _unread(problem: Problem) -> Iterator[Unread]:
    if problem.engine.name not in TRAINING_ENGINES:
        for name in ("name", "version"):
            remedy = f"name one that trains: {', '.join(TRAINING_ENGINES)}"
            yield Unread(f"engine.{name}", f"on training: `{problem.engine.name}` serves", remedy)
    if problem.options.get("task", "pretrain") != "lora":
        yield from idle_options(problem.options, "lora_rank", why="without `task: lora`")
    around = problem.options.get("reliability")
    if isinstance(around, dict) and not around.get("slow_nodes"):
        yield from idle_options(around, "slow_speed", why="without `slow_nodes`", above="options.reliability")


OWN_DEFAULTS = frozenset({"engine.name", "engine.memory_utilisation"})
"""Without them an engine that trains is priced, and memory fills as `options.memory_utilisation` has it."""

READS = Reads(
    plans="training plans",
    fields=WHOLE
    | NODES
    | NETWORK
    | WIRING
    | {
        "cluster.links",
        "costs",
        "engine.name",
        "engine.version",
        "objective.maximize",
        "objective.minimize",
        "limits.gpus",
    },
    limits=frozenset({"time_limit_s", "gap"}),
    instead={
        "models.*.weights": "remove it, and write `options.precision`, in which the model is trained",
        "models.*.kv_cache": "remove it: training keeps no KV cache",
        "workloads": "remove it, and write `options.global_batch` and `options.sequence_tokens`",
        "engine.memory_utilisation": "remove it, and write `options.memory_utilisation`",
        "engine": "remove it: training engines have no such setting",
        "cluster.pools.*.topology.rails": "remove `rails`, and write the pool's `oversubscription`, that of all nodes",
        "objective": "write `minimize: step_time` or `maximize: tokens_per_s_per_gpu`",
        "current": "remove it, and compare the two plans with `planner diff`",
        "seed": "remove it: the search draws nothing, and the same problem has the same plan",
        "--seed": "leave it out: the search draws nothing",
        "threads": "leave it out: the search runs on one thread",
        "backend": "leave it out: training plans are searched without a solver",
    },
    own_defaults=OWN_DEFAULTS,
    unread=_unread,
)

"""What expert layouts depend on."""

from collections.abc import Iterator

from planner.problem.reads import NODES, WHOLE, WIRING, Reads, Unread, idle_options
from planner.problem.schema import Problem


def _unread(problem: Problem) -> Iterator[Unread]:
    """Only the local search of static layouts draws, and stops early; only windows to come rise and fall by group."""
    policy = problem.options.get("policy", "static")
    of_groups = policy == "periodic" or problem.options.get("ahead") or problem.options.get("nodes_per_group")
    if not of_groups:
        yield from idle_options(
            problem.options, "groups", why=f"with `policy: {policy}`, which takes loads as recorded"
        )
    if policy != "realtime":
        for name in LINKS:
            yield Unread(name, f"with `policy: {policy}`, whose layouts are of loads and no seconds", "remove it")
    if policy not in ("static", "windows", "affinity"):
        yield Unread("seed", f"with `policy: {policy}`, which draws nothing", "leave it out")
    if policy != "static":
        yield Unread("gap", f"with `policy: {policy}`, which has no bound to near", "leave it out")


RAILS, SCALE_UP = (f"cluster.pools.*.topology.{name}" for name in ("rails", "scale_up"))
LINKS = (
    "cluster.pools.*.topology.uplink_bytes_per_s",
    f"{SCALE_UP}.bandwidth_bytes_per_s",
    *(f"{RAILS}.{name}" for name in ("nodes", "oversubscription")),
)
"""What exchanges of tokens and copies are priced on; racks and groups say where ranks stand under every policy."""

READS = Reads(
    plans="expert layouts",
    fields=WHOLE
    | NODES
    | WIRING
    | {RAILS}
    | {f"engine.{name}" for name in ("name", "version", "memory_utilisation")}
    | {"models.*.weights", "objective.minimize", "seed"},
    limits=frozenset({"gap", "seed"}),
    instead={
        "models.*.kv_cache": "remove it: a layout moves experts alone",
        "cluster.pools.*.topology.circuits": "remove them: all ranks of a layout exchange all the time",
        "workloads": "remove it, and record loads: `options.loads`",
        "costs": "remove it: a layout is judged by its loads alone",
        "objective": "write `minimize: imbalance`",
        "limits": "remove it, and write `options.ep`, the GPUs of the layout",
        "current": "remove it, and name the layout that runs now in `options.resident`",
        "time_limit_s": "leave it out, and stop near the bound: `--gap 1%`",
        "threads": "leave it out: the search runs on one thread",
        "backend": "leave it out: layouts are searched without a solver",
    },
    unread=_unread,
)

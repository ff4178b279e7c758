"""`planner faults nodes`: nodes of pools as they are typed, and what their loss means as text."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from planner.cli.render.columns import table
from planner.errors import PlannerError

if TYPE_CHECKING:
    from planner.hardware.cluster import Pool
    from planner.reliability.lost_nodes import NodeKey, NodeLoss, Yield


def lost_nodes(text: str, pools: Sequence[str]) -> "list[NodeKey]":
    """`h100:3,8-11` as (pool, node) of each; the pool stays until another is named."""
    keys: list[NodeKey] = []
    pool = pools[0] if len(pools) == 1 else None
    for part in text.split(","):
        named, colon, numbers = part.strip().rpartition(":")
        pool = named if colon else pool
        first, dash, last = numbers.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            what = f"nodes are numbers and ranges, found `{part.strip()}`"
            raise PlannerError(what, where="--lost", hint="write `--lost 3,8-11`")
        if pool is None:
            hint = f"write `--lost {pools[0]}:{numbers}`; the pools are {', '.join(f'`{name}`' for name in pools)}"
            raise PlannerError(f"`{part.strip()}` says no pool, and there are {len(pools)}", where="--lost", hint=hint)
        keys += [(pool, node) for node in range(int(first), int(last or first) + 1)]
    return keys


def on_racks(pools: "dict[str, Pool]", text: str | None) -> "dict[str, Pool]":
    """The pools with racks of the sizes given as `16,16,12`: of the only pool, since no other is said."""
    if text is None:
        return pools
    if len(pools) > 1:
        raise PlannerError(f"racks of which of {len(pools)} pools?", where="--racks", hint="leave `--racks` out")
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() for part in parts):
        raise PlannerError(f"racks are numbers of nodes, found `{text}`", where="--racks", hint="write `--racks 16,12`")
    return {name: pool.on_racks(tuple(map(int, parts))) for name, pool in pools.items()}


def node_loss_text(loss: "NodeLoss", rates: "Sequence[Yield]") -> str:
    """The roles that lose ranks, the moves, and what runs on until they are done."""
    rows = [
        (
            row.role,
            row.function,
            f"{row.ranks} of {row.of_ranks}",
            f"{row.replicas} of {row.of_replicas}",
            f"{100.0 * row.runs_on:.1f} %",
        )
        for row in loss.roles
    ]
    parts = [table(("role", "function", "ranks lost", "replicas hit", "runs on"), rows)]
    if loss.moves:
        moved = [
            (
                move.pool,
                str(move.node),
                str(move.spare),
                "yes" if move.same_rack else "no",
                ", ".join(f"{count} of {role}" for role, count in move.ranks.items()),
            )
            for move in loss.moves
        ]
        parts.append(table(("pool", "lost node", "spare", "same rack", "ranks that move"), moved))
    stranded = ", ".join(f"{pool}:{node}" for pool, node in loss.stranded)
    if stranded:
        parts.append(f"  no spare for {stranded}: put them on `out_of_service` and solve again")
    parts += [
        f"  {rate.metric}{f' of {rate.of}' if rate.of else ''}: {rate.until_then_per_s:.4g} until then, "
        f"{rate.planned_per_s:.4g} as planned"
        for rate in rates
    ]
    spare = sum(count for racks in loss.spares_by_rack.values() for count in racks.values())
    parts.append(f"  until then {100.0 * loss.runs_on:.1f} % runs on; {spare} spare nodes before the moves")
    return "\n\n".join(parts)

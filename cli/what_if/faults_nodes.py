"""`planner faults nodes`: nodes of pools as they are typed, and what their loss means as text."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from planner.cli.render.columns import table
from planner.errors import PlannerError

if TYPE_CHECKING:
    from planner.hardware.cluster import Pool
    from planner.plan.schema import Decision, Envelope
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


def simulated_without(envelope: "Envelope", decision: "Decision", loss: "NodeLoss") -> dict[str, dict[str, object]]:
    """Rates of serving simulated as planned and without the replicas or groups that are hit, and limits that break."""
    from planner.kinds.registry import find_kind
    from planner.simulate.plans import lost as serving

    hit = {role.role: role.replicas for role in loss.roles if role.replicas}
    own = find_kind(envelope.kind).lost()
    told = (serving if own is None else own).until_then(envelope, decision, hit)
    broken = [finding.what for finding in told.limits if not finding.ok]
    return {"simulated": {"planned": told.planned, "until_then": told.left, "broken_limits": broken}}


def replanned_without(envelope: "Envelope", decision: "Decision", loss: "NodeLoss") -> dict[str, dict[str, object]]:
    """A training plan on the nodes that are left where some have no spare, with fewest cells moved; else nothing."""
    if envelope.kind != "train" or not loss.stranded:
        return {}
    from planner.cli.what_if.faults_report import replanned_rows
    from planner.reliability.of_plan import running_of
    from planner.reliability.replan import replan

    lost = [*(move.node for move in loss.moves), *(node for _, node in loss.stranded)]
    return {"replanned": dict(replanned_rows(replan(running_of(envelope, decision), lost, len(loss.moves))))}


def left_text(left: "dict[str, dict[str, object]]") -> str:
    """What comes of `simulated_without` or `replanned_without`, behind the rest."""
    parts = []
    if "simulated" in left:
        planned, then, broken = (left["simulated"][name] for name in ("planned", "until_then", "broken_limits"))
        assert isinstance(planned, dict)
        assert isinstance(then, dict)
        assert isinstance(broken, list)
        rows = [(name, f"{value:.4g}", f"{then[name]:.4g}") for name, value in planned.items()]
        parts.append(table(("simulated", "as planned", "until then"), rows))
        parts += [f"  until then: {what}" for what in broken]
    if "replanned" in left:
        kept = [(name, f"{value:.4g}") for name, value in left["replanned"].items()]
        parts.append(table(("on the nodes that are left", "value"), kept))
    return "".join(f"\n\n{part}" for part in parts)

"""`planner cache`: what prompts of a trace share, what caches of every size hit, and how much memory that is worth."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli.options import INPUT, First, Json, Output
from planner.cli.output import write_result
from planner.cli.render.columns import table
from planner.documents.units import format_si, significant

if TYPE_CHECKING:
    from planner.simulate.prefixes.sizing import Sized
    from planner.simulate.prefixes.tiers_spec import CacheSpec

SCHEMA = "planner.cache_report/1"
_NOTHING_SHARED = "no block is requested twice: a cache of any size hits nothing"


def cache(
    trace: Annotated[str, typer.Argument(metavar="TRACE", help="With `hash_ids`, or rows of conversations.")],
    tiers: Annotated[
        str | None, typer.Option("--tiers", metavar="FILE", help="What memory costs and gives.", rich_help_panel=INPUT)
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy", metavar="NAME", help="Beside lru: pgdsf, farthest; repeatable.", rich_help_panel=INPUT
        ),
    ] = None,
    block_tokens: Annotated[
        int | None,
        typer.Option("--block-tokens", metavar="N", min=1, help="Of conversations; 512.", rich_help_panel=INPUT),
    ] = None,
    first: First = None,
    as_json: Json = False,
    output: Output = None,
) -> int:
    """Say what prompts share, what a prefix cache of each size hits, and with --tiers how much memory to buy.

    Sizes are of a cache of the least recently used blocks, whose hits one pass over the trace gives for every size.
    `farthest` evicts what is used again last, which no policy can know or beat. Tiers are bought in whole units at the
    least cost of memory and of instances that compute missing blocks or wait for fetched ones, proven; none may be.

    Examples:

      planner cache conversation.jsonl

      planner cache conversation.jsonl --tiers tiers.yaml --json
    """
    from planner.errors import PlannerError, did_you_mean
    from planner.simulate.prefixes.facts import facts
    from planner.simulate.prefixes.trace_blocks import block_requests
    from planner.simulate.requests.traces import read_trace
    from planner.solvers.caches.policies import POLICIES

    for name in policy or ():
        if name not in POLICIES:
            hint = did_you_mean(name, list(POLICIES), otherwise=f"one of {', '.join(POLICIES)}")
            raise PlannerError(f"unknown policy `{name}`", where="--policy", hint=hint)
    read = read_trace(trace)
    requests = block_requests(read if first is None else read.first(first), block_tokens)
    known, answer, spec = facts(requests, policy or ()), None, None
    if tiers is not None:
        from planner.simulate.prefixes.sizing import sized
        from planner.simulate.prefixes.tiers_spec import load_cache_spec

        spec = load_cache_spec(tiers)
        answer = sized(requests, spec)
    data = {
        "schema": SCHEMA,
        "trace": read.name,
        **known,
        **({} if answer is None else {"tiers": _record(answer, spec)}),
    }
    write_result(data, lambda: _text(data, known, answer, spec), output, as_json=as_json)
    return 0


def _record(answer: "Sized", spec: "CacheSpec | None") -> dict[str, Any]:
    assert spec is not None
    names = [tier.name for tier in spec.tiers]
    return {
        "units": dict(zip(names, answer.units, strict=True)),
        "usd_per_hour": answer.usd_per_hour,
        "usd_per_hour_without": answer.usd_per_hour_without,
        "memory_usd_per_hour": answer.memory_usd_per_hour,
        "hit_share": dict(zip(names, (hits / answer.accesses for hits in answer.hits), strict=True)),
        "none_above_price_factor": answer.none_above,
        "usd_per_hour_all_of_one": dict(zip(names, answer.alone, strict=True)),
        "status": "optimal",
    }


def _text(data: dict[str, Any], known: dict[str, Any], answer: "Sized | None", spec: "CacheSpec | None") -> str:
    heavy = known["heavy_blocks"]
    rows = [
        ("requests", str(known["requests"])),
        ("blocks requested", f"{known['accesses']}, {known['distinct_blocks']} distinct"),
        ("requested before", f"{known['reused_share']:.1%}"),
        ("in 1 % of prompts", f"{heavy['count']} blocks, {heavy['share_of_accesses']:.1%} of all requested"),
        *(
            (
                f"working set of {each['window_s']:g} s",
                f"{each['mean_blocks']:.0f} blocks, at most {each['most_blocks']:.0f}",
            )
            for each in known["working_sets"]
        ),
    ]
    names = [name for name in known["hits_by_size"][0] if name != "blocks"] if known["hits_by_size"] else []
    sizes = [_size_row(row, names, spec) for row in known["hits_by_size"]]
    curve = table(("cache", *(("size",) if spec else ()), *names), sizes) if sizes else _NOTHING_SHARED
    parts = [table((data["trace"], ""), rows), curve]
    return "\n\n".join(parts + ([] if answer is None or spec is None else [_bought(answer, spec)]))


def _size_row(row: dict[str, Any], names: list[str], spec: "CacheSpec | None") -> tuple[str, ...]:
    size = () if spec is None else (format_si(row["blocks"] * spec.block_bytes, "B"),)
    return (f"{row['blocks']} blocks", *size, *(f"{row[name]:.1%}" for name in names))


def _bought(answer: "Sized", spec: "CacheSpec") -> str:
    rows = [
        (
            tier.name,
            f"{units} of {tier.max_units}",
            format_si(units * tier.unit_bytes, "B"),
            f"{hits / answer.accesses:.1%}",
            "bandwidth not held" if alone is None else f"{significant(alone, 4)} USD/h",
        )
        for tier, units, hits, alone in zip(spec.tiers, answer.units, answer.hits, answer.alone, strict=True)
    ]
    without = f"{significant(answer.usd_per_hour_without, 4)} USD/h without a cache"
    if not any(answer.units):
        said = f"buy none: no tier saves what it costs; {without}"
    else:
        said = (
            f"least cost {significant(answer.usd_per_hour, 4)} USD/h (proven), "
            f"{significant(answer.memory_usd_per_hour)} of it memory; {without}"
        )
        if answer.none_above is not None:
            said += f"\nnone would be bought if memory cost {significant(answer.none_above)} times as much"
    return f"{table(('tier', 'units', 'size', 'hits', 'all of it alone'), rows)}\n\n{said}"

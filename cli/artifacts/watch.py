"""`planner watch`: a running engine's metrics, and what its plan says about them."""

import time
from typing import Annotated, Any

import typer

from planner.cli.options import INPUT, Json, Output, seconds
from planner.cli.output import EXIT_NO, write_result
from planner.documents.units import format_si, significant
from planner.errors import PlannerError

LONGEST_S = 3600.0


def watch(
    urls: Annotated[list[str], typer.Argument(metavar="URL...", help="Engines of one deployment: http://host:8000.")],
    plan: Annotated[
        str | None, typer.Option("--plan", metavar="PLAN", help="The plan that they run.", rich_help_panel=INPUT)
    ] = None,
    window: Annotated[
        str | None,
        typer.Option("--window", metavar="TIME", help="Time between two reads; 10s.", rich_help_panel=INPUT),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Read once: times since the engines started, no rates.")] = False,
    as_json: Json = False,
    output: Output = None,
) -> int:
    """Read the Prometheus metrics of running engines of vLLM and SGLang, and hold them against their plan.

    Says which limits are broken or about to be, what drifts from its prediction, and whether there are too many GPUs.
    Only reads: one GET of /metrics an engine and look. Exits 1 when a limit is broken.

    Examples:

      planner watch http://node-00:8000 http://node-01:8000 --plan plan.json --window 60s

      planner watch http://127.0.0.1:30000 --once
    """
    from planner.load.problems import load_plan
    from planner.watch.fetch import fetch
    from planner.watch.judge import observed, remarks

    pause_s = seconds(window, "--window") or 10.0
    if once and window is not None:
        raise PlannerError("`--once` reads no second time", where="--window", hint="leave one of the two out")
    if pause_s > LONGEST_S:
        raise PlannerError("is longer than an hour", where="--window", hint="write `--window 60s`")
    envelope = None if plan is None else load_plan(plan)[0]
    before = [] if once else [fetch(url) for url in urls]
    if not once:
        time.sleep(pause_s)
    seen = observed([fetch(url) for url in urls], before)
    told = remarks(seen, envelope)
    document = {
        "schema": "planner.watch/1",
        "ok": all(remark.about != "broken" for remark in told),
        "engine": seen.engine,
        "engines": seen.engines,
        "running": seen.running,
        "waiting": seen.waiting,
        "kv_cache_share": seen.cache,
        "per_s": dict(seen.rates),
        "times": {f"{name}_s": _times(times) for name, times in seen.times.items() if times.count},
        "remarks": [remark.row for remark in told],
    }
    write_result(document, lambda: _text(document), output, as_json=as_json)
    return 0 if document["ok"] else EXIT_NO


def _times(times: Any) -> dict[str, float | None]:  # noqa: ANN401 - a histogram; its module is loaded when the verb runs
    return {"count": times.count, "mean": times.mean, **{f"p{p}": times.quantile(p / 100) for p in (50, 95, 99)}}


def _text(document: Any) -> str:  # noqa: ANN401 - plain data
    cache = document["kv_cache_share"]
    lines = [
        f"{document['engine']}, {document['engines']} engine{'s' if document['engines'] > 1 else ''}: "
        f"{document['running']:.0f} running, {document['waiting']:.0f} waiting"
        + (f", KV cache {100 * cache:.0f} % full" if cache is not None else "")
    ]
    if document["per_s"].get("requests") is not None:
        lines.append(f"{significant(document['per_s']['requests'])} requests/s")
    for name, row in document["times"].items():
        told = [f"{key} {format_si(row[key], 's')}" for key in ("mean", "p50", "p95", "p99") if row[key] is not None]
        lines.append(f"{name.removesuffix('_s'):<8} {', '.join(told)}")
    lines += ["", *(f"{remark['about']:<7} {remark['text']}" for remark in document["remarks"])]
    return "\n".join(lines)

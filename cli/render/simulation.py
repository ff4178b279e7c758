"""Renders the summary of a simulated serving run as text."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.cli.render.columns import fitted, table

SHOWN = ("mean", "p50", "p90", "p99")


def render_simulation(summary: Mapping[str, Any], notes: Sequence[str]) -> str:
    """Verdict, times with 95 % intervals, where time went, and what each role did."""
    lines = [*_verdict(summary), "", _times(summary), *_workloads(summary), "", _roles(summary)]
    return "\n".join([*lines, *(f"  note: {note}" for note in notes)])


def render_beside(rows: Sequence[Mapping[str, Any]]) -> str:
    """Simulated times beside those stated, with how far apart they are, and their limits."""
    cells = []
    for row in rows:
        stated, simulated = row["stated_s"], row["simulated_s"]
        apart = f"{simulated / stated - 1.0:+.1%}" if stated and simulated is not None else "-"
        times = [_time(value) if value is not None else "-" for value in (stated, simulated)]
        between = " to ".join(map(_time, row["interval_s"])) if row["interval_s"] else "-"
        limit = f"<= {_time(row['limit_s'])}" if row["limit_s"] is not None else "-"
        margin = f"{row['margin']:+.1%}" if row["margin"] is not None else "-"
        verdict = row["verdict"] or "-"
        names = row["time"], row["workload"], row["statistic"]
        cells.append((*names, limit, times[1], verdict, between, margin, times[0], apart))
    header = ("time", "of", "statistic", "limit", "simulated", "verdict", "95 % interval", "margin", "stated", "apart")
    return fitted(header, cells)


def render_stretches(document: Mapping[str, Any]) -> str:
    """Services of a day: the share of their requests on time, in each stretch that was simulated."""
    from planner.documents.units import clock

    cells = [
        (
            row["service"],
            row["stretch"],
            f"{clock(row['from_s'])}-{clock(row['to_s'])}",
            str(row["requests"]),
            f"{row['on_time']:.2%}",
            f">= {row['asked']:.2%}",
            "kept" if row["on_time"] >= row["asked"] else "broken",
        )
        for row in document["stretches"]
    ]
    header = ("service", "simulated", "hours", "requests", "on time", "asked", "verdict")
    simulated, whole = document["requests"], document["requests_of_the_day"]
    told = (
        "all of the day" if all(row["stretch"] == "the day" for row in document["stretches"]) else "the fullest parts"
    )
    counted = f"{simulated} requests simulated of about {whole}: {told}"
    return f"{fitted(header, cells)}\n  {counted}"


def _verdict(summary: Mapping[str, Any]) -> list[str]:
    lines = [
        f"simulated  {summary['complete']} of {summary['requests']} requests in {summary['span_s']:.4g} s, "
        f"{summary['steps']} steps",
        f"  {summary['requests_per_s']:.4g} requests/s   {summary['output_tokens_per_s']:.4g} output tokens/s   "
        f"attainment {summary['attainment']:.1%}   goodput {summary['goodput_per_s']:.4g} requests/s",
    ]
    remarks = (
        (not summary["drained"], f"  did not drain: {summary['unfinished']} requests were left unanswered"),
        (summary["saturated"], "  saturated: work piles up as long as requests come"),
        (summary["rejected"], f"  rejected: {summary['rejected']} requests are longer than an instance allows"),
        (summary["cut"], f"  cut: {summary['cut']} answers end at the context limit of their instance"),
        (summary["preemptions"], f"  preempted {summary['preemptions']} times"),
        (summary["prefix_hit_share"], f"  prefix cache: {summary['prefix_hit_share']:.1%} of the prompt tokens"),
        (summary["accepted_drafts_share"], f"  drafts: {summary['accepted_drafts_share']:.1%} of the decoded tokens"),
        (summary["adapter_loads"], f"  adapters: loaded {summary['adapter_loads']} times"),
        (
            summary["prefill_degree"] > 1.0,
            f"  a prompt was prefilled by {summary['prefill_degree']:.3g} engines together on average",
        ),
        (summary["up_share"] < 1.0, f"  engines were up for {summary['up_share']:.1%} of the time"),
    )
    lines += [remark for holds, remark in remarks if holds]
    spent = "   ".join(f"{name.replace('_', ' ')} {_time(value)}" for name, value in summary["mean_s"].items())
    return [*lines, f"  mean of a request: {spent}"] if spent else lines


def _times(summary: Mapping[str, Any]) -> str:
    rows = []
    for name, statistics in summary["times"].items():
        cells = [_interval(statistics[statistic]) if statistic in statistics else "-" for statistic in SHOWN]
        rows.append((name.removesuffix("_s"), *cells))
    return table(("time", *SHOWN), rows)


def _workloads(summary: Mapping[str, Any]) -> Iterator[str]:
    """Times of each of several workloads, and what share of its requests keeps its limits."""
    rows = [
        (
            name,
            time.removesuffix("_s"),
            *(_interval(of[statistic]) if statistic in of else "-" for statistic in SHOWN),
            share,
        )
        for name, workload in summary.get("workloads", {}).items()
        for share in (f"{workload['attainment']:.1%}",)
        for time, of in workload["times"].items()
    ]
    if rows:
        yield from ("", table(("workload", "time", *SHOWN, "attainment"), rows))


def _interval(statistic: Mapping[str, Any]) -> str:
    if statistic["interval"] is None:
        return _time(statistic["value"])
    (low, high), value = statistic["interval"], statistic["value"]
    return f"{_time(value)} ± {(high - low) / 2 / _unit(value)[0]:.2g}"


def _roles(summary: Mapping[str, Any]) -> str:
    header = ("role", "engines", "busy", "of it prefill", "mean batch", "mean step", "peak KV")
    rows = [
        (
            name,
            str(row["instances"]),
            f"{row['busy_share']:.1%}",
            f"{row['prefill_share_of_busy']:.1%}",
            f"{row['mean_batch']:.3g}",
            _time(row["mean_step_s"]),
            f"{row['peak_kv_share']:.1%}",
        )
        for name, row in summary["roles"].items()
    ]
    return table(header, rows)


def _time(value_s: float) -> str:
    unit_s, name = _unit(value_s)
    return f"{value_s / unit_s:.3g} {name}"


def _unit(value_s: float) -> tuple[float, str]:
    return (1.0, "s") if value_s >= 1.0 else (1e-3, "ms")

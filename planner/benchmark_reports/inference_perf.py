"""Parses inference-perf lifecycle reports: `stage_N_lifecycle_metrics.json` of a stage, `summary_...` of a run.

Field names as of its reportgen/base.py in August 2026; `prompt_len` became `prompt_tokens`. All times are in seconds.
Only the report of a stage tells its load: `concurrency` for closed loops, else `requested_rate`.
"""

from collections.abc import Mapping
from typing import Any

from planner.benchmark_reports.fields import Fields
from planner.benchmark_reports.records import STATISTICS, MeasuredRun, OfferedLoad, present

NAME = "inference-perf"
_METRICS = (
    ("ttft_s", "time_to_first_token"),
    ("tpot_s", "time_per_output_token"),
    ("itl_s", "inter_token_latency"),
    ("latency_s", "request_latency"),
)
_STATISTICS = {statistic: "median" if statistic == "p50" else statistic for statistic in STATISTICS}


def belongs(data: Mapping[str, Any]) -> bool:
    """Whether this is a lifecycle report."""
    return "load_summary" in data and isinstance(data.get("successes"), dict)


def read(report: Fields) -> list[MeasuredRun]:
    """The one stage, or the one run, of a report."""
    successes = report.section("successes")
    latency, throughput = successes.part("latency"), successes.part("throughput")
    times = {metric: latency.part(name).statistics(_STATISTICS) for metric, name in _METRICS}
    run = MeasuredRun(
        NAME,
        present(times),
        int(successes.amount("count")),
        int(report.part("failures").number("count") or 0),
        throughput.number("requests_per_sec"),
        throughput.number("output_tokens_per_sec"),
        load=_load(report.part("load_summary")),
        input_tokens=_lengths(successes, "prompt_tokens", "prompt_len"),
        output_tokens=_lengths(successes, "output_tokens", "output_len"),
    )
    return [run]


def _lengths(successes: Fields, *names: str) -> dict[str, float]:
    """Under the first of `names` that the report has."""
    statistics = (successes.part(name).statistics(_STATISTICS) for name in names)
    return next((lengths for lengths in statistics if lengths), {})


def _load(summary: Fields) -> OfferedLoad:
    clients = summary.asked("concurrency")
    return OfferedLoad.of(clients, summary.asked("requested_rate") if clients is None else None)

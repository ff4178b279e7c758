"""Parses guidellm benchmark reports: one run for each of its strategies (rates, concurrencies).

Field names as of guidellm 0.8, report version 2 (benchmark/schemas/metrics.py, scheduler/strategies.py). Times in ms
end in `_ms`, `request_latency` is in seconds. Its `inter_token_latency_ms` is the time per output token after the first
of each request; its `time_per_output_token_ms` spreads the first token too and is not read.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from planner.benchmark_reports.fields import Fields
from planner.benchmark_reports.records import (
    SPREAD,
    STATISTICS,
    MeasuredRun,
    OfferedLoad,
    Times,
    day_of,
    present,
    statistics_of,
)

NAME = "guidellm"
_METRICS = (
    ("ttft_s", "time_to_first_token_ms", 1e-3),
    ("tpot_s", "inter_token_latency_ms", 1e-3),
    ("latency_s", "request_latency", 1.0),
)


def belongs(data: Mapping[str, Any]) -> bool:
    """Whether this is a report of guidellm."""
    return isinstance(data.get("benchmarks"), list)


def read(report: Fields) -> list[MeasuredRun]:
    """The runs of a report."""
    model = report.part("config").part("spec").part("backend").text("model") or report.part("args").text("model")
    return [_run(run, model) for run in report.parts("benchmarks")]


def _run(run: Fields, model: str | None) -> MeasuredRun:
    metrics = run.section("metrics")
    totals = metrics.section("request_totals")
    completed = int(totals.amount("successful"))
    duration_s = run.number("duration") or 0.0
    config = run.part("config")
    return MeasuredRun(
        NAME,
        present(_times(run, metrics, completed)),
        completed,
        int(totals.number("errored") or 0),
        completed / duration_s if duration_s > 0 else None,
        metrics.part("output_tokens_per_second").part("successful").number("mean"),
        load=_load(config.part("strategy")),
        input_tokens=_lengths(metrics, "prompt_token_count"),
        output_tokens=_lengths(metrics, "output_token_count"),
        model=config.part("backend").text("model") or model,
        date=_date(run),
    )


def _times(run: Fields, metrics: Fields, completed: int) -> Times:
    """From the requests one by one where the report holds them all, else from its summaries."""
    requests = run.part("requests").parts("successful")
    if requests and len(requests) == completed:
        return {
            metric: statistics_of(
                [value * scale for request in requests if (value := request.number(name)) is not None]
            )
            for metric, name, scale in _METRICS
        }
    return {metric: _summary(metrics, name, scale) for metric, name, scale in _METRICS}


def _summary(metrics: Fields, name: str, scale: float) -> dict[str, float]:
    successful = metrics.part(name).part("successful")
    percentiles = successful.part("percentiles").statistics(
        {statistic: statistic for statistic in STATISTICS[1:]}, scale
    )
    return successful.statistics({"mean": "mean"}, scale) | percentiles


def _lengths(metrics: Fields, name: str) -> dict[str, float]:
    return _summary(metrics, name, 1.0) | metrics.part(name).part("successful").statistics({SPREAD: "std_dev"})


def _load(strategy: Fields) -> OfferedLoad:
    kind = strategy.text("type_")
    if kind == "synchronous":
        return OfferedLoad(concurrency=1)
    if kind in ("concurrent", "throughput"):
        return OfferedLoad.of(strategy.asked("streams" if kind == "concurrent" else "max_concurrency"), None)
    return OfferedLoad.of(None, strategy.asked("rate"))


def _date(run: Fields) -> str | None:
    """The day on which the run started, in UTC."""

    start = run.number("start_time") or run.part("scheduler_metrics").number("start_time")
    if not start or start > 1e11:
        return None
    return day_of(datetime.fromtimestamp(start, UTC).isoformat())

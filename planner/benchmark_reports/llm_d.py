"""Parses llm-d benchmark reports, versions 0.1 and 0.2 (and 0.2.x), YAML or JSON.

Field names as of llm-d-benchmark's schema_v0_1.py and schema_v0_2.py in August 2026. Every statistic states its unit.
`time_per_output_token` is what the harness beneath calls so: of guidellm it spreads the first token too, so there the
inter-token latency is taken.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from planner.benchmark_reports.fields import Fields
from planner.benchmark_reports.llm_d_stack import Stack, stack_of_components, stack_of_hosts
from planner.benchmark_reports.records import SPREAD, STATISTICS, MeasuredRun, OfferedLoad, Times, day_of, present

NAME = "llm-d benchmark report"
_SECONDS = {"s": 1.0, "ms": 1e-3, "s/token": 1.0, "ms/token": 1e-3}
_STATISTICS = {statistic: statistic for statistic in STATISTICS}
_CLIENTS = ("max_concurrency", "max-concurrency", "--max-concurrency", "concurrency")
_RATES = ("request_rate", "request-rate", "--request-rate", "rate", "qps_values", "qps")


def belongs(data: Mapping[str, Any]) -> bool:
    """Whether this is a benchmark report of a version that is known."""
    version = str(data.get("version"))
    return (version == "0.1" and "metrics" in data) or (version.startswith("0.2") and "results" in data)


def read(report: Fields) -> list[MeasuredRun]:
    """The one run of a report."""
    return [_first(report) if str(report.data["version"]) == "0.1" else _second(report)]


def _first(report: Fields) -> MeasuredRun:
    metrics, scenario = report.section("metrics"), report.part("scenario")
    load, throughput = scenario.part("load"), metrics.part("throughput")
    start = metrics.part("time").number("start")
    return _measured(
        metrics.section("requests"),
        metrics.section("latency"),
        harness=load.text("name"),
        requests_per_s=throughput.number("requests_per_sec"),
        output_tokens_per_s=throughput.number("output_tokens_per_sec"),
        load=_load_of_arguments(load.part("args")),
        stack=stack_of_hosts(scenario),
        date=_day(start) if start else None,
    )


def _second(report: Fields) -> MeasuredRun:
    aggregate = report.section("results").section("request_performance").section("aggregate")
    scenario, throughput = report.part("scenario"), aggregate.part("throughput")
    load = scenario.part("load").part("standardized")
    start = report.part("run").part("time").data.get("start")
    return _measured(
        aggregate.section("requests"),
        aggregate.section("latency"),
        harness=load.text("tool"),
        requests_per_s=throughput.part("request_rate").number("mean"),
        output_tokens_per_s=throughput.part("output_token_rate").number("mean"),
        load=OfferedLoad.of(load.number("concurrency"), load.number("rate_qps")),
        stack=stack_of_components(scenario),
        date=day_of(str(start)) if start is not None else None,
    )


def _measured(
    requests: Fields,
    latency: Fields,
    *,
    harness: str | None,
    requests_per_s: float | None,
    output_tokens_per_s: float | None,
    load: OfferedLoad,
    stack: Stack,
    date: str | None,
) -> MeasuredRun:
    failed = int(requests.number("failures") or 0)
    ended = int(requests.amount("total") - (requests.number("incomplete") or 0))
    return MeasuredRun(
        NAME,
        present(_times(latency, harness)),
        max(ended - failed, 0),
        failed,
        requests_per_s,
        output_tokens_per_s,
        load=load,
        input_tokens=requests.part("input_length").statistics(_STATISTICS | {SPREAD: "stddev"}),
        output_tokens=requests.part("output_length").statistics(_STATISTICS | {SPREAD: "stddev"}),
        model=stack.model,
        engine=stack.engine,
        engine_version=stack.engine_version,
        date=date,
        deployment=stack.facts,
    )


def _times(latency: Fields, harness: str | None) -> Times:
    gaps = _seconds(latency, "inter_token_latency")
    each = {} if harness is not None and "guidellm" in harness else _seconds(latency, "time_per_output_token")
    return {
        "ttft_s": _seconds(latency, "time_to_first_token"),
        "tpot_s": each or gaps,
        "itl_s": gaps if each else {},
        "latency_s": _seconds(latency, "request_latency"),
    }


def _seconds(latency: Fields, name: str) -> dict[str, float]:
    statistic = latency.part(name)
    return statistic.statistics(_STATISTICS, statistic.scale("units", _SECONDS)) if statistic.data else {}


def _load_of_arguments(arguments: Fields) -> OfferedLoad:
    """The harness's own arguments, where they hold one number under a name that says load."""
    clients, rate = arguments.asked(*_CLIENTS), arguments.asked(*_RATES)
    if "concurrent" in (arguments.text("profile"), arguments.text("rate_type")):
        clients, rate = rate, None  # guidellm calls its streams a rate
    return OfferedLoad.of(clients, rate)


def _day(start_s: float) -> str | None:

    return day_of(datetime.fromtimestamp(start_s, UTC).isoformat()) if start_s < 1e11 else None

"""Parses aiperf (`profile_export_aiperf.json`) and genai-perf (`*_genai_perf.json`) reports.

Field names as of aiperf 0.13 (common/models/export_models.py, config/phases.py) and genai-perf 0.0.16
(export_data/json_exporter.py, config/input/config_command.py). Every metric states its unit; `inter_token_latency` is
the time per output token after the first of each request. The load stands in `input_config`: `phases` (aiperf),
`loadgen` (its first versions), `perf_analyzer.stimulus` or plain options (genai-perf).
"""

from collections.abc import Mapping
from typing import Any

from planner.benchmark_reports.fields import Fields
from planner.benchmark_reports.records import SPREAD, STATISTICS, MeasuredRun, OfferedLoad, Times, day_of, present

NAME = "aiperf"
FORERUNNER = "genai-perf"
_METRICS = (("ttft_s", "time_to_first_token"), ("tpot_s", "inter_token_latency"), ("latency_s", "request_latency"))
_SECONDS = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "us": 1e-6, "ns": 1e-9}
_STATISTICS = {statistic: "avg" if statistic == "mean" else statistic for statistic in STATISTICS}


def belongs(data: Mapping[str, Any]) -> bool:
    """Whether this is a profile export; of a run that failed whole there may be no metric at all."""
    metrics = ("request_latency", "time_to_first_token", "request_throughput", "error_request_count")
    return "aiperf_version" in data or any(isinstance(data.get(name), dict) for name in metrics)


def read(report: Fields) -> list[MeasuredRun]:
    """The one run of an export."""
    times: Times = {}
    for metric, name in _METRICS:
        metric_fields = report.part(name)
        if metric_fields.data:
            times[metric] = metric_fields.statistics(_STATISTICS, metric_fields.scale("unit", _SECONDS))
    config = report.part("input_config")
    completed = report.part("request_count").number("avg")
    failed = report.part("error_request_count").number("avg")
    run = MeasuredRun(
        FORERUNNER if config.has("perf_analyzer") and not report.has("aiperf_version") else NAME,
        present(times),
        int(completed or 0),
        int(failed or 0),
        report.part("request_throughput").number("avg"),
        report.part("output_token_throughput").number("avg"),
        load=_load(config),
        input_tokens=_lengths(report, "input_sequence_length"),
        output_tokens=_lengths(report, "output_sequence_length"),
        model=_model(config),
        date=day_of(report.text("start_time")),
    )
    return [run]


def _lengths(report: Fields, name: str) -> dict[str, float]:
    return report.part(name).statistics(_STATISTICS | {SPREAD: "std"})


def _load(config: Fields) -> OfferedLoad:
    """Of the one phase that is no warm-up; none where there are several."""
    if config.has("phases"):
        phases = [phase for phase in config.parts("phases") if phase.text("kind") != "warmup"]
        return _asked(phases[0], "rate") if len(phases) == 1 else OfferedLoad()
    for name in ("loadgen", "perf_analyzer"):
        section = config.part(name)
        if section.data:
            return _asked(section.part("stimulus") if section.has("stimulus") else section, "request_rate")
    return _asked(config, "request_rate")


def _asked(options: Fields, rate: str) -> OfferedLoad:
    return OfferedLoad.of(options.asked("concurrency"), options.asked(rate))


def _model(config: Fields) -> str | None:
    """The first model that was asked for, wherever a version keeps its name."""
    models = config.data.get("models")
    if isinstance(models, Mapping):
        items = config.part("models").data.get("items")
        models = items if isinstance(items, list) else list(models)
    endpoint = config.data.get("endpoint")
    named = endpoint.get("model_names") if isinstance(endpoint, Mapping) else None
    for named_as in (models, named, config.data.get("model_names"), config.data.get("model")):
        first = named_as[0] if isinstance(named_as, list) and named_as else named_as
        first = first.get("name") if isinstance(first, Mapping) else first
        if isinstance(first, str) and first:
            return first
    return None

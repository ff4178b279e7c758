"""Parses results of `vllm bench serve` (`--save-result`) and of SGLang's `bench_serving`, which has the same names.

Field names as of vLLM 0.33 (vllm/benchmarks/serve.py). Times are in ms, `request_rate` is a number or `inf`; TPOT is
per request, ITL over all gaps. `backend` is the client's protocol: only some of its values name an engine. Facts given
with `--metadata tp=8` stand beside the rest, under the user's own names.
"""

import re
from collections.abc import Mapping
from typing import Any

from planner.benchmark_reports.fields import Fields
from planner.benchmark_reports.records import (
    MeasuredRun,
    OfferedLoad,
    Times,
    day_of,
    engine_named,
    lengths_of,
    present,
)

NAME = "vllm bench serve"
_SHAPE = ("tp", "pp", "dp", "moe_tp", "moe_ep", "workers", "redundant_experts")
_SIDES = ("", "prefill_", "decode_")
FACTS = ("system", "weights", "gpus", "mode", *(f"{side}{name}" for side in _SIDES for name in _SHAPE))
_METRICS = (("ttft_s", "ttft"), ("tpot_s", "tpot"), ("itl_s", "itl"), ("latency_s", "e2el"))


def belongs(data: Mapping[str, Any]) -> bool:
    """Whether this is a result of a serving benchmark."""
    return "completed" in data and "request_throughput" in data


def read(report: Fields) -> list[MeasuredRun]:
    """The one run of a result."""
    times: Times = {}
    for metric, name in _METRICS:
        median = report.statistics({"p50": f"median_{name}_ms"}, 1e-3)
        times[metric] = median | report.statistics(_names(report.data, name), 1e-3)
    completed = int(report.amount("completed"))
    failed = report.number("failed")
    if failed is None:
        failed = max((report.number("num_prompts") or completed) - completed, 0)
    backend = report.text("backend") or report.text("endpoint_type")
    told = {name: str(report.data[name]) for name in FACTS if isinstance(report.data.get(name), str | int)}
    run = MeasuredRun(
        NAME,
        present(times),
        completed,
        int(failed),
        report.number("request_throughput"),
        report.number("output_throughput"),
        load=_load(report),
        input_tokens=_lengths(report, "input_lens", "total_input_tokens", completed),
        output_tokens=_lengths(report, "output_lens", "total_output_tokens", completed),
        model=report.text("model_id"),
        engine=engine_named(report.text("engine") or backend),
        engine_version=report.text("engine_version"),
        date=day_of(report.text("date")),
        deployment=told,
    )
    return [run]


def _names(data: Mapping[str, Any], time: str) -> dict[str, str]:
    """The fields of the statistics of a time: the mean, and whatever percentiles were asked for."""
    asked = (match for key in data if (match := re.fullmatch(rf"(p\d+(?:\.\d+)?)_{time}_ms", str(key))))
    return {"mean": f"mean_{time}_ms"} | {match[1]: match[0] for match in asked}


def _load(report: Fields) -> OfferedLoad:
    rate = None if report.text("request_rate") == "inf" else report.number("request_rate")
    return OfferedLoad.of(report.number("max_concurrency"), rate)


def _lengths(report: Fields, each: str, total: str, completed: int) -> dict[str, float]:
    """Of the requests one by one where all of them completed, else the mean of the completed."""
    values = report.numbers(each)
    if values and len(values) == completed:
        return lengths_of(values)
    amount = report.number(total)
    return {"mean": amount / completed} if amount and completed else {}

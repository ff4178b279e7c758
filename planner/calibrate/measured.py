"""Reports of load generators as times in seconds: guidellm, aiperf (and genai-perf), `vllm bench serve`.

TPOT is the time per output token after the first, (latency - TTFT) / (tokens - 1), per request. guidellm calls it
`inter_token_latency_ms` (its `time_per_output_token_ms` spreads the first token too), aiperf `inter_token_latency`,
vLLM `tpot`. Field names: guidellm 0.8 report version 2 (benchmark/schemas/metrics.py), aiperf 0.13
(common/models/export_models.py, shared with genai-perf), vLLM 0.33 (vllm/benchmarks/serve.py).
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.errors import PlannerError

STATISTICS = ("mean", "p50", "p90", "p95", "p99")

Times = dict[str, dict[str, float]]


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of a load generator: seconds by metric (`ttft_s`, `tpot_s`, `latency_s`) and statistic."""

    generator: str
    times_s: Times
    completed: int
    failed: int
    requests_per_s: float | None = None

    @property
    def failed_share(self) -> float:
        """Failed requests among those that ended; 1 where none did."""
        ended = self.completed + self.failed
        return self.failed / ended if ended else 1.0


def read_measured(path: str | Path) -> list[Measured]:
    """All runs in a report; raises PlannerError for a file that no known generator wrote or that holds no run."""
    data = _load(path)
    for generator, belongs, read in _READERS:
        if belongs(data):
            try:
                runs = read(generator, data)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                what = f"is no whole report of {generator}: {type(error).__name__} at {error}"
                raise PlannerError(what, where=str(path), hint="run the load generator again") from None
            if not runs:
                raise PlannerError(f"this report of {generator} holds no run", where=str(path), hint="run it again")
            return runs
    known = ", ".join(f"{generator}" for generator, _, _ in _READERS)
    raise PlannerError("is no report of a known load generator", where=str(path), hint=f"known are {known}")


def _load(path: str | Path) -> Mapping[str, Any]:
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise PlannerError(f"cannot be read: {error.strerror}", where=str(path), hint="check the path") from None
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError):
        raise PlannerError("is no JSON", where=str(path), hint="give the JSON report of a load generator") from None
    return data if isinstance(data, dict) else {}


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which `share` of the ordered values lie, linear between neighbours."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def statistics_of(values: Sequence[float]) -> dict[str, float]:
    """Mean and percentiles of one value a request; nothing of nothing."""
    if not values:
        return {}
    ordered = sorted(values)
    return {"mean": math.fsum(ordered) / len(ordered)} | {
        name: percentile(ordered, int(name[1:]) / 100) for name in STATISTICS[1:]
    }


def _finite(found: Mapping[str, Any], names: Mapping[str, str], scale: float) -> dict[str, float]:
    """Statistics by our names, of a mapping that calls them by `names`; those that are absent are left out."""
    known = {ours: found.get(theirs) for ours, theirs in names.items()}
    return {
        ours: float(value) * scale
        for ours, value in known.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


_GUIDELLM = (
    ("ttft_s", "time_to_first_token_ms", 1e-3),
    ("tpot_s", "inter_token_latency_ms", 1e-3),
    ("latency_s", "request_latency", 1.0),
)


def _guidellm(generator: str, data: Mapping[str, Any]) -> list[Measured]:
    return [_guidellm_run(generator, run) for run in data["benchmarks"]]


def _guidellm_run(generator: str, run: Mapping[str, Any]) -> Measured:
    """From its requests one by one where the report holds them all, else from its summaries."""
    metrics = run["metrics"]
    totals = metrics["request_totals"]
    requests = (run.get("requests") or {}).get("successful") or []
    times: Times = {}
    for metric, name, scale in _GUIDELLM:
        if requests and len(requests) == totals["successful"]:
            values = [request[name] * scale for request in requests if request.get(name) is not None]
            times[metric] = statistics_of(values)
        else:
            summary = metrics[name]["successful"] if totals["successful"] else None
            flat = {"mean": summary["mean"], **summary["percentiles"]} if summary else {}
            times[metric] = _finite(flat, {statistic: statistic for statistic in STATISTICS}, scale)
    duration_s = run.get("duration") or 0.0
    rate = totals["successful"] / duration_s if duration_s > 0 else None
    return Measured(generator, _present(times), int(totals["successful"]), int(totals["errored"]), rate)


_AIPERF = (("ttft_s", "time_to_first_token"), ("tpot_s", "inter_token_latency"), ("latency_s", "request_latency"))
_UNITS = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "us": 1e-6, "ns": 1e-9}


def _aiperf(generator: str, data: Mapping[str, Any]) -> list[Measured]:
    times: Times = {}
    for metric, name in _AIPERF:
        found = data.get(name)
        if found:
            names = {statistic: "avg" if statistic == "mean" else statistic for statistic in STATISTICS}
            times[metric] = _finite(found, names, _UNITS[found["unit"]])
    completed = _average(data, "request_count")
    failed = _average(data, "error_request_count")
    throughput = data.get("request_throughput") or {}
    return [Measured(generator, _present(times), int(completed), int(failed), throughput.get("avg"))]


def _average(data: Mapping[str, Any], name: str) -> float:
    return float((data.get(name) or {}).get("avg") or 0.0)


def _vllm(generator: str, data: Mapping[str, Any]) -> list[Measured]:
    times: Times = {}
    for metric, name in (("ttft_s", "ttft"), ("tpot_s", "tpot"), ("latency_s", "e2el")):
        names = {statistic: f"{statistic}_{name}_ms" for statistic in STATISTICS}
        found = _finite(data, {"p50": f"median_{name}_ms"}, 1e-3)
        times[metric] = found | _finite(data, names, 1e-3)
    completed = int(data["completed"])
    failed = data.get("failed")
    if failed is None:
        failed = max(int(data.get("num_prompts", completed)) - completed, 0)
    return [Measured(generator, _present(times), completed, int(failed), data.get("request_throughput"))]


def _present(times: Times) -> Times:
    return {metric: statistics for metric, statistics in times.items() if statistics}


Reader = Callable[[str, Mapping[str, Any]], list[Measured]]

_READERS: tuple[tuple[str, Callable[[Mapping[str, Any]], bool], Reader], ...] = (
    ("guidellm", lambda data: isinstance(data.get("benchmarks"), list), _guidellm),
    ("aiperf", lambda data: isinstance(data.get("request_latency"), dict), _aiperf),
    ("vllm bench serve", lambda data: "completed" in data and "request_throughput" in data, _vllm),
)

"""Names of engines' metrics: vLLM (`vllm/v1/metrics/loggers.py`), SGLang (`sglang/srt/metrics/collector.py`)."""

from dataclasses import dataclass

from planner.errors import PlannerError
from planner.watch.exposition import Histogram, Samples, histogram, total

_NAMES = {
    "vllm": {
        "running": ("vllm:num_requests_running",),
        "waiting": ("vllm:num_requests_waiting",),
        "cache": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        "requests": ("vllm:request_success_total", "vllm:request_success"),
        "prompt_tokens": ("vllm:prompt_tokens_total", "vllm:prompt_tokens"),
        "output_tokens": ("vllm:generation_tokens_total", "vllm:generation_tokens"),
        "preemptions": ("vllm:num_preemptions_total", "vllm:num_preemptions"),
        "ttft": ("vllm:time_to_first_token_seconds",),
        "itl": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
        "tpot": ("vllm:request_time_per_output_token_seconds",),
        "latency": ("vllm:e2e_request_latency_seconds",),
    },
    "sglang": {
        "running": ("sglang:num_running_reqs",),
        "waiting": ("sglang:num_queue_reqs",),
        "cache": ("sglang:token_usage",),
        "requests": ("sglang:num_requests_total",),
        "prompt_tokens": ("sglang:prompt_tokens_total",),
        "output_tokens": ("sglang:generation_tokens_total",),
        "preemptions": ("sglang:num_retracted_reqs",),
        "ttft": ("sglang:time_to_first_token_seconds",),
        "itl": ("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
        "tpot": ("sglang:time_per_output_token_seconds",),
        "latency": ("sglang:e2e_request_latency_seconds",),
    },
}  # fmt: skip
TIMES = ("ttft", "itl", "tpot", "latency")
COUNTERS = ("requests", "prompt_tokens", "output_tokens", "preemptions")


@dataclass(frozen=True, slots=True)
class Scrape:
    """One engine at one moment: gauges, counters since its start, and histograms of times."""

    engine: str
    at_s: float
    running: float
    waiting: float
    cache: float | None  # share in use
    counters: dict[str, float]
    times: dict[str, Histogram]


def scrape_of(samples: Samples, at_s: float, source: str) -> Scrape:
    """An engine's metrics by what they mean. Raises PlannerError for those of no engine that is known."""
    engine = next((name for name in _NAMES if any(key.startswith(f"{name}:") for key in samples)), None)
    if engine is None:
        raise PlannerError(
            "serves metrics of neither vLLM nor SGLang", where=source, hint="SGLang needs `--enable-metrics`"
        )
    names = _NAMES[engine]
    counters = {key: value for key in COUNTERS if (value := total(samples, names[key])) is not None}
    times = {key: seen for key in TIMES if (seen := histogram(samples, names[key])) is not None}
    if "requests" not in counters and "latency" in times:
        counters["requests"] = times["latency"].count
    engines = max(len(samples.get(names["cache"][0], ())), 1)
    cache = total(samples, names["cache"])
    return Scrape(
        engine,
        at_s,
        total(samples, names["running"]) or 0.0,
        total(samples, names["waiting"]) or 0.0,
        None if cache is None else cache / engines,
        counters,
        times,
    )

"""Metrics that engines serve, by what they mean."""

from dataclasses import dataclass

from planner.engines.serving.description import EngineDescription
from planner.engines.serving.registry import SERVING_ENGINES
from planner.errors import PlannerError
from planner.watch.exposition import Histogram, Samples, histogram, total

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


def _serves(engine: EngineDescription, samples: Samples) -> bool:
    return bool(engine.metrics) and any(key.startswith(f"{engine.name}:") for key in samples)


def scrape_of(samples: Samples, at_s: float, source: str) -> Scrape:
    """An engine's metrics by what they mean. Raises PlannerError for those of no engine that is known."""
    engine = next((each for each in SERVING_ENGINES.values() if _serves(each, samples)), None)
    if engine is None:
        raise PlannerError(
            "serves metrics of neither vLLM nor SGLang", where=source, hint="SGLang needs `--enable-metrics`"
        )
    names = engine.metrics
    counters = {key: value for key in COUNTERS if (value := total(samples, names[key])) is not None}
    times = {key: seen for key in TIMES if (seen := histogram(samples, names[key])) is not None}
    if "requests" not in counters and "latency" in times:
        counters["requests"] = times["latency"].count
    engines = max(len(samples.get(names["cache"][0], ())), 1)
    cache = total(samples, names["cache"])
    return Scrape(
        engine.name,
        at_s,
        total(samples, names["running"]) or 0.0,
        total(samples, names["waiting"]) or 0.0,
        None if cache is None else cache / engines,
        counters,
        times,
    )

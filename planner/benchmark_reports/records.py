"""One measured benchmark run, whichever load generator wrote it: load, lengths, TTFT, TPOT, throughput."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from planner.engines.serving.registry import SERVING_ENGINES

STATISTICS = ("mean", "p50", "p90", "p95", "p99")
SPREAD = "std"  # more that lengths have

Times = dict[str, dict[str, float]]


@dataclass(frozen=True, slots=True)
class OfferedLoad:
    """How requests came: so many at a time, so many a second, or both as a cap on the other; None where not told."""

    concurrency: int | None = None
    rate_per_s: float | None = None

    @classmethod
    def of(cls, clients: float | None, rate_per_s: float | None) -> "OfferedLoad":
        """The load of numbers as read; less than one request at a time is none."""
        return cls(int(clients) if clients is not None and clients >= 1 else None, rate_per_s or None)


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """One run of a load generator: seconds by metric (`ttft_s`, `tpot_s`, `itl_s`, `latency_s`) and statistic.

    tpot_s is the time per output token after the first of each request; itl_s the single gaps between tokens, where
    a report tells them apart. Lengths are tokens by statistic. `deployment` holds what the report tells of the
    servers, by the columns of the table of measured deployments (`planner.estimate.measured`).
    """

    generator: str
    times_s: Times
    completed: int
    failed: int
    requests_per_s: float | None = None
    output_tokens_per_s: float | None = None
    load: OfferedLoad = OfferedLoad()
    input_tokens: Mapping[str, float] = field(default_factory=dict)
    output_tokens: Mapping[str, float] = field(default_factory=dict)
    model: str | None = None
    engine: str | None = None
    engine_version: str | None = None
    date: str | None = None
    deployment: Mapping[str, str] = field(default_factory=dict)

    @property
    def failed_share(self) -> float:
        """Failed requests among those that ended; 1 where none did."""
        ended = self.completed + self.failed
        return self.failed / ended if ended else 1.0


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


def lengths_of(values: Sequence[float]) -> dict[str, float]:
    """The statistics of lengths, their standard deviation among them."""
    statistics = statistics_of(values)
    if statistics:
        spread = math.fsum((value - statistics["mean"]) ** 2 for value in values) / len(values)
        statistics[SPREAD] = math.sqrt(spread)
    return statistics


def present(times: Times) -> Times:
    """The metrics of which there is any statistic."""
    return {metric: statistics for metric, statistics in times.items() if statistics}


def engine_named(name: str | None) -> str | None:
    """The engine of that name, None for one that says how it was spoken to and not what it is (`openai`)."""
    if name is None:
        return None
    told = name.strip().casefold()
    return next((each.name for each in SERVING_ENGINES.values() if told in (each.name, *each.also_named)), None)


def day_of(text: str | None) -> str | None:
    """2026-01-31 of `2026-01-31T10:00:00` or `20260131-100000`; None where it is no day."""
    from datetime import date

    if text is None:
        return None
    for size in (10, 8):
        try:
            return date.fromisoformat(text[:size]).isoformat()
        except ValueError:
            continue
    return None

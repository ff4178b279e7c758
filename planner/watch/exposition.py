"""Metrics in the text format of Prometheus (exposition format 0.0.4): samples by name, and quantiles of histograms."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.errors import PlannerError

_SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*\Z")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Sample:
    """One value with its labels."""

    labels: Mapping[str, str]
    value: float


Samples = Mapping[str, Sequence[Sample]]


def parse_metrics(text: str, source: str) -> Samples:
    """Samples by the name of their metric. Raises PlannerError for text that holds none."""
    samples: dict[str, list[Sample]] = {}
    for line in text.splitlines():
        match = None if line.startswith("#") else _SAMPLE.match(line.strip())
        if match is None:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        samples.setdefault(match[1], []).append(Sample(dict(_LABEL.findall(match[2] or "")), value))
    if not samples:
        raise PlannerError(
            "holds no metrics of Prometheus", where=source, hint="name an engine's address, such as http://host:8000"
        )
    return samples


def total(samples: Samples, names: Sequence[str]) -> float | None:
    """The sum over labels of the first metric that there is."""
    for name in names:
        if name in samples:
            return math.fsum(sample.value for sample in samples[name] if math.isfinite(sample.value))
    return None


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts below upper ends, all labels together; the last end is infinite."""

    ends: tuple[float, ...]
    counts: tuple[float, ...]  # cumulative
    sum: float

    @property
    def count(self) -> float:
        """Observations."""
        return self.counts[-1] if self.counts else 0.0

    @property
    def mean(self) -> float | None:
        """Of all observations; None without any."""
        return self.sum / self.count if self.count > 0.0 else None

    def since(self, earlier: "Histogram | None") -> "Histogram":
        """What was observed after an earlier scrape of the same engine; the whole where it was started anew."""
        if earlier is None or earlier.ends != self.ends or earlier.count > self.count:
            return self
        counts = tuple(now - then for now, then in zip(self.counts, earlier.counts, strict=True))
        return Histogram(self.ends, counts, self.sum - earlier.sum)

    def quantile(self, share: float) -> float | None:
        """Linear inside a bucket, as `histogram_quantile` of Prometheus; None beyond the last finite end."""
        rank, low, below = share * self.count, 0.0, 0.0
        if self.count <= 0.0:
            return None
        for end, count in zip(self.ends, self.counts, strict=True):
            if count >= rank:
                if math.isinf(end):
                    return None
                return low + (end - low) * ((rank - below) / (count - below) if count > below else 1.0)
            low, below = end, count
        return None


def histogram(samples: Samples, names: Sequence[str]) -> Histogram | None:
    """The first histogram that there is, all labels together."""
    for name in names:
        buckets: dict[float, float] = {}
        for sample in samples.get(f"{name}_bucket", ()):
            end = float(sample.labels.get("le", "inf"))
            buckets[end] = buckets.get(end, 0.0) + sample.value
        if buckets:
            ends = tuple(sorted(buckets))
            return Histogram(ends, tuple(buckets[end] for end in ends), total(samples, [f"{name}_sum"]) or 0.0)
    return None

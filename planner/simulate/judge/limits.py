"""Verdicts on the limits of workloads, from the stationary parts of runs on independent streams.

A limit is kept where the 95 % interval of its statistic lies below it, broken where it lies above, and else too close
to call.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from planner.arrays import Floats
from planner.problem.slo import SloSpec
from planner.simulate.judge.intervals import Estimate, estimate, estimate_gaps, fewest_told
from planner.simulate.judge.warm_up import undisturbed, warm_up
from planner.simulate.run.gaps import Gaps
from planner.simulate.run.result import SimulationResult
from planner.simulate.run.summary import attained, saturated

STREAMS = 10  # independent ones, each with its seed
CLEAR = 0.5  # of the distance to the limit: half an interval that is wanted
FAR = 4.0  # times half the interval: a limit beyond is told by streams shorter than a pilot asked for
NARROW = 0.005  # of the limit: half an interval that is narrow enough anyhow
LEAST_JUDGED = 0.5  # of the requests of a stream; where more are warm-up and end, the next pilot is longer


class Verdict(StrEnum):
    """What simulation says of a limit."""

    KEPT = "kept"
    BROKEN = "broken"
    CLOSE = "too close to call"


@dataclass(frozen=True, slots=True)
class JudgedLimit:
    """A limit with the estimate of what it limits: seconds, or the share of requests that keep all limits at once."""

    workload: int
    time: str  # ttft, tpot, itl, latency; attainment
    statistic: str
    limit: float
    estimate: Estimate
    long_enough: bool = True  # streams are as long as a pilot asked for, where there was one

    @property
    def too_few(self) -> bool:
        """Whether there are fewer values than the statistic can be told of."""
        least = fewest_told("mean" if self.time == "attainment" else self.statistic)
        return self.estimate.interval is None and self.estimate.count < least

    @property
    def told(self) -> bool:
        """Whether streams are as long as a pilot asked for, or as a limit far away needs."""
        return self.long_enough or self.far

    @property
    def margin(self) -> float:
        """How far the value stays from the limit, as a share of it; negative beyond."""
        room = self.limit - self.estimate.value
        return (room if self.time != "attainment" else -room) / self.limit

    @property
    def half(self) -> float:
        """Half of an interval that is narrow beside the distance to the limit, or beside the limit itself."""
        return max(CLEAR * abs(self.limit - self.estimate.value), NARROW * self.limit)

    @property
    def far(self) -> bool:
        """Whether the limit lies so far from the interval that one of too short streams would do."""
        return self.beyond(FAR)

    def beyond(self, halves: float) -> bool:
        """Whether the limit lies further from the value than so many times half the interval."""
        half = 0.5 * (self.estimate.high - self.estimate.low)
        return self.estimate.interval is not None and abs(self.limit - self.estimate.value) > halves * half

    @property
    def verdict(self) -> Verdict:
        """Kept or broken where the whole interval is; the value itself decides where there is no interval.

        Of fewer values than any could be told of none is kept.
        """
        low, high = self.estimate.low, self.estimate.high
        if self.time == "attainment":
            low, high = -high, -low
        bound = -self.limit if self.time == "attainment" else self.limit
        if high <= bound:
            return Verdict.CLOSE if self.too_few else Verdict.KEPT
        return Verdict.CLOSE if low <= bound else Verdict.BROKEN


@dataclass(frozen=True, slots=True, eq=False)
class Judgement:
    """What runs on independent streams say of every limit."""

    runs: tuple[SimulationResult, ...]
    limits: tuple[JudgedLimit, ...]
    warm_ups: tuple[int | None, ...]  # requests of each stream, by workload; None where no stationary part was found
    judged_share: float  # of the requests of the workload of which the least are judged
    saturated: bool  # work piles up in most of the streams
    parts: tuple[tuple[slice, ...], ...]  # [workload][stream] of its requests that are judged

    def values(self, workload: int, time: str) -> list[Floats]:
        """A time of the judged requests of a workload, stream by stream."""
        return [
            of_workload(run, workload).times_s[time][part]
            for run, part in zip(self.runs, self.parts[workload], strict=True)
        ]

    def estimate(self, workload: int, time: str, statistic: str) -> Estimate:
        """A statistic of a time of the judged requests of a workload."""
        if time == "itl":
            runs = [of_workload(run, workload) for run in self.runs]
            return estimate_gaps(_gaps(runs, self.parts[workload]), statistic)
        return estimate(self.values(workload, time), statistic)

    def limited(self, limit: JudgedLimit, slos: Sequence[SloSpec]) -> list[Floats]:
        """The values that a limit is about, stream by stream; of gaps between tokens as many as requests."""
        if limit.time == "itl":
            runs, parts = [of_workload(run, limit.workload) for run in self.runs], self.parts[limit.workload]
            counts = [part.stop - part.start for part in parts]
            return [gaps.series_s(count) for gaps, count in zip(_gaps(runs, parts), counts, strict=True)]
        if limit.time != "attainment":
            return self.values(limit.workload, limit.time)
        rows = zip(self.runs, self.parts[limit.workload], strict=True)
        return [_keeps(of_workload(run, limit.workload), slos[limit.workload])[part] for run, part in rows]

    @property
    def settled(self) -> bool:
        """Whether every stream has a stationary part that is most of it."""
        return None not in self.warm_ups and self.judged_share >= LEAST_JUDGED

    @property
    def long_enough(self) -> bool:
        """Whether streams are as long as a pilot asked for, by every limit."""
        return all(limit.long_enough for limit in self.limits)

    @property
    def told(self) -> bool:
        """Whether streams are stationary, and long enough for each limit."""
        return None not in self.warm_ups and all(limit.told for limit in self.limits)

    @property
    def verdict(self) -> Verdict:
        """The worst of all."""
        verdicts = {limit.verdict for limit in self.limits}
        if self.saturated or Verdict.BROKEN in verdicts:
            return Verdict.BROKEN
        return Verdict.CLOSE if Verdict.CLOSE in verdicts or not self.told else Verdict.KEPT


def judge_runs(
    runs: Sequence[SimulationResult],
    slos: Sequence[SloSpec],
    warm_ups: Sequence[int | None] | None = None,
    *,
    grows: bool | None = None,
) -> Judgement:
    """Every limit of every workload, judged on the stationary parts of runs on independent streams.

    Warm-ups by workload are those given, or are found in the runs themselves; so is whether work piles up, `grows`.
    """
    limits: list[JudgedLimit] = []
    cuts: list[int | None] = []
    shares: list[float] = []
    parts: list[tuple[slice, ...]] = []
    for workload, slo in enumerate(slos):
        own = [of_workload(run, workload) for run in runs]
        ends = [max(undisturbed(run), 1) for run in own]
        cuts.append(_warm_up(own, ends) if warm_ups is None else warm_ups[workload])
        begin = min(cuts[-1] or 0, min(ends) - 1)
        parts.append(tuple(slice(begin, end) for end in ends))
        limits += _limits(own, parts[-1], slo, workload)
        shares.append(sum(end - begin for end in ends) / max(sum(len(run.requests) for run in own), 1))
    grows = sum(map(saturated, runs)) * 2 > len(runs) if grows is None else grows
    return Judgement(tuple(runs), tuple(limits), tuple(cuts), min(shares, default=1.0), grows, tuple(parts))


def of_workload(run: SimulationResult, workload: int) -> SimulationResult:
    """The run with the requests of a workload alone, all where a run does not tell."""
    return run if run.requests.workload is None else run.of_workload(workload)


def _warm_up(runs: Sequence[SimulationResult], ends: Sequence[int]) -> int | None:
    """The longest of the warm-ups of all times; None where one has none."""
    cuts = []
    for name in ("ttft", "tpot"):
        series = [run.times_s[name][:end] for run, end in zip(runs, ends, strict=True)]
        if not all(np.isnan(values).all() for values in series):
            cuts.append(warm_up(series))
    known = [cut for cut in cuts if cut is not None]
    return max(known, default=0) if len(known) == len(cuts) else None


def _limits(
    runs: Sequence[SimulationResult], parts: Sequence[slice], slo: SloSpec, workload: int
) -> Iterator[JudgedLimit]:
    for name, of, bound_s in slo.limits():
        if name == "itl":
            yield JudgedLimit(workload, name, of, bound_s, estimate_gaps(_gaps(runs, parts), of))
            continue
        times = [run.times_s[name][part] for run, part in zip(runs, parts, strict=True)]
        yield JudgedLimit(workload, name, of, bound_s, estimate(times, of))
    if slo.attainment is not None:
        kept = [_keeps(run, slo)[part] for run, part in zip(runs, parts, strict=True)]
        yield JudgedLimit(workload, "attainment", "mean", slo.attainment, estimate(kept, "mean"))


def _gaps(runs: Sequence[SimulationResult], parts: Sequence[slice]) -> list[Gaps]:
    """Gaps between tokens while as large a part of the requests was answered as is judged, stream by stream."""
    rows = [(run, part, max(len(run.requests), 1)) for run, part in zip(runs, parts, strict=True)]
    return [run.gaps.within(part.start / count, part.stop / count) for run, part, count in rows]


def _keeps(run: SimulationResult, slo: SloSpec) -> Floats:
    """1 for requests that keep every limit, else 0."""
    return attained(run, (slo,)).astype(np.float64)

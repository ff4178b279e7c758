"""A running deployment against its plan: drift from predictions, limits broken or near, GPUs too many or too few."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.documents.units import format_si, significant
from planner.plan.schema import Envelope
from planner.problem.recorded import recorded_problem
from planner.problem.slo import SloSpec
from planner.problem.statistics import quantile_of
from planner.watch.engines import COUNTERS, TIMES, Scrape
from planner.watch.exposition import Histogram

NEAR = 0.85  # share of a limit from which it is about to break
FULL_CACHE = 0.95
DRIFT = 0.25  # of a prediction without an interval, beyond which what runs is not what was planned
LEAST = 30  # observations of a time for it to be told
OVER = 0.6  # share of the planned load below which GPUs are too many


@dataclass(frozen=True, slots=True)
class Observed:
    """All engines of a deployment together, over a window or since they started (`window_s` None)."""

    engine: str
    engines: int
    window_s: float | None
    running: float
    waiting: float
    waiting_before: float | None
    cache: float | None  # of the fullest engine
    rates: Mapping[str, float]  # by counter, a second
    times: Mapping[str, Histogram]


def observed(now: Sequence[Scrape], before: Sequence[Scrape] = ()) -> Observed:
    """Scrapes of all engines, and those of the same ones at the start of the window."""
    window_s = now[0].at_s - before[0].at_s if before else None
    earlier: Sequence[Scrape | None] = list(before) or [None] * len(now)
    rates: dict[str, float] = {}
    if window_s:
        for key in COUNTERS:
            pairs = [
                (n.counters[key], b.counters.get(key, 0.0))
                for n, b in zip(now, before, strict=True)
                if key in n.counters
            ]
            rates |= {key: math.fsum(max(a - b, 0.0) for a, b in pairs) / window_s} if pairs else {}
    times: dict[str, Histogram] = {}
    for key in TIMES:
        parts = [
            n.times[key].since(b.times.get(key) if b else None)
            for n, b in zip(now, earlier, strict=True)
            if key in n.times
        ]
        if parts and all(part.ends == parts[0].ends for part in parts):
            counts = tuple(math.fsum(column) for column in zip(*(part.counts for part in parts), strict=True))
            times[key] = Histogram(parts[0].ends, counts, math.fsum(part.sum for part in parts))
    caches = [scrape.cache for scrape in now if scrape.cache is not None]
    return Observed(
        now[0].engine,
        len(now),
        window_s,
        math.fsum(scrape.running for scrape in now),
        math.fsum(scrape.waiting for scrape in now),
        math.fsum(scrape.waiting for scrape in before) if before else None,
        max(caches, default=None),
        rates,
        times,
    )


@dataclass(frozen=True, slots=True)
class Remark:
    """One thing to say: `broken` limits, limits `near`, `drift` from the plan, GPUs `over` or `under`, or `ok`."""

    about: str
    text: str

    @property
    def row(self) -> dict[str, str]:
        """As JSON."""
        return {"about": self.about, "text": self.text}


def remarks(seen: Observed, plan: Envelope | None) -> list[Remark]:
    """What there is to say, the worst first."""
    told = [*_pressure(seen)]
    if plan is not None:
        told += [*_limits(seen, plan), *_drift(seen, plan), *_load(seen, plan)]
    order = ("broken", "near", "under", "drift", "over")
    told.sort(key=lambda remark: order.index(remark.about))
    return told or [Remark("ok", "nothing to say against it")]


def _pressure(seen: Observed) -> list[Remark]:
    told = []
    if seen.waiting_before is not None and seen.waiting > max(2.0 * seen.waiting_before, seen.waiting_before + 10.0):
        told.append(
            Remark(
                "near",
                f"waiting requests grow: {seen.waiting_before:.0f} to {seen.waiting:.0f} in {seen.window_s:.0f} s",
            )
        )
    if seen.cache is not None and seen.cache >= FULL_CACHE:
        told.append(Remark("near", f"the KV cache of an engine is {100 * seen.cache:.0f} % full"))
    if seen.rates.get("preemptions", 0.0) > 0.0:
        told.append(
            Remark(
                "near",
                f"{significant(60 * seen.rates['preemptions'])} requests a minute give up their place in the cache",
            )
        )
    return told


def _limits(seen: Observed, plan: Envelope) -> list[Remark]:
    told = []
    for slo in _slos(plan):
        for time, statistic, limit_s in slo.limits():
            value = _statistic(seen, time, statistic)
            if value is None:
                continue
            words = f"{time} {statistic} is {format_si(value, 's')}, at most {format_si(limit_s, 's')}"
            if value > limit_s:
                told.append(Remark("broken", words))
            elif value > NEAR * limit_s:
                told.append(Remark("near", words))
    return told


def _statistic(seen: Observed, time: str, statistic: str) -> float | None:
    times = seen.times.get(time) or (seen.times.get("itl") if time == "tpot" else None)
    if times is None or times.count < LEAST:
        return None
    quantile = quantile_of(statistic)
    return times.mean if quantile is None else times.quantile(quantile)


def _slos(plan: Envelope) -> list[SloSpec]:
    problem = recorded_problem(plan.inputs)
    return [] if problem is None else [workload.slo for workload in problem.workloads]


def _drift(seen: Observed, plan: Envelope) -> list[Remark]:
    """Times outside their predicted intervals, where the load is no more than the planned one."""
    planned, load = _predicted_rate(plan), seen.rates.get("requests")
    if planned and load is not None and load > 1.1 * planned:
        return []
    told = []
    for prediction in plan.predictions:
        time = prediction.metric.removesuffix("_s")
        if time not in TIMES or not prediction.metric.endswith("_s"):
            continue
        value = _statistic(seen, time, prediction.statistic)
        if value is None or prediction.value <= 0.0:
            continue
        low, high = prediction.interval or (prediction.value * (1 - DRIFT), prediction.value * (1 + DRIFT))
        if value > high or (value < low and planned and load and load >= OVER * planned):
            part = 100.0 * (value / prediction.value - 1.0)
            words = f"{time} {prediction.statistic} is {format_si(value, 's')}"
            words += f", predicted {format_si(prediction.value, 's')}"
            told.append(Remark("drift", f"{words} ({part:+.0f} %): `planner calibrate` learns from runs of your own"))
    return told


def _predicted_rate(plan: Envelope) -> float | None:
    rates = [p.value for p in plan.predictions if p.metric == "requests_per_s"]
    return math.fsum(rates) if rates else None


def _load(seen: Observed, plan: Envelope) -> list[Remark]:
    planned, load = _predicted_rate(plan), seen.rates.get("requests")
    gpus = next((p.value for p in plan.predictions if p.metric == "gpus"), None)
    if not planned or load is None or not gpus:
        return []
    words = f"{significant(load)} requests/s come, the plan is for {significant(planned)}"
    if load > 1.1 * planned:
        return [Remark("under", f"{words}: solve again for the load that there is")]
    if load < OVER * planned:
        need = _whole_replicas(plan, load / planned)
        fewer = f": in proportion {need:.0f} of its {gpus:.0f} GPUs would do" if need < gpus else ""
        return [Remark("over", f"{words}{fewer}")]
    return []


def _whole_replicas(plan: Envelope, share: float) -> float:
    """GPUs of whole replicas of every role, in proportion to the load."""
    return sum(math.ceil(role.replicas * share) * role.parallelism.devices for role in plan.roles)

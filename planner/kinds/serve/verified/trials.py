"""Judges a plan at a load on the streams that proposals share, with all instances up and with each failure down.

A trial ends with the first streams where these are clear of every limit, or beyond one. Plans that differ in settings
which are never reached, such as larger batches than there are, have the same first streams to the last bit, and are
judged once.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from planner.kinds.serve.options import ServeDecision
from planner.kinds.serve.verified.capacity import CLOSE_ENOUGH, LoadKept, keeps, load_kept, missed_by
from planner.kinds.serve.verified.shared_streams import SEARCH_STREAMS, SharedStreams
from planner.kinds.serve.verified.verifiable import Unverified
from planner.plan.schema import Envelope
from planner.simulate.judge.judging import MOST_EVENTS, MOST_REQUESTS, PILOT, PILOT_SHARE, warmed
from planner.simulate.judge.limits import Judgement, Verdict, judge_runs
from planner.simulate.plans.failures import MOST_FAILURES, without
from planner.simulate.run.result import SimulationResult

SEARCH_SEED = 100_000
FLIGHTS = 12.0  # times what is in the system at a time: a stream of the search
FIRST_STREAMS = 2  # of those of the search
CLEARLY = 0.4  # share of a limit by which it is broken on these, for the others to be left out
SURELY = 2.0  # times half the 95 % interval from a limit: beyond, Student's t of ten batches errs once in a thousand
STEEPEST = 15.0  # share of its limit by which a time falls over the logarithm of a load, at most
GROWING = 1.0  # share of a limit by which it is missed where waits grow
MOST_DOUBLINGS = 4  # of the requests of a trial; few lengths, since each has draws and step times of its own
LARGEST_EVENTS = 16_000_000  # of one trial: some 20 CPU-s


@dataclass(frozen=True, slots=True)
class Variants:
    """A plan with all instances up, and with what each of the busiest failures leaves of it."""

    plan: Envelope
    rate_per_s: float  # of all workloads together, as steady state allows
    decisions: tuple[ServeDecision, ...]  # all up first
    lost: tuple[dict[str, int], ...]  # instances by role, of each

    @classmethod
    def of(cls, plan: Envelope, rate_per_s: float) -> "Variants":
        """Those of the failures that the plan reckons with, as many as `check` simulates."""
        decision = ServeDecision.model_validate(plan.decision)
        failures = decision.availability.failures[:MOST_FAILURES] if decision.availability is not None else ()
        left = (ServeDecision.model_validate(without(decision, each.lost).model_dump()) for each in failures)
        return cls(plan, rate_per_s, (decision, *left), ({}, *(dict(each.lost) for each in failures)))

    @property
    def told(self) -> object:
        """What tells it from others on the same streams."""
        return (*(decision.model_dump_json() for decision in self.decisions), self.rate_per_s)

    def worst_first(self) -> Iterator[ServeDecision]:
        """All decisions, what failures leave before the whole, which breaks least."""
        yield from self.decisions[1:]
        yield self.decisions[0]


@dataclass(slots=True)
class Trials:
    """Judges plans on streams that are the same for all of them, as long as each trial needs."""

    shared: SharedStreams
    fewest_requests: int  # of all streams together
    close_below: float = CLOSE_ENOUGH  # of loads below a plan's own, which is known to be too much
    clearly: float = CLEARLY
    surely: float = SURELY
    loads: dict[object, tuple[LoadKept, int]] = field(default_factory=dict)  # kept, with the events that told it
    refuted: dict[object, tuple[LoadKept, int]] = field(default_factory=dict)  # by plan, at the least load that is not
    pilot_requests: int = PILOT  # as many as trials needed, as far as pilots go
    alike: dict[object, tuple[Judgement, int]] = field(default_factory=dict)  # by the first streams; events

    def load_kept(self, variants: Variants, most: float, needed: float) -> LoadKept:
        """The largest load that a plan keeps, of `most` and `needed` as in `capacity.load_kept`.

        What was asked before is not simulated again, nor at a little less load what was missed by far; it counts as if
        it were, for what may be done. Raises OutOfTime, and Unverified for too much work.
        """
        key = variants.told, most, needed
        known = self.loads.get(key) or self._still_refuted(variants, min(needed, most))
        if known is not None:
            self.shared.spared_events += known[1]
            return known[0]
        before = self.shared.events
        load = load_kept(lambda scale: self._worst(variants, scale, self._as_alike), most, needed, self.close_below)
        self.loads[key] = load, self.shared.events - before
        if load.refuted:
            self.refuted[variants.told] = self.loads[key]
        return load

    def _still_refuted(self, variants: Variants, needed: float) -> tuple[LoadKept, int] | None:
        """What a plan that was refuted misses its limits by at the load `needed`, at least, and the events that told
        it; None where it may be kept."""
        if needed <= 0.0 or variants.told not in self.refuted:
            return None
        load, events = self.refuted[variants.told]
        missed = min(load.missed, GROWING) - STEEPEST * math.log(max(load.scale / needed, 1.0))
        return (replace(load, scale=needed, missed=missed), events) if missed > 0.0 else None

    def judged(self, variants: Variants, scale: float) -> Judgement:
        """The judgement of the first variant that breaks a limit at a share of its load, or of the whole."""
        return self._worst(variants, scale, self._grown)

    def _worst(
        self, variants: Variants, scale: float, judged: Callable[[Variants, ServeDecision, float], Judgement]
    ) -> Judgement:
        for decision in variants.worst_first():
            judgement = judged(variants, decision, scale)
            if not keeps(judgement):
                return judgement
        return judgement

    def _as_alike(self, variants: Variants, decision: ServeDecision, scale: float) -> Judgement:
        """What limits a decision keeps: those of another one whose first streams are the same, where there was one."""
        before, slos = self.shared.events, self.shared.slos(decision)
        first = self._part(variants, decision, scale, self.fewest_requests, slice(FIRST_STREAMS))
        key = repr(slos), _digest(first)
        if key in self.alike:
            judgement, events = self.alike[key]
            self.shared.spared_events += events - (self.shared.events - before)
            return judgement
        judgement = self._grown(variants, decision, scale, first)
        self.alike[key] = replace(judgement, runs=(), parts=()), self.shared.events - before
        return judgement

    def _grown(
        self, variants: Variants, decision: ServeDecision, scale: float, first: Sequence[SimulationResult] = ()
    ) -> Judgement:
        """The judgement of a decision on streams that are longer where limits are not broken, and few stay in the
        system in turn.

        Streams too short for a warm-up to be told are judged without a fifth of them: what is kept there is verified on
        longer ones.
        Raises Unverified where even the shortest streams are too much work.
        """
        count, first_events = self.fewest_requests, sum(run.num_events for run in first)
        while True:
            before = self.shared.events - first_events
            judgement = self._raced(variants, decision, scale, count, first)
            longer = self._longer(judgement)
            events_each = (self.shared.events - before) * SEARCH_STREAMS / (count * len(judgement.runs))
            if judgement.verdict is Verdict.BROKEN or longer <= count:
                most = int(min(PILOT_SHARE * MOST_EVENTS / max(events_each, 1.0), PILOT_SHARE * MOST_REQUESTS))
                self.pilot_requests = max(self.pilot_requests, min(count, most))
                return judgement
            following = count * 2 ** math.ceil(math.log2(longer / count))
            events = int(events_each * following)
            if events > LARGEST_EVENTS:
                raise Unverified(f"{following} requests take {events / 1e6:.0f} million steps and arrivals to simulate")
            count, first, first_events = following, (), 0

    def _raced(
        self,
        variants: Variants,
        decision: ServeDecision,
        scale: float,
        count: int,
        first: Sequence[SimulationResult] = (),
    ) -> Judgement:
        """The judgement of all streams, or of the first of them where these tell, or are too short and break no limit.

        `first` has the runs of these, where there are any.
        """
        slos = self.shared.slos(decision)
        runs = [*(first or self._part(variants, decision, scale, count, slice(FIRST_STREAMS)))]
        judgement = warmed(judge_runs(runs, slos), slos)
        short = judgement.verdict is not Verdict.BROKEN and self._longer(judgement) > count
        if short or self._tells(judgement):
            return judgement
        runs += self._part(variants, decision, scale, count, slice(FIRST_STREAMS, None))
        return warmed(judge_runs(runs, slos), slos)

    def _part(
        self, variants: Variants, decision: ServeDecision, scale: float, count: int, part: slice
    ) -> Sequence[SimulationResult]:
        """Some of the streams of so many requests together."""
        plan, rate_per_s = variants.plan, variants.rate_per_s
        return self.shared.simulate(plan, decision, rate_per_s, scale, count, SEARCH_SEED, part=part)

    def _tells(self, judgement: Judgement) -> bool:
        """Whether the other streams are left out: a limit is broken by far, or surely, or all are surely kept."""
        if judgement.verdict is Verdict.BROKEN and missed_by(judgement) > self.clearly:
            return True
        sure = [limit.beyond(self.surely) for limit in judgement.limits]
        if keeps(judgement):
            return all(sure)
        return any(limit.margin < 0.0 for limit, surely in zip(judgement.limits, sure, strict=True) if surely)

    def _longer(self, judgement: Judgement) -> int:
        """Requests of streams that are long enough, as far as trials go."""
        return min(self._flights(judgement), self.fewest_requests << MOST_DOUBLINGS)

    def _flights(self, judgement: Judgement) -> int:
        """Requests that are many times those in the system at a time, by Little's law."""
        if judgement.saturated or judgement.runs[0].requests.clients:
            return 0
        stays_s = sum(float(np.nansum(run.e2e_s)) for run in judgement.runs)
        spans_s = sum(float(np.nanmax(run.arrival_s)) for run in judgement.runs)
        return int(SEARCH_STREAMS * FLIGHTS * stays_s / max(spans_s, 1e-12))


def _digest(runs: Sequence[SimulationResult]) -> str:
    """When requests of runs came, and had their first and last tokens."""
    times = (values for run in runs for values in (run.arrival_s, run.first_token_s, run.finished_s))
    return hashlib.sha256(b"".join(values.tobytes() for values in times)).hexdigest()

"""Judges limits on streams whose length pilot runs decide, and that nothing was chosen on.

Pilot runs decide how long streams are and how much of them is warm-up, and are then dropped. Intervals of runs that
stop when they are narrow would miss more often (Law, Simulation Modeling and Analysis, 5th ed., section 9.4.1).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from planner.problem.slo import SloSpec
from planner.simulate.judge.intervals import fewest
from planner.simulate.judge.lengths import KNOWN, WARM, Length, length, tells
from planner.simulate.judge.limits import FAR, LEAST_JUDGED, JudgedLimit, Judgement, judge_runs, of_workload
from planner.simulate.run.result import SimulationResult

PILOT_SEED = 20_000_000  # from the seeds of streams that count to those of pilots
PILOT = 10_000  # requests of the first pilot runs together
GROWING = 40_000  # requests of pilot runs together whose waits grow: shorter ones may be a busy spell
FEWEST = 20_000  # requests of the runs that count together
MOST_REQUESTS = 800_000  # of all runs of a round
MOST_EVENTS = 3_000_000  # of all runs of a round
PILOT_FAR = 2.0  # times as far as a limit must be for streams that are too short: one for which pilots ask nothing
PILOT_SHARE = 0.5  # of the caps on runs that count: what a pilot may be
MOST_WARM = 0.2  # of a stream that counts
LENIENT = 0.99  # of the length that a pilot asks for, since requests are counted whole


class Streams(Protocol):
    """Runs of a plan on `STREAMS` independent streams."""

    def __call__(self, requests: int, /, *, pilot: bool) -> Sequence[SimulationResult]:
        """Runs of so many requests together; pilots have seeds of their own, `PILOT_SEED` further."""


@dataclass(frozen=True, slots=True)
class Pilot:
    """Runs that decide how long those that count are."""

    judgement: Judgement
    lengths: tuple[Length, ...]  # by limit

    @classmethod
    def of(cls, judgement: Judgement, slos: Sequence[SloSpec]) -> "Pilot":
        """What the runs of a judgement ask of others."""
        lengths = tuple(
            length(judgement.limited(limit, slos), limit.statistic, limit.estimate, limit.half)
            for limit in judgement.limits
        )
        return cls(judgement, lengths)

    @property
    def requests(self) -> int:
        """Of all streams together."""
        return sum(len(run.requests) for run in self.judgement.runs)

    @property
    def events(self) -> int:
        """Of all streams together."""
        return sum(run.num_events for run in self.judgement.runs)

    def judged(self, workload: int) -> float:
        """Requests of a stream, on average."""
        parts = self.judgement.parts[workload]
        return float(sum(part.stop - part.start for part in parts)) / len(parts)

    @property
    def known(self) -> bool:
        """Whether it is long enough to tell how long streams must be, for every limit that is not far away."""
        return self.judgement.settled and all(length.known(self.judged(limit.workload)) for limit, length in self.near)

    @property
    def near(self) -> list[tuple[JudgedLimit, Length]]:
        """Limits that the length of streams matters for: not those so far away that shorter ones would do."""
        rows = zip(self.judgement.limits, self.lengths, strict=True)
        return [(limit, length) for limit, length in rows if not limit.beyond(PILOT_FAR * FAR)]

    @property
    def longer(self) -> int:
        """Requests of the next pilot where this one does not tell: twice as many, or what it asks for."""
        remembered = max((each.remembered for _, each in self.near if math.isfinite(each.remembered)), default=0.0)
        asked = KNOWN * remembered * len(self.judgement.runs) + self.unjudged
        return math.ceil(max(2.0 * self.requests, asked, 3.0 * self.unjudged))

    @property
    def unjudged(self) -> float:
        """Requests of all streams that are warm-up, or arrive too late to be undisturbed: most of any workload."""
        parts = range(len(self.judgement.parts))
        return max(self.requests - self.judged(workload) * len(self.judgement.runs) for workload in parts)

    def is_last(self, most_requests: int) -> bool:
        """Whether a longer one is more work than a pilot may be."""
        events = self.longer / self.requests * self.events
        return self.longer > PILOT_SHARE * most_requests or events > PILOT_SHARE * MOST_EVENTS

    def breaks(self, halves: float) -> bool:
        """Whether it breaks a limit by so many times half its interval, and is no busy spell."""
        broken = (limit for limit in self.judgement.limits if limit.margin < 0.0 and limit.beyond(halves))
        return self.requests >= GROWING and any(broken)

    def factor(self, of: Callable[[Length], float]) -> float:
        """How many times as long streams must be, for limits that are not far away."""
        return max((of(length) / self.judged(limit.workload) for limit, length in self.near), default=0.0)

    def long_enough(self, limit: JudgedLimit, length: Length, longer: float) -> bool:
        """Whether streams that are so many times as long are as long as a limit of it asks for."""
        judged = self.judged(limit.workload)
        return self.judgement.settled and length.known(judged) and longer * judged >= LENIENT * length.valid

    def warm_ups(self, longer: float) -> list[int | None]:
        """Requests to cut of streams that are so many times as long, by workload."""
        cuts: list[int | None] = []
        for workload, cut in enumerate(self.judgement.warm_ups):
            rows = zip(self.judgement.limits, self.lengths, strict=True)
            memory = max((length.remembered for limit, length in rows if limit.workload == workload), default=0.0)
            most = MOST_WARM * longer * min(len(of_workload(run, workload).requests) for run in self.judgement.runs)
            cuts.append(None if cut is None else int(min(max(cut, WARM * memory), most)))
        return cuts


def judge(
    simulated: Streams,
    slos: Sequence[SloSpec],
    *,
    fewest_requests: int = FEWEST,
    most_requests: int = MOST_REQUESTS,
    until_broken: float = math.inf,
    near: Judgement | None = None,
    pilot_requests: int = PILOT,
) -> Judgement:
    """Judges limits on fresh streams, as long as pilots ask for; where waits grow without end, on the pilots.

    So it does where a pilot breaks a limit by so many times half its interval: `until_broken`. Runs of other streams at
    a load `near` this one are the pilots where they tell how long streams must be, or as much as pilots may; others
    have `pilot_requests` at first.
    Equal arguments give equal judgements: lengths of runs follow pilots and caps on work, no clock.
    """
    least = max((fewest(of) for slo in slos for _, of, _ in slo.limits()), default=0)
    first = min(max(pilot_requests, least), most_requests)
    pilot = None if near is None or near.saturated else Pilot.of(warmed(near, slos), slos)
    if pilot is None or not (pilot.known or pilot.is_last(most_requests)):
        pilot = _pilot(simulated, slos, first, most_requests, until_broken=until_broken)
        if pilot.judgement.saturated or pilot.breaks(until_broken):
            return pilot.judgement
    asked = pilot.requests * pilot.factor(lambda length: max(length.valid, length.clear))
    wanted = max(fewest_requests, least, asked, pilot.unjudged / (1.0 - LEAST_JUDGED))
    most = min(most_requests, pilot.requests * MOST_EVENTS / max(pilot.events, 1))
    count = math.ceil(max(min(wanted, most), min(least, most_requests)))
    longer = count / pilot.requests
    runs = simulated(count, pilot=False)
    judgement = judge_runs(runs, slos, pilot.warm_ups(longer))
    rows = zip(judgement.limits, pilot.judgement.limits, pilot.lengths, strict=True)
    limits = [
        replace(limit, long_enough=pilot.long_enough(before, length, longer) and _tells(judgement, limit, slos))
        for limit, before, length in rows
    ]
    return replace(judgement, limits=tuple(limits))


def _tells(judgement: Judgement, limit: JudgedLimit, slos: Sequence[SloSpec]) -> bool:
    return tells(judgement.limited(limit, slos), limit.statistic)


def _pilot(
    simulated: Streams, slos: Sequence[SloSpec], count: int, most_requests: int, *, until_broken: float
) -> Pilot:
    """Pilot runs, longer until they are long beside what streams remember, or as long as runs may be."""
    while True:
        pilot = Pilot.of(warmed(judge_runs(simulated(count, pilot=True), slos), slos), slos)
        tells_enough = pilot.requests >= GROWING if pilot.judgement.saturated else pilot.known
        if tells_enough or pilot.is_last(most_requests) or pilot.breaks(until_broken):
            return pilot
        count = pilot.longer


def warmed(judgement: Judgement, slos: Sequence[SloSpec]) -> Judgement:
    """The same with warm-ups that leave most of each stream: one that still changes there remembers too long."""
    most = [
        int(MOST_WARM * min(len(of_workload(run, workload).requests) for run in judgement.runs))
        for workload in range(len(slos))
    ]
    cuts = [least if cut is None else min(cut, least) for cut, least in zip(judgement.warm_ups, most, strict=True)]
    if tuple(cuts) == judgement.warm_ups:
        return judgement
    return judge_runs(judgement.runs, slos, cuts, grows=judgement.saturated)

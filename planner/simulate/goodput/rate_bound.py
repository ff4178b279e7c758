"""Upper bound on goodput from work conservation: a rate that no schedule of a fleet exceeds within the SLO.

Whatever the policies, a request that is on time has its prompt prefilled and its answer decoded inside a window that
its limits fix, by engines that work one second a second; `step_prices` says what that costs them at least. So

(B1) of the prompts, taken as jobs of one machine as fast as all engines that prefill, only so many can be on time
     (`solvers.on_time`; the wait that bursts cause is in it),
(B2) the cheapest share of the requests that must be on time costs no more than the engines can do from the first
     arrival to the last moment at which a request can still be on time; for prefill, decoding, and both together,
(B3) a prompt that takes too long on an idle engine is never on time,
(B4) behind a lone engine that serves first come, first served, no prompt is ready before all that came earlier,
(B7) as (B2) for what front ends take for each request in turn.

Requests that engines refuse or cut at their context limit are taken to cost nothing and to be on time.
A pipeline of k stages, each of which takes an equal part of a pass, counts as k engines: more passes than it has stages
are never under way, and none is shorter than in an empty pipeline. It gives prompts in order, as its last stage does.
It holds for the draws at hand, and so for simulations of them. It takes for granted that nothing is cached from other
requests, and that an engine which throws a cache away and computes it again, which gives a token without a decode step,
works no less for it than that step.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np

from planner.arrays import Bools, Floats
from planner.errors import PlannerError
from planner.simulate.fleet.front_ends import entering, tokenised_s, turn_s
from planner.simulate.fleet.instances import Fleet, Instance
from planner.simulate.goodput.step_prices import (
    MeanRequest,
    TokenPrices,
    contexts,
    decode_prices,
    joint_prices,
    least_grid,
    pairs,
    prefill_prices,
    shortest_prefill_s,
)
from planner.simulate.run.attainment import Draws, Requirement
from planner.solvers.schedules.on_time import most_on_time

BISECTIONS = 10  # of a doubling: to a thousandth
DOUBLINGS = 40
MOST_JOBS = 4000  # of (B1); with more, bursts matter little, and (B2) says nearly the same in no time
LATEST_SHARES = (1.0, 0.99, 0.97, 0.95, 0.9, 0.8, 0.7)  # of the judged requests by window, so that few long ones do
KNOWN_OF_FLEETS = frozenset(
    {"instances", "routing", "decode_routing", "queueing", "block_tokens", "request_overhead_s", "first_token_from"}
    | {"frontend_s", "frontend_token_s", "tokenises_together", "handover_s"}
    | {"quantum_s", "migration_period_s", "crowded_below", "spare_above", "groups", "pool_links", "paths"}
)
"""Rules that only make work wait, or longer."""
KNOWN_OF_ENGINES = frozenset(
    {"grid", "kv_tokens", "role", "policy", "token_budget", "most_sequences", "chunked", "reserves", "preemption"}
    | {"host_kv_tokens", "swap_tokens_per_s", "watermark", "link_tokens_per_s", "link_latency_s", "model", "pool"}
    | {"adapter_slots", "adapter_load_s", "encode_s", "up", "most_context", "stages", "asynchronous"}
)
SAFETY = 1.0 + 1e-9  # of rounding


@dataclass(frozen=True, slots=True)
class EngineSeconds:
    """What the judged requests cost one kind of engine at least, in seconds [R]."""

    prefill_s: Floats
    decode_s: Floats
    joint_s: Floats
    idle_s: Floats  # to prefill each on an idle engine


@dataclass(frozen=True, slots=True)
class OnTimeQuota:
    """So many of some of the requests must be on time."""

    counted: Bools  # [R]
    need: int


class RateBound:
    """Bounds of fleets on the same draws under the same requirements; engines of one kind are priced once."""

    def __init__(self, draws: Draws, requirements: tuple[Requirement, ...]) -> None:
        if draws.hits > 0.0:
            raise PlannerError(
                "no rate can be excluded for prompts that prefix caches hold",
                hint="leave the hits out, or judge the fleet by runs alone",
            )
        self.draws, self.requirements = draws, requirements
        self._work: dict[tuple[int, float, int], tuple[Instance, EngineSeconds]] = {}
        self._single: dict[tuple[object, ...], float] = {}
        self._least: dict[tuple[int, int], tuple[Instance, Instance]] = {}

    @cached_property
    def _lengths(self) -> tuple[Floats, Floats]:
        judged = slice(self.draws.warm_up, None)
        return self.draws.input_tokens[judged].astype(float), self.draws.output_tokens[judged].astype(float)

    @cached_property
    def _arrival_s(self) -> Floats:
        """Of the judged requests, at one request a second [R]."""
        return self.draws.arrival_s[self.draws.warm_up :]

    def most_rate(self, fleet: Fleet) -> float:
        """Requests per second beyond which no run of `fleet` keeps all requirements; inf where nothing limits it.

        Raises PlannerError for fleets whose engines may save work, or change what they do.
        """
        alone = self.stepping_alone(fleet)
        return min((self._most_rate(alone, wanted) for wanted in self.requirements), default=math.inf)

    def stepping_alone(self, fleet: Fleet) -> Fleet:
        """The fleet with steps that no instance undercuts, whatever others make it do; raises as `most_rate` does."""
        _require_steady(fleet)
        members = max(fleet.groups, default=1)
        return replace(fleet, instances=tuple(self._alone(instance, members) for instance in fleet.instances))

    def _alone(self, instance: Instance, members: int) -> Instance:
        """The instance with steps that are as short as those which it makes with others can be."""
        if len(instance.grid.joint_s) < 2:
            return instance
        key = (id(instance), members)
        if key not in self._least:
            self._least[key] = (instance, replace(instance, grid=least_grid(instance.grid, members)))
        return self._least[key][1]

    def _most_rate(self, fleet: Fleet, wanted: Requirement) -> float:
        first = [instance for instance in fleet.instances if instance.role != "decode"]
        last = [instance for instance in fleet.instances if instance.role != "prefill"]
        limit, after_s = most_context(fleet), self._moved_s(fleet, first, last)
        before_s = fleet.request_overhead_s + self._within(tokenised_s(fleet, self._lengths[0]), limit)
        in_order = len(first) == 1 and fleet.queueing == "fcfs"
        way = (fleet.request_overhead_s, fleet.frontend_s, fleet.frontend_token_s, float(after_s.max()))
        key: tuple[object, ...] = (wanted, limit, stages_of(first), in_order, way, *sorted(set(map(id, first))))
        if key not in self._single:
            self._single[key] = self._prompts(first, wanted, limit, before_s, after_s, in_order=in_order)
        most = self._single[key]
        if fleet.frontend_s + fleet.frontend_token_s > 0.0:
            most = min(most, self._whole(self._within(turn_s(fleet, self._lengths[0]), limit), entering(fleet), wanted))
        key = ("decode", wanted, limit, stages_of(last), *sorted(set(map(id, last))))
        if key not in self._single:
            work_R = np.minimum.reduce([self.work(engine, wanted, limit).decode_s for engine in kinds(last)])
            self._single[key] = self._whole(work_R, stages_of(last), wanted)
        most = min(most, self._single[key])
        if any(instance.role == "colocated" for instance in fleet.instances):
            work_R = np.minimum.reduce([self.work(engine, wanted, limit).joint_s for engine in kinds(fleet.instances)])
            most = min(most, self._whole(work_R, stages_of(fleet.instances), wanted))
        return most

    def _within(self, seconds_R: Floats, limit: int) -> Floats:
        """Nothing for requests of more than `limit` tokens."""
        return np.where(sum(self._lengths) <= limit, seconds_R, 0.0)

    def _moved_s(self, fleet: Fleet, first: list[Instance], last: list[Instance]) -> Floats:
        """Least time between the end of a prefill and the first token at the client [R]."""
        input_R, output_R = self._lengths
        if fleet.first_token_from != "decode" or any(instance.role == "colocated" for instance in first):
            return np.zeros(len(input_R))
        rate = min(max(engine.link_tokens_per_s for engine in side) for side in (first, last))
        latency_s = max(min(engine.link_latency_s for engine in side) for side in (first, last))
        within = input_R + output_R <= most_context(fleet)
        return np.where((output_R > 1.0) & within, fleet.handover_s + input_R / rate + latency_s, 0.0)

    def work(self, instance: Instance, wanted: Requirement, limit: int) -> EngineSeconds:
        """What the judged requests cost this kind of engine at least while they keep their time per token.

        Those of more than `limit` tokens cost nothing.
        """
        key = (id(instance), wanted.tpot_s, limit)
        if key not in self._work:
            self._work[key] = (instance, self._priced(instance, wanted, limit))
        return self._work[key][1]

    def _priced(self, instance: Instance, wanted: Requirement, limit: int) -> EngineSeconds:
        within_R = sum(self._lengths) <= limit
        input_R, output_R = (np.where(within_R, side, 1.0) for side in self._lengths)
        demand = MeanRequest(
            float(input_R.mean()),
            float(pairs(input_R).mean()),
            float((output_R - 1.0).mean()),
            float(contexts(input_R, output_R).mean()),
            wanted.tpot_s,
        )
        decodes, prefills = instance.role != "prefill", instance.role != "decode"
        nothing = TokenPrices()
        decode = decode_prices(instance, demand) if decodes else nothing
        prefill = prefill_prices(instance, demand) if prefills else nothing
        joint = joint_prices(instance, demand) if decodes and prefills else nothing
        return EngineSeconds(
            within_R * prefill.prefill_s(input_R),
            within_R * decode.decode_s(input_R, output_R),
            within_R * (joint.prefill_s(input_R) + joint.decode_s(input_R, output_R)),
            within_R * (shortest_prefill_s(instance, input_R) if prefills else np.zeros(len(input_R))),
        )

    def _prompts(
        self,
        engines: list[Instance],
        wanted: Requirement,
        limit: int,
        before_s: Floats,
        after_s: Floats,
        *,
        in_order: bool,
    ) -> float:
        """(B1), (B3), (B4): the highest rate at which enough prompts can be prefilled on time."""
        works = [self.work(engine, wanted, limit) for engine in kinds(engines)]
        idle_R = np.minimum.reduce([work.idle_s for work in works])
        need = math.ceil(wanted.share * len(idle_R) - 1e-9)
        window_s = min(wanted.ttft_s, wanted.latency_s)
        if not math.isfinite(window_s):
            return math.inf
        can = before_s + idle_R + after_s <= window_s * SAFETY
        if int(can.sum()) < need:
            return 0.0
        work_R = np.minimum.reduce([work.prefill_s for work in works]) / stages_of(engines)
        latest_R = np.where(can, window_s - before_s.min() - after_s, -1.0) * SAFETY
        if in_order:
            return _highest(lambda rate: _enough_in_order(self._arrival_s / rate, latest_R, work_R / SAFETY, need))
        whole = self._whole(work_R, 1, wanted)
        if len(work_R) > MOST_JOBS:
            return whole
        arrival_R, work_R, latest_s = self._arrival_s[can], work_R[can], float(latest_R.max()) / SAFETY
        possible = _highest(lambda rate: _enough(arrival_R / rate, latest_s * SAFETY, work_R / SAFETY, need))
        return min(whole, possible)

    def _whole(self, work_R: Floats, engines: int, wanted: Requirement) -> float:
        """(B2) of the one workload."""
        late_R = latest_s(wanted, self._lengths[1])
        share = OnTimeQuota(np.ones(len(late_R), dtype=np.bool_), math.ceil(wanted.share * len(late_R) - 1e-9))
        return rate_of_work(work_R / engines, late_R, (share,), float(self._arrival_s[-1] - self._arrival_s[0]))


def most_context(fleet: Fleet) -> int:
    """Tokens of the longest request that every engine serves whole."""
    return min(instance.most_context for instance in fleet.instances)


def latest_s(wanted: Requirement, output_R: Floats) -> Floats:
    """The time after its arrival by which each request must be answered [R]; inf where nothing limits it."""
    late_R = np.full(len(output_R), wanted.latency_s)
    if math.isfinite(wanted.ttft_s + wanted.tpot_s):
        late_R = np.minimum(late_R, wanted.ttft_s + wanted.tpot_s * (output_R - 1.0))
    return late_R


def rate_of_work(work_R: Floats, late_R: Floats, shares: Sequence[OnTimeQuota], span_s: float) -> float:
    """(B2): the highest rate at which the cheapest requests that are enough fit into the time that there is.

    `work_R` is that of all engines together, `span_s` from the first arrival to the last at a rate of one.
    """
    ordered_R, most = np.sort(late_R[np.isfinite(late_R)]), math.inf
    for share in LATEST_SHARES if len(ordered_R) else ():
        window_s = float(ordered_R[math.ceil(share * len(ordered_R)) - 1])
        inside, cheapest_s = late_R <= window_s, 0.0
        for quota in shares:
            left = quota.need - int(np.sum(quota.counted & ~inside))
            if left > 0:
                cheapest_s += float(np.sort(work_R[quota.counted & inside])[:left].sum())
        busy_s = cheapest_s / SAFETY - window_s
        most = min(most, span_s / busy_s if busy_s > 0.0 else math.inf)
    return most


def _require_steady(fleet: Fleet) -> None:
    """Refuses what the prices of steps do not cover: whatever a new rule of fleets may bring, until it is known."""
    owners: list[tuple[Fleet | Instance, frozenset[str]]] = [(fleet, KNOWN_OF_FLEETS)]
    owners += [(engine, KNOWN_OF_ENGINES) for engine in kinds(fleet.instances)]
    for owner, known in owners:
        for rule in fields(owner):
            if rule.name not in known and getattr(owner, rule.name) != rule.default:
                raise PlannerError(
                    f"no rate can be excluded for fleets with `{rule.name}`",
                    hint="leave it at its default, or judge the fleet by runs alone",
                )


def kinds(engines: Sequence[Instance]) -> list[Instance]:
    """One instance of each kind."""
    return list({id(engine): engine for engine in engines}.values())


def stages_of(engines: Sequence[Instance]) -> int:
    """Batches that engines work on at once at most, each in a stage of theirs."""
    return sum(engine.stages for engine in engines)


def _enough(release_R: Floats, window_s: float, work_R: Floats, need: int) -> bool:
    return most_on_time(release_R, release_R + window_s, work_R, wanted=need) >= need


def _enough_in_order(release_R: Floats, window_R: Floats, work_R: Floats, need: int) -> bool:
    done_R = np.cumsum(work_R)
    end_R = done_R + np.maximum.accumulate(release_R - (done_R - work_R))
    return int(np.sum(end_R <= release_R + window_R)) >= need


def _highest(possible: Callable[[float], bool]) -> float:
    """The highest rate that is possible, or a little more; inf where every rate is, 0 where none is."""
    high = 1.0
    while possible(high):
        high *= 2.0
        if high > 2.0**DOUBLINGS:
            return math.inf
    low = high / 2.0
    while not possible(low):
        high, low = low, low / 2.0
        if low < 2.0**-DOUBLINGS:
            return 0.0
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if possible(middle) else (low, middle)
    return high

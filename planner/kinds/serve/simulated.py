"""Serving plans judged by simulation: the placement of highest goodput, or the cheapest that keeps limits at a rate.

The steady-state mix is the favourite; every other placement is excluded by the optimistic model, beaten in a run, or
played to its goodput (`planner.simulate.placements`). A plan claims no more than the lower end of the interval of its
goodput over independent streams, and carries the bound that no simulation of any placement on the draws exceeds.
"""

import math
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from planner.infeasible import Conflict, Infeasible
from planner.kinds.serve.demand import Margins
from planner.kinds.serve.formulate import gpus_at_hand
from planner.kinds.serve.place import Unplaceable
from planner.kinds.serve.placements import Parts, Workshop, list_placements, name_of
from planner.kinds.serve.simulated_plan import Finding, plan_of
from planner.kinds.serve.solve import Outcome, Setting
from planner.plan.schema import Envelope
from planner.problem.schema import Limit, SloSpec
from planner.progress import Limits
from planner.simulate.attainment import Draws, required
from planner.simulate.engine import is_compiled
from planner.simulate.goodput import goodput, interval, keeps
from planner.simulate.optimistic import Optimist
from planner.simulate.placements import Placement, PlacementSearch, Tried, search_placements
from planner.simulate.plan_load import drawn_lengths
from planner.simulate.requests import Requests
from planner.units import format_si

SIDES = ("input_tokens", "output_tokens")
STREAMS = 5  # independent ones, whose goodputs give the interval
FEWEST, MOST = 2_000, 20_000  # requests of a run
FLIGHTS = 12.0  # as many requests are in a run as are in the system at a time, so many times
WARM_UP = 1.5  # of those in the system, and at least
LEAST_WARM_UP = 0.05  # of all: not judged
MOST_TRIED = 400  # placements that are played
SURE = 0.97  # of its rate, at which the cheapest placement must keep its limits on other draws too


@dataclass(frozen=True, slots=True)
class Judge:
    """What all placements are played on."""

    setting: Setting
    draws: Draws
    slo: SloSpec
    workshop: Workshop
    optimist: Optimist
    streams: tuple[Draws, ...]  # independent ones of the same workload

    @classmethod
    def of(cls, setting: Setting, outcome: Outcome) -> "Judge":
        """Runs so long that what is in the system at their ends matters little.

        Raises PlannerError for workloads that limit nothing, and for lengths of a trace.
        """
        solution = outcome.result.solution
        assert solution is not None
        stays = [one.served[0].held_s for one in outcome.formulated.candidates if one.served[0] is not None]
        flight = solution.served_per_s[0] * max(stays)
        count = setting.options.simulated_requests or int(min(max(FLIGHTS * flight, FEWEST), MOST))
        warm_up = min(int(max(WARM_UP * flight, LEAST_WARM_UP * count)), count // 3)
        seed = setting.resolved.problem.seed
        draws, *streams = (drawn(setting, count, warm_up, seed + 1000 * n) for n in range(STREAMS + 1))
        inputs, outputs = (np.concatenate([getattr(one, side) for one in (draws, *streams)]) for side in SIDES)
        every = Requests.open_stream(np.zeros(len(inputs)), inputs, outputs)
        slo = divided(setting.resolved.workloads[0].spec.slo, setting.targets[0].margins)
        workshop = Workshop.of(setting, outcome.formulated.candidates, every)
        return cls(setting, draws, slo, workshop, Optimist(draws, required(slo)), tuple(streams))


def drawn(setting: Setting, count: int, warm_up: int, seed: int) -> Draws:
    """Requests of the one workload of a problem."""
    spec, rng = setting.resolved.workloads[0].spec, np.random.default_rng(seed)
    inputs, outputs = (drawn_lengths(spec, side, count, rng) for side in SIDES)
    cv = math.sqrt(setting.targets[0].arrival_cv2)
    return Draws.renewal(inputs, outputs, cv=cv, seed=seed + 1, warm_up=warm_up)


def divided(slo: SloSpec, margins: Margins) -> SloSpec:
    """Limits divided by the margins that a confidence asks for."""

    def stricter(limit: Limit | None, margin: float) -> Limit | None:
        if limit is None:
            return None
        return Limit(**{f"{name}_s": bound / margin for name, bound in limit.statistics().items()})

    return slo.model_copy(
        update={
            "ttft": stricter(slo.ttft, margins.ttft),
            "tpot": stricter(slo.tpot, margins.tpot),
            "latency": stricter(slo.latency, margins.tpot),
        }
    )


def solve_by_simulation(setting: Setting, outcome: Outcome, limits: Limits) -> Envelope:
    """The best placement in simulation; raises Infeasible where none keeps its limits at any rate, or the one asked."""
    if not is_compiled():
        limits.tell("compiling the simulator, once for this machine")
    judge = Judge.of(setting, outcome)
    limits.tell("playing placements")
    if outcome.formulated.problem.maximising:
        return _most(setting, outcome, judge)
    return _least(setting, outcome, judge)


def _most(setting: Setting, outcome: Outcome, judge: Judge) -> Envelope:
    """The placement of the highest goodput on all GPUs at hand."""
    gpus = gpus_at_hand(setting.resolved.problem, setting.resolved.pools)
    parts = list_placements(outcome.formulated.candidates, gpus, outcome)
    wanted = setting.targets[0].rate_per_s or math.inf
    placements = [_placement(judge, one, outcome.formulated.factor) for one in parts]
    search = search_placements(
        placements, judge.draws, judge.slo, most_per_s=wanted, most_tried=MOST_TRIED, optimist=judge.optimist
    )
    search = _with_favourite(search, judge)
    ranked = [at for at, one in enumerate(search.tried) if one.goodput_per_s]
    for at in sorted(ranked, key=lambda at: -(search.tried[at].goodput_per_s or 0.0)):
        found = search.tried[at].goodput_per_s or 0.0
        fleet = judge.workshop.fleet(parts[at])
        goods = [partial(keeps, fleet, stream, judge.slo) for stream in judge.streams]
        low, high = interval(goods, near_per_s=found, most_per_s=wanted)
        claimed = min(found, low) or found
        result = Finding(search, tuple(parts), at, claimed, (low, high), search.bound, claimed)
        try:
            return plan_of(setting, outcome, judge.workshop, judge.draws, judge.slo, result)
        except Unplaceable:
            continue
    raise _nothing(judge, proved=search.bound == 0.0)


def _with_favourite(search: PlacementSearch, judge: Judge) -> PlacementSearch:
    """The search with the goodput of what steady state prefers, even where one run had beaten it."""
    at = search.steady_best
    if at is None or search.tried[at].how != "beaten":
        return search
    found = goodput(search.placements[at].fleet(), judge.draws, judge.slo, most_per_s=search.tried[at].bound_per_s)
    tried = list(search.tried)
    tried[at] = replace(tried[at], how="simulated", goodput_per_s=found.rate_per_s)
    return replace(search, tried=tuple(tried), runs=search.runs + found.runs)


def _least(setting: Setting, outcome: Outcome, judge: Judge) -> Envelope:
    """The cheapest placement that keeps the limits at the rate asked for, on the draws and close to it on others."""
    rate = setting.targets[0].rate_per_s
    assert rate is not None
    candidates = outcome.formulated.candidates
    gpus = gpus_at_hand(setting.resolved.problem, setting.resolved.pools)
    found = {one.counts: one for size in range(1, gpus + 1) for one in list_placements(candidates, size, outcome)}
    parts = tuple(sorted(found.values(), key=lambda one: (_price(outcome, one), -one.steady_per_s)))
    tried: list[Tried] = []
    bound = math.inf
    for at, one in enumerate(parts):
        fleet = judge.workshop.fleet(one)
        most = judge.optimist.most_rate(fleet)
        if most < rate:
            tried.append(Tried("excluded", most))
            continue
        bound = min(bound, _price(outcome, one))
        good = keeps(fleet, judge.draws, judge.slo, rate)
        tried.append(Tried("simulated", most, rate) if good else Tried("beaten", most))
        if not good or not all(keeps(fleet, stream, judge.slo, SURE * rate) for stream in judge.streams):
            continue
        placements = tuple(_placement(judge, each, 1.0) for each in parts[: at + 1])
        search = PlacementSearch(placements, tuple(tried), at, len(tried))
        try:
            result = Finding(search, parts, at, rate, None, bound, _price(outcome, one))
            return plan_of(setting, outcome, judge.workshop, judge.draws, judge.slo, result)
        except Unplaceable:
            continue
    raise _nothing(judge, proved=math.isinf(bound))


def _nothing(judge: Judge, *, proved: bool) -> Infeasible:
    """The limits that no placement keeps in simulation."""
    slo, load = judge.slo, judge.setting.resolved.workloads[0].spec.load
    texts = [
        f"{of} {name} <= {format_si(bound, 's')}"
        for name, limit in (("ttft", slo.ttft), ("tpot", slo.tpot), ("latency", slo.latency))
        for of, bound in (limit.statistics().items() if limit is not None else ())
    ]
    if load is not None and load.rate_per_s is not None:
        texts.append(f"load {load.rate_per_s:g}/s")
    return Infeasible([Conflict(limit=text, nearest="") for text in texts], proved=proved)


def _placement(judge: Judge, parts: Parts, weight: float) -> Placement:
    name = name_of(judge.workshop.candidates, parts)
    return Placement(name, lambda: judge.workshop.fleet(parts), weight, parts.steady_per_s)


def _price(outcome: Outcome, parts: Parts) -> float:
    """GPUs or USD per hour of a placement, as the objective counts."""
    shapes = outcome.formulated.problem.shapes
    if outcome.formulated.metric == "usd_per_hour":
        return sum(count * shapes[at].price_per_hour for at, count in parts.counts)
    return float(sum(count * shapes[at].devices for at, count in parts.counts))

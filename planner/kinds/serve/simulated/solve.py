"""Serving plans judged by simulation: the placement of highest goodput, or the cheapest that keeps limits at a rate.

The steady-state mix is the favourite; every other placement is excluded by the optimistic model, beaten in a run, or
played to its goodput (`planner.simulate.goodput.placements`). A plan claims no more than the lower end of the interval
of its goodput over independent streams, and carries the bound that no simulation of any placement on the draws exceeds.
"""

import math
from dataclasses import replace
from functools import partial

from planner.kinds.serve.plan.place import Unplaceable
from planner.kinds.serve.simulated.load_streams import LoadStreams
from planner.kinds.serve.simulated.placements import Deployment, list_placements, name_of
from planner.kinds.serve.simulated.plan import (
    MOST_TRIED,
    SURE,
    SimulatedChoice,
    effort_of,
    ends_of,
    no_placement,
    plan_of,
    price_of,
)
from planner.kinds.serve.steady.search import Outcome, ServeSetting
from planner.plan.schema import Envelope
from planner.progress import Limits
from planner.simulate.goodput.placements import Placement, PlacementOutcome, PlacementSearch, search_placements
from planner.simulate.goodput.rate import goodput, keeps
from planner.simulate.goodput.rate_bound import RateBound
from planner.simulate.run.attainment import required
from planner.simulate.run.engine import is_compiled


def solve_by_simulation(setting: ServeSetting, outcome: Outcome, limits: Limits) -> Envelope:
    """The best placement in simulation; raises Infeasible where none keeps its limits at any rate, or the one asked."""
    if not is_compiled():
        limits.tell("compiling the simulator, once for this machine")
    streams = LoadStreams.of(setting, outcome)
    limits.tell("playing placements")
    maximising = outcome.formulated.problem.maximising
    if len(setting.targets) > 1:
        from planner.kinds.serve.simulated.partitions import best_partition, cheapest_partition

        return best_partition(outcome, streams) if maximising else cheapest_partition(outcome, streams)
    return _most(outcome, streams) if maximising else _least(outcome, streams)


def _most(outcome: Outcome, streams: LoadStreams) -> Envelope:
    """The placement of the highest goodput on all GPUs at hand."""
    (draws,), (slo,) = streams.mixture.draws, streams.mixture.slos
    parts = list_placements(outcome.formulated.candidates, streams.gpus, outcome)
    streams.require_long_enough(parts[:1])
    wanted = streams.asked_per_s
    placements = [_placement(streams, one, streams.factor) for one in parts]
    rate_bound = RateBound(draws, required(slo))
    search = search_placements(placements, draws, slo, most_per_s=wanted, most_tried=MOST_TRIED, rate_bound=rate_bound)
    search = _with_favourite(search, streams)
    ranked = [at for at, one in enumerate(search.tried) if one.goodput_per_s]
    for at in sorted(ranked, key=lambda at: -(search.tried[at].goodput_per_s or 0.0)):
        found = search.tried[at].goodput_per_s or 0.0
        fleet = streams.builder.fleet(parts[at])
        goods = [partial(stream.keeps, fleet) for stream in streams.replications]
        low, high = streams.goodput_interval(goods, found)
        claimed = min(found, low) or found
        cells, value = tuple((one,) for one in parts), claimed * streams.factor
        done = ends_of(search), effort_of(search)
        result = SimulatedChoice(search, cells, at, claimed, (low, high), search.bound, value, *done)
        try:
            return plan_of(streams, outcome, result)
        except Unplaceable:
            continue
    raise no_placement(streams, proved=search.bound == 0.0)


def _with_favourite(search: PlacementSearch, streams: LoadStreams) -> PlacementSearch:
    """The search with the goodput of what steady state prefers, even where one run had beaten it."""
    at = search.steady_best
    if at is None or search.tried[at].how != "dominated":
        return search
    (draws,), (slo,) = streams.mixture.draws, streams.mixture.slos
    found = goodput(search.placements[at].fleet(), draws, slo, most_per_s=search.tried[at].bound_per_s)
    tried = list(search.tried)
    tried[at] = replace(tried[at], how="simulated", goodput_per_s=found.rate_per_s)
    return replace(search, tried=tuple(tried), runs=search.runs + found.runs)


def _least(outcome: Outcome, streams: LoadStreams) -> Envelope:
    """The cheapest placement that keeps the limits at the rate asked for, on the draws and close to it on others."""
    rate, candidates = streams.asked_per_s, outcome.formulated.candidates
    (draws,), (slo,) = streams.mixture.draws, streams.mixture.slos
    rate_bound = RateBound(draws, required(slo))
    found = {
        one.counts: one for size in range(1, streams.gpus + 1) for one in list_placements(candidates, size, outcome)
    }
    parts = tuple(sorted(found.values(), key=lambda one: (price_of(outcome, (one,)), -one.steady_per_s)))
    tried: list[PlacementOutcome] = []
    bound = math.inf
    for at, one in enumerate(parts):
        fleet = streams.builder.fleet(one)
        most = rate_bound.most_rate(fleet)
        if most < rate:
            tried.append(PlacementOutcome("excluded", most))
            continue
        price = price_of(outcome, (one,))
        bound = min(bound, price)
        good = keeps(fleet, draws, slo, rate)
        tried.append(PlacementOutcome("simulated", most, rate) if good else PlacementOutcome("dominated", most))
        if not good or not all(stream.keeps(fleet, SURE * rate) for stream in streams.replications):
            continue
        placements = tuple(_placement(streams, each, 1.0) for each in parts[: at + 1])
        search = PlacementSearch(placements, tuple(tried), at, len(tried))
        cells = tuple((each,) for each in parts)
        result = SimulatedChoice(search, cells, at, rate, None, bound, price, ends_of(search), effort_of(search))
        try:
            return plan_of(streams, outcome, result)
        except Unplaceable:
            continue
    raise no_placement(streams, proved=math.isinf(bound))


def _placement(streams: LoadStreams, parts: Deployment, weight: float) -> Placement:
    name = name_of(streams.builder.candidates, parts)
    return Placement(name, lambda: streams.builder.fleet(parts), weight, parts.steady_per_s)

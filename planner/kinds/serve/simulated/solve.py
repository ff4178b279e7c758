"""Solves a serving problem by simulation: the placement of highest goodput, or the cheapest that keeps the SLO.

The steady-state mix is the incumbent; every other placement is excluded by a rate bound, dominated in a run, or
simulated to its goodput (`planner.simulate.goodput.placements`). A plan claims no more than the lower end of the
interval of its goodput over independent streams, and carries the bound that no simulation of any placement on the draws
exceeds.
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
    groups_of,
    no_placement,
    plan_of,
    price_of,
    priced_groups,
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
    limits.tell("simulating placements")
    maximising = outcome.formulated.problem.maximising
    if len(setting.targets) > 1:
        from planner.kinds.serve.simulated.partitions import best_partition, cheapest_partition

        return best_partition(outcome, streams) if maximising else cheapest_partition(outcome, streams)
    return _most(outcome, streams) if maximising else _least(outcome, streams)


def _most(outcome: Outcome, streams: LoadStreams) -> Envelope:
    """The placement of the highest goodput on all GPUs at hand."""
    (draws,), (slo,) = streams.mixture.draws, streams.mixture.slos
    deployments = list_placements(outcome.formulated.candidates, streams.gpus, outcome)
    streams.require_long_enough(deployments[:1])
    wanted = streams.asked_per_s
    placements = [_placement(streams, deployment, streams.factor) for deployment in deployments]
    rate_bound = RateBound(draws, required(slo))
    search = search_placements(placements, draws, slo, most_per_s=wanted, most_tried=MOST_TRIED, rate_bound=rate_bound)
    search = _with_incumbent(search, streams)
    ranked = [index for index, deployment in enumerate(search.tried) if deployment.goodput_per_s]
    for index in sorted(ranked, key=lambda index: -(search.tried[index].goodput_per_s or 0.0)):
        goodput_per_s = search.tried[index].goodput_per_s or 0.0
        fleet = streams.builder.fleet(deployments[index])
        goods = [partial(stream.keeps, fleet) for stream in streams.replications]
        low, high = streams.goodput_interval(goods, goodput_per_s)
        claimed = min(goodput_per_s, low) or goodput_per_s
        cells, value = tuple((deployment,) for deployment in deployments), claimed * streams.factor
        done = ends_of(search), effort_of(search), groups_of(search)
        result = SimulatedChoice(search, cells, index, claimed, (low, high), search.bound, value, *done)
        try:
            return plan_of(streams, outcome, result)
        except Unplaceable:
            continue
    raise no_placement(streams, proved=search.bound == 0.0)


def _with_incumbent(search: PlacementSearch, streams: LoadStreams) -> PlacementSearch:
    """The search with the goodput of what steady state prefers, even where one run had excluded it."""
    index = search.steady_best
    if index is None or search.tried[index].how != "dominated":
        return search
    (draws,), (slo,) = streams.mixture.draws, streams.mixture.slos
    simulated = goodput(search.placements[index].fleet(), draws, slo, most_per_s=search.tried[index].bound_per_s)
    tried = list(search.tried)
    tried[index] = replace(tried[index], how="simulated", goodput_per_s=simulated.rate_per_s)
    return replace(search, tried=tuple(tried), runs=search.runs + simulated.runs)


def _least(outcome: Outcome, streams: LoadStreams) -> Envelope:
    """The cheapest placement that keeps the limits at the rate asked for, on the draws and close to it on others."""
    rate, candidates = streams.asked_per_s, outcome.formulated.candidates
    (draws,), (slo,) = streams.mixture.draws, streams.mixture.slos
    rate_bound = RateBound(draws, required(slo))
    by_counts = {
        deployment.counts: deployment
        for size in range(1, streams.gpus + 1)
        for deployment in list_placements(candidates, size, outcome)
    }
    deployments = tuple(sorted(by_counts.values(), key=lambda d: (price_of(outcome, (d,)), -d.steady_per_s)))
    prices = [price_of(outcome, (deployment,)) for deployment in deployments]
    tried: list[PlacementOutcome] = []
    bound = math.inf
    for index, deployment in enumerate(deployments):
        fleet = streams.builder.fleet(deployment)
        most = rate_bound.most_rate(fleet)
        if most < rate:
            tried.append(PlacementOutcome("excluded", most))
            continue
        price = prices[index]
        bound = min(bound, price)
        good = keeps(fleet, draws, slo, rate)
        tried.append(PlacementOutcome("simulated", most, rate) if good else PlacementOutcome("dominated", most))
        if not good or not all(stream.keeps(fleet, SURE * rate) for stream in streams.replications):
            continue
        placements = tuple(_placement(streams, each, 1.0) for each in deployments[: index + 1])
        search = PlacementSearch(placements, tuple(tried), index, len(tried))
        cells = tuple((each,) for each in deployments)
        done = ends_of(search), effort_of(search), priced_groups(search, prices)
        result = SimulatedChoice(search, cells, index, rate, None, bound, price, *done)
        try:
            return plan_of(streams, outcome, result)
        except Unplaceable:
            continue
    raise no_placement(streams, proved=math.isinf(bound))


def _placement(streams: LoadStreams, deployment: Deployment, weight: float) -> Placement:
    name = name_of(streams.builder.candidates, deployment)
    return Placement(name, lambda: streams.builder.fleet(deployment), weight, deployment.steady_per_s)

"""Simulated options of a graph's stages are the cheapest: equal to every combination simulated from the definition."""

import heapq
import itertools
import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from planner.arrays import Floats
from planner.errors import PlannerError
from planner.solvers.result import Status
from planner.solvers.workflow.chance import ChanceProblem, StageOptions, cheapest_options
from planner.solvers.workflow.simulated_graph import (
    SimulatedGraph,
    SimulatedOption,
    SimulatedStage,
    Simulations,
    TimeLimit,
    Times,
    cheapest_simulated,
    least_taken,
)

REQUESTS = 12


def _queue(service: Sequence[float], servers: int) -> Callable[[Floats], Times]:
    """First come, first served, in plain Python."""

    def run(ready: Floats) -> Times:
        free, end = [0.0] * servers, np.empty(len(ready))
        for r in sorted(range(len(ready)), key=lambda r: (ready[r], r)):
            begin = max(heapq.heappop(free), float(ready[r]))
            end[r] = begin + service[r]
            heapq.heappush(free, float(end[r]))
        return Times(end - 0.25 * np.array(service), end)

    return run


def _drawn(seed: int, *, queues: bool = True) -> SimulatedGraph:
    draw = random.Random(seed)
    stages = []
    for s in range(draw.randint(2, 4)):
        parents = tuple(p for p in range(s) if draw.random() < 0.6)
        options = []
        for _ in range(draw.randint(2, 3)):
            service = np.array([draw.uniform(0.1, 2.0) for _ in range(REQUESTS)])
            servers = draw.randint(1, 3) if queues else REQUESTS
            first = 0.75 * service
            options.append(
                SimulatedOption(
                    draw.randint(1, 9), _queue(service.tolist(), servers), Times(first, service), (draw.randint(0, 3),)
                )
            )
        stages.append(SimulatedStage(parents, tuple(options)))
    arrival = np.cumsum([draw.expovariate(1.0) for _ in range(REQUESTS)])
    limits = [TimeLimit(draw.uniform(2.0, 9.0), draw.choice((0.5, 0.75, 1.0)))]
    if draw.random() < 0.4:
        limits.append(TimeLimit(draw.uniform(2.0, 8.0), 0.6, of_first=True))
    return SimulatedGraph(tuple(stages), arrival, np.arange(REQUESTS) >= 2, tuple(limits), (draw.randint(3, 9),))


def _enumerated(graph: SimulatedGraph) -> float | None:
    """The least cost of all combinations that keep limits and resources."""
    best = None
    for chosen in itertools.product(*(range(len(stage.options)) for stage in graph.stages)):
        rows = [stage.options[option] for stage, option in zip(graph.stages, chosen, strict=True)]
        ends: list[Floats] = []
        firsts: list[Floats] = []
        for stage, row in zip(graph.stages, rows, strict=True):
            ready = np.max([graph.arrival_s_R, *(ends[p] for p in stage.parents)], axis=0)
            times = row.run(ready)
            firsts.append(times.first_s_R)
            ends.append(times.end_s_R)
        waited = {p for stage in graph.stages for p in stage.parents}
        last = [s for s in range(len(graph.stages)) if s not in waited]
        kept = sum(row.uses[0] for row in rows) <= graph.available[0]
        for limit in graph.limits:
            taken = np.max([(firsts if limit.of_first else ends)[s] for s in last], axis=0) - graph.arrival_s_R
            kept = kept and np.mean(taken[graph.judged_R] <= limit.bound_s) >= limit.share - 1e-12
        cost = sum(row.cost for row in rows)
        if kept and (best is None or cost < best):
            best = cost
    return best


def test_the_cheapest_options_are_those_of_an_enumeration() -> None:
    answers = 0
    for seed in range(100):
        graph = _drawn(seed)
        result, best = cheapest_simulated(graph), _enumerated(graph)
        assert (result.status is Status.OPTIMAL) == (best is not None), seed
        assert result.objective == best, seed
        answers += best is not None
    assert 20 < answers < 100


def test_without_queues_the_cheapest_are_those_under_a_chance_of_lateness() -> None:
    for seed in range(30):
        drawn = _drawn(seed, queues=False)
        limit = drawn.limits[0]
        graph = SimulatedGraph(drawn.stages, 0.0 * drawn.arrival_s_R, np.ones(REQUESTS, bool), (limit,))
        rows = tuple(
            StageOptions(
                stage.parents,
                np.array([option.cost for option in stage.options]),
                np.array([option.alone.end_s_R for option in stage.options]),
            )
            for stage in drawn.stages
        )
        other = cheapest_options(ChanceProblem(rows, limit.bound_s, limit.share))
        assert cheapest_simulated(graph).objective == other.objective, seed


def test_no_options_are_faster_than_the_least_times() -> None:
    for seed in range(20):
        graph = _drawn(seed)
        least, simulations = least_taken(graph), Simulations(graph)
        for chosen in itertools.product(*(range(len(stage.options)) for stage in graph.stages)):
            taken = graph.taken(simulations.times(chosen))
            assert (taken.end_s_R >= least.end_s_R - 1e-12).all()
            assert (taken.first_s_R >= least.first_s_R - 1e-12).all()


def test_a_stage_is_simulated_once_for_what_is_before_it() -> None:
    graph = _drawn(3)
    simulations = Simulations(graph)
    for chosen in itertools.product(*(range(len(stage.options)) for stage in graph.stages)):
        simulations.times(chosen)
    counts = [len(stage.options) for stage in graph.stages]
    assert simulations.runs <= sum(int(np.prod(counts[: s + 1])) for s in range(len(counts)))
    before = simulations.runs
    simulations.times([0] * len(counts))
    assert simulations.runs == before


def test_a_time_limit_leaves_a_bound_that_nothing_undercuts() -> None:
    graph = _drawn(1)
    stopped = cheapest_simulated(graph, time_limit_s=0.0)
    best = _enumerated(graph)
    assert stopped.status is Status.UNKNOWN
    assert best is None or (stopped.bound is not None and stopped.bound <= best)


def test_stages_without_options_or_out_of_order_are_refused() -> None:
    arrival, judged = np.zeros(2), np.ones(2, bool)
    option = SimulatedOption(1.0, _queue([1.0, 1.0], 1), Times(np.ones(2), np.ones(2)))
    for stage, what in ((SimulatedStage((), ()), "no option"), (SimulatedStage((0,), (option,)), "waits for 0")):
        with pytest.raises(PlannerError, match=what):
            SimulatedGraph((stage,), arrival, judged, (TimeLimit(1.0, 0.5),))

"""Requests of a workflow drawn: when they come, and what each brings to every stage. R request, S stage."""

import math
from dataclasses import dataclass

import numpy as np

from planner.arrays import Bools, Floats, Ints
from planner.kinds.workflow.graph.setting import GraphSetting
from planner.kinds.workflow.graph.transfers import stated_s
from planner.kinds.workflow.latency_options import LatencySpec
from planner.kinds.workflow.stage_options import ServeSpec
from planner.problem.schema import WorkloadSpec
from planner.simulate.plans.workload import drawn_lengths
from planner.simulate.requests.arrivals import arrivals

WARM_UP = 0.1  # of a stream, which begins with every queue empty
SPLIT = 20  # scenarios from which on some are kept for judging


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """`normal_SR` are standard normal, alike across stages as far as the problem says; `tokens` by stage served.

    `scenario_SR` are numbers of scenarios: one for all stages of a request, or one for each.
    """

    arrival_s_R: Floats
    judged_R: Bools
    normal_SR: Floats
    scenario_SR: Ints
    tokens: dict[int, tuple[Ints, Ints]]

    def calls_s(self, stage: int, latency: LatencySpec, order: tuple[str, ...] = ()) -> Floats:
        """The time of every request's call [R], with clusters beyond GPU memory in this order."""
        if latency.samples_s is not None:
            return np.asarray(np.array(latency.samples_s)[self.scenario_SR[stage]], dtype=np.float64)
        if latency.transfers is not None:
            return np.full(len(self.arrival_s_R), stated_s(latency.transfers, order))
        assert latency.mean_s is not None
        variance = math.log1p(latency.cv**2)
        return np.asarray(latency.mean_s * np.exp(math.sqrt(variance) * self.normal_SR[stage] - variance / 2.0))


def draw(setting: GraphSetting, seed: int, *, fresh: bool) -> Stream:
    """The stream of a seed. Scenarios are of those that are judged by where `fresh`, else those chosen on."""
    if setting.every_scenario:
        return _every_scenario(setting, fresh=fresh)
    count, stages = setting.options.simulated_requests, len(setting.stages)
    rng = np.random.default_rng(seed)
    shared = setting.options.correlation
    own, common = rng.standard_normal((stages, count)), rng.standard_normal(count)
    return Stream(
        _arrivals(setting, count, seed),
        np.arange(count) >= int(WARM_UP * count),
        math.sqrt(1.0 - shared) * own + math.sqrt(shared) * common,
        _scenario_numbers(setting, rng, fresh=fresh),
        _tokens(setting, count, rng),
    )


def _every_scenario(setting: GraphSetting, *, fresh: bool) -> Stream:
    """A request in every scenario, where none waits for another and nothing is drawn."""
    known, stages = _scenarios(setting, fresh=fresh), len(setting.stages)
    shape = (stages, len(known))
    judged_R = np.ones(len(known), dtype=bool)
    return Stream(np.zeros(len(known)), judged_R, np.zeros(shape), np.broadcast_to(known, shape), {})


def _arrivals(setting: GraphSetting, count: int, seed: int) -> Floats:
    load = setting.workload.load
    assert load is not None
    if load.arrival_cv > 0.0:
        return arrivals("gamma", setting.rate_per_s, count, cv=load.arrival_cv, seed=seed + 1)
    return np.arange(1, count + 1) / setting.rate_per_s


def _scenario_numbers(setting: GraphSetting, rng: np.random.Generator, *, fresh: bool) -> Ints:
    known, count, stages = _scenarios(setting, fresh=fresh), setting.options.simulated_requests, len(setting.stages)
    if setting.options.scenarios == "apart":
        return np.asarray(rng.choice(known, (stages, count)))
    return np.broadcast_to(rng.choice(known, count), (stages, count))


def scenarios_judged(setting: GraphSetting) -> tuple[int, bool]:
    """How many scenarios plans are judged by, and whether they are others than those that are chosen on."""
    fresh, chosen = (_scenarios(setting, fresh=each) for each in (True, False))
    return len(fresh), not set(fresh.tolist()) & set(chosen.tolist())


def _scenarios(setting: GraphSetting, *, fresh: bool) -> Ints:
    """Numbers of the scenarios: half of them are chosen on and half judged by, where there are enough."""
    count = next((count for _, count in setting.options.sampled()), 1)
    if count < SPLIT:
        return np.arange(count)
    mixed = np.random.default_rng(setting.resolved.problem.seed).permutation(count)
    return np.sort(mixed[: count // 2] if fresh else mixed[count // 2 :])


def _tokens(setting: GraphSetting, count: int, rng: np.random.Generator) -> dict[int, tuple[Ints, Ints]]:
    """Lengths of every stage served; those of the workload are the same in all stages that name none."""
    sides = ("input_tokens", "output_tokens")
    whole = {side: drawn_lengths(setting.workload, side, count, rng) for side in sides}
    tokens = {}
    for index, stage in enumerate(setting.stages):
        if stage.serve is not None:
            spec = lengths_of(setting, stage.serve)
            given = {side: getattr(stage.serve, side) is not None for side in sides}
            drawn = [drawn_lengths(spec, side, count, rng) if given[side] else whole[side] for side in sides]
            tokens[index] = (drawn[0], drawn[1])
    return tokens


def lengths_of(setting: GraphSetting, serve: ServeSpec) -> WorkloadSpec:
    """The calls of a stage as a workload, as long as those of the whole where the stage says nothing."""
    given = {side: getattr(serve, side) for side in ("input_tokens", "output_tokens")}
    return setting.workload.model_copy(update={side: value for side, value in given.items() if value is not None})

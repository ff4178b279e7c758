"""The options of all stages: the cheapest on one stream, held against others that nothing was chosen on."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from pydantic import JsonValue

from planner.documents.units import format_si
from planner.errors import Conflict, Infeasible, Stopped
from planner.kinds.workflow.graph.candidates import Candidate, Engines, candidates_of, graph_on
from planner.kinds.workflow.graph.draws import Stream, draw
from planner.kinds.workflow.graph.setting import GraphSetting
from planner.kinds.workflow.graph.transfers import fastest_order
from planner.progress import Limits
from planner.solvers.result import Status
from planner.solvers.workflow.cover import Cover
from planner.solvers.workflow.simulated_graph import (
    SimulatedGraph,
    Simulations,
    TimeLimit,
    Times,
    cheapest_simulated,
    cost_of,
    least_taken,
    quantile_s,
    share_within,
)

SEEDS_APART = 100_003  # of one stream and the next
FRESH = range(1, 7)  # streams that the figures of a plan are of
CHECKED = range(7, 15)  # streams that a check simulates
ROUNDS = 12  # of choices, each to keep a larger share on the stream that is chosen on
T_ONE_SIDED = 2.015  # 95 % of Student's distribution with five degrees of freedom: six streams
ROUNDING = 1e-9  # of a share
MARGIN = 0.002  # added to that share beyond what fresh streams fell short by


@dataclass(frozen=True, slots=True, eq=False)
class Reached:
    """What choices reach on streams: times of the whole, and of every stage, of all judged requests."""

    whole: Times
    stages: tuple[Times, ...]
    streams: tuple[Times, ...]  # of the whole, one by one

    def share(self, limit: TimeLimit) -> float:
        """Of all requests that are in time."""
        return share_within(limit, self.whole)

    def sure(self, limit: TimeLimit) -> float:
        """What the share is at least, in 95 of 100 sets of as many streams."""
        shares = [share_within(limit, each) for each in self.streams]
        error = float(np.std(shares, ddof=1)) / math.sqrt(len(shares)) if len(shares) > 1 else 0.0
        return self.share(limit) - T_ONE_SIDED * error

    def keeps(self, limits: tuple[TimeLimit, ...]) -> bool:
        return all(self.sure(limit) >= limit.share - ROUNDING for limit in limits)


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """The option of every stage, what they reach on fresh streams, and the cost below which none keep the limits."""

    rows: tuple[Candidate, ...]
    reached: Reached
    bound: float | None
    cover: Cover
    axes: Mapping[str, list[JsonValue]]
    orders: dict[str, JsonValue] = field(default_factory=dict)  # makespans of clusters, and what none is below


def streams_of(setting: GraphSetting, numbers: range) -> tuple[Stream, ...]:
    """Fresh streams of these numbers."""
    seed = setting.resolved.problem.seed
    return tuple(draw(setting, seed + SEEDS_APART * number, fresh=True) for number in numbers)


def chosen_stream(setting: GraphSetting) -> Stream:
    """The stream that options are chosen on."""
    return draw(setting, setting.resolved.problem.seed, fresh=False)


def best_choice(setting: GraphSetting, limits: Limits) -> Choice:
    """The cheapest options that keep the limits on the stream chosen on, and on fresh ones.

    Where fresh streams show that too few requests are in time, a larger share is asked for on the stream chosen on.
    Raises Infeasible where no options keep the limits, Stopped at the time limit.
    """
    candidates = candidates_of(setting)
    chosen, fresh = chosen_stream(setting), streams_of(setting, FRESH)
    engines = Engines(setting, (chosen, *fresh))
    graph = graph_on(setting, candidates, engines, chosen)
    _require_possible(setting, graph)
    simulations = Simulations(graph)
    bound, cover = None, Cover()
    for _ in range(ROUNDS):
        simulations.graph = graph
        own = Cover() if bound is not None else cover
        result = cheapest_simulated(graph, simulations, time_limit_s=limits.time_limit_s, cover=own)
        if result.status is Status.UNKNOWN:
            raise Stopped(result.stop_reason, bound=bound if bound is not None else result.bound)
        if result.solution is None:
            raise _none(setting, graph, simulations, proved=bound is None)
        _require_affordable(setting, result.objective)
        bound = result.objective if bound is None else bound
        rows = tuple(candidates[stage][option] for stage, option in enumerate(result.solution))
        told = reached(setting, rows, engines, fresh)
        if told.keeps(setting.limits):
            return Choice(rows, told, bound, cover, _axes(setting, candidates), _orders(setting))
        graph = replace(graph, limits=_stricter(setting, graph, told))
    raise _none(setting, graph, simulations, proved=False)


def _axes(setting: GraphSetting, candidates: list[list[Candidate]]) -> dict[str, list[JsonValue]]:
    """The options of every stage that were chosen from, in words."""
    return {stage.name: [row.text for row in rows] for stage, rows in zip(setting.stages, candidates, strict=True)}


def _orders(setting: GraphSetting) -> dict[str, JsonValue]:
    """Of options beyond GPU memory, as `stage.option`: the makespan of their order, and what no order is below."""
    return {
        f"{stage.name}.{option.name}": {"makespan_s": order.makespan_s, "bound_s": order.bound_s}
        for stage in setting.stages
        for option in stage.options or ()
        if option.latency.transfers is not None
        for order in (fastest_order(option.latency.transfers),)
    }


def reached(
    setting: GraphSetting, rows: tuple[Candidate, ...], engines: Engines, streams: tuple[Stream, ...]
) -> Reached:
    """What one option a stage reaches on streams."""
    whole, stages = [], []
    for stream in streams:
        graph = graph_on(setting, [[row] for row in rows], engines, stream, searched=False)
        times = Simulations(graph).times([0] * len(rows))
        whole.append(graph.taken(times))
        stages.append([_taken(graph, s, times) for s in range(len(rows))])
    return Reached(_joined(whole), tuple(_joined(list(each)) for each in zip(*stages, strict=True)), tuple(whole))


def _taken(graph: SimulatedGraph, stage: int, times: list[Times]) -> Times:
    """From ready to first output and end of one stage, of judged requests."""
    ready, own = graph.ready(stage, times), times[stage]
    with np.errstate(invalid="ignore"):
        first, end = own.first_s_R - ready, own.end_s_R - ready
    return Times(first[graph.judged_R], end[graph.judged_R])


def _joined(times: list[Times]) -> Times:
    return Times(np.concatenate([each.first_s_R for each in times]), np.concatenate([each.end_s_R for each in times]))


def _stricter(setting: GraphSetting, graph: SimulatedGraph, told: Reached) -> tuple[TimeLimit, ...]:
    """Limits for larger shares, by what fresh streams fell short."""
    rows = []
    for limit, asked in zip(setting.limits, graph.limits, strict=True):
        short = limit.share - told.sure(limit)
        rows.append(replace(asked, share=min(asked.share + short + MARGIN, 1.0)) if short > 0.0 else asked)
    return tuple(rows)


def limit_text(setting: GraphSetting, limit: TimeLimit) -> str:
    """A limit as the problem says it."""
    time = "ttft" if limit.of_first else "latency"
    return f"{setting.workload.name}: p{100 * limit.share:g} {time} <= {format_si(limit.bound_s, 's')}"


def _require_possible(setting: GraphSetting, graph: SimulatedGraph) -> None:
    """Raises Infeasible, with the least possible, for limits below what the fastest options take without any wait."""
    least = least_taken(graph)
    broken = [limit for limit in setting.limits if share_within(limit, least) < limit.share]
    if not broken:
        return
    conflict: list[Conflict] = [
        {
            "limit": f"{limit_text(setting, limit)} (the critical path with the fastest option of every stage and no "
            "wait is longer)",
            "nearest": f"{'ttft' if limit.of_first else 'latency'} {format_si(quantile_s(limit, least), 's')}",
        }
        for limit in broken
    ]
    raise Infeasible(conflict, proved=True)


def _require_affordable(setting: GraphSetting, cost: float | None) -> None:
    """Raises Infeasible where the cheapest options cost more than the problem's cap."""
    cap = setting.resolved.problem.limits.usd_per_hour
    if cap is None or cost is None or cost <= cap:
        return
    conflict: list[Conflict] = [{"limit": limit_text(setting, limit), "nearest": ""} for limit in setting.limits]
    conflict.append({"limit": f"price <= {cap:.4g} USD/h", "nearest": f"{cost:.4g} USD/h"})
    raise Infeasible(conflict, proved=True)


def _none(setting: GraphSetting, graph: SimulatedGraph, simulations: Simulations, *, proved: bool) -> Infeasible:
    """No options do: what the dearest that the pools hold reach of each limit."""
    dearest = max((options for options in _dearest(graph)), key=lambda options: cost_of(graph, options), default=None)
    conflict: list[Conflict] = []
    for limit in setting.limits:
        nearest = ""
        if dearest is not None:
            value = quantile_s(limit, graph.taken(simulations.times(dearest)))
            nearest = f"{'ttft' if limit.of_first else 'latency'} {format_si(value, 's')}" if np.isfinite(value) else ""
        conflict.append({"limit": limit_text(setting, limit), "nearest": nearest})
    conflict.append({"limit": f"{setting.workload.name}: rate {setting.rate_per_s:.3g}/s", "nearest": ""})
    pools = " and ".join(f"{len(p.job_devices)} GPUs of {p.name}" for p in setting.resolved.pools)
    cost = "" if dearest is None else f"{cost_of(graph, dearest):.4g} USD/h for the dearest options"
    held = f"{pools}, and the options stated" if pools else "the options stated"
    conflict.append({"limit": held, "nearest": cost})
    return Infeasible(conflict, proved=proved)


def _dearest(graph: SimulatedGraph) -> list[tuple[int, ...]]:
    """The dearest option of every stage, taken stage after stage as far as resources last."""
    from planner.solvers.workflow.simulated_graph import fits

    options: tuple[int, ...] = ()
    for stage in graph.stages:
        order = sorted(range(len(stage.options)), key=lambda option: -stage.options[option].cost)
        fitting = [option for option in order if fits(graph, (*options, option))]
        if not fitting:
            return []
        options = (*options, fitting[0])
    return [options]

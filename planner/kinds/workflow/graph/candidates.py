"""Options of the stages of a workflow as data: functions with their servers, and serving plans. R request."""

from dataclasses import dataclass, field, replace

import numpy as np

from planner.arrays import Floats, Ints
from planner.errors import PlannerError
from planner.kinds.workflow.graph.draws import Stream
from planner.kinds.workflow.graph.serving import Served, serving_plans
from planner.kinds.workflow.graph.setting import GraphSetting
from planner.kinds.workflow.graph.transfers import fastest_order
from planner.kinds.workflow.options import SERVED_ON
from planner.kinds.workflow.stage_options import FunctionOption
from planner.simulate.fleet.instances import Fleet
from planner.simulate.fleet.shared_grids import SharedGrids
from planner.simulate.plans.fleet import fleet_of_plan
from planner.simulate.plans.setting import Policies
from planner.simulate.requests.stream import Requests, all_requests
from planner.simulate.run.engine import simulate
from planner.solvers.workflow.simulated_graph import SimulatedGraph, SimulatedOption, SimulatedStage, Times

SECONDS_PER_HOUR = 3600.0
NO_TIME = Times(np.zeros(1), np.zeros(1))
APART_S = 1000.0  # between requests that are alone on an engine
LOST_S = 1e-6  # what doubles lose of times after so long a stream


@dataclass(frozen=True, slots=True)
class Candidate:
    """An option of a stage: a function with a number of servers (none: calls never wait), or a serving plan."""

    usd_per_hour: float
    function: FunctionOption | None = None
    servers: int | None = None
    served: Served | None = None
    order: tuple[str, ...] = ()  # of clusters beyond GPU memory

    @property
    def name(self) -> str:
        """As the problem calls it."""
        if self.function is not None:
            return self.function.name
        assert self.served is not None
        return f"{SERVED_ON}{self.served.decision.roles[0].pool}"

    @property
    def text(self) -> str:
        """With its servers, or the limit on its p95 that it is for."""
        if self.served is not None:
            what = "with first tokens within" if self.served.of_first else "within"
            return f"{self.name} {what} {self.served.limit_s:.6g} s"
        return self.name if self.servers is None else f"{self.servers} x {self.name}"


@dataclass(slots=True, eq=False)
class Engines:
    """Fleets of serving plans, with step times for the requests of all streams that will be simulated."""

    setting: GraphSetting
    streams: tuple[Stream, ...]
    _grids: dict[int, SharedGrids] = field(default_factory=dict)
    _fleets: dict[tuple[int, int], Fleet] = field(default_factory=dict)

    def fleet(self, stage: int, served: Served) -> Fleet:
        key = (stage, id(served))
        if key not in self._fleets:
            streams = [_calls(stream, stage, np.zeros(len(stream.arrival_s_R))) for stream in self.streams]
            calibration = self.setting.resolved.problem.costs.calibration
            planned = fleet_of_plan(
                served.envelope,
                served.decision,
                all_requests(streams),
                Policies(),
                calibration=None if calibration in ("default", "none") else calibration,
                grids=self._grids.setdefault(stage, SharedGrids()),
            )
            self._fleets[key] = planned.fleet
        return self._fleets[key]

    def times(self, stage: int, served: Served, stream: Stream, ready_s_R: Floats) -> Times:
        """Calls that come to the engines of a stage as they are ready; those that never are have no end either."""
        first, end = (np.full(len(ready_s_R), np.inf) for _ in range(2))
        order = np.argsort(ready_s_R, kind="stable")
        order = order[np.isfinite(ready_s_R[order])]
        result = simulate(self.fleet(stage, served), _calls(stream, stage, ready_s_R, order))
        first[order] = np.where(result.complete, result.first_token_s, np.inf)
        end[order] = np.where(result.complete, result.finished_s, np.inf)
        return Times(first, end)

    def alone(self, stage: int, served: Served, stream: Stream) -> Times:
        """What calls take with the engines to themselves."""
        come_s_R = np.asarray(APART_S * np.arange(1, len(stream.arrival_s_R) + 1), dtype=np.float64)
        times = self.times(stage, served, stream, come_s_R)
        first, end = times.first_s_R - come_s_R - LOST_S, times.end_s_R - come_s_R - LOST_S
        return Times(np.maximum(first, 0.0), np.maximum(end, 0.0))


def _calls(stream: Stream, stage: int, ready_s_R: Floats, order: "Ints | slice" = slice(None)) -> Requests:
    inputs, outputs = stream.tokens[stage]
    return Requests.open_stream(ready_s_R[order], inputs[order], outputs[order])


def candidates_of(setting: GraphSetting) -> list[list[Candidate]]:
    """By stage; raises Infeasible for a model that no pool serves."""
    return [
        functions_of(setting, stage) if spec.serve is None else served_candidates(serving_plans(setting, stage))
        for stage, spec in enumerate(setting.stages)
    ]


def served_candidates(plans: list[Served]) -> list[Candidate]:
    """Serving plans as options of a stage."""
    return [Candidate(served.usd_per_hour, served=served) for served in plans]


def functions_of(setting: GraphSetting, stage: int) -> list[Candidate]:
    """Options that find enough, with each number of servers, and clusters beyond GPU memory in the fastest order."""
    spec = setting.stages[stage]
    rows = []
    for option in spec.options or ():
        if spec.least_recall is None or (option.recall or 0.0) >= spec.least_recall:
            calls = option.usd_per_call * setting.rate_per_s * SECONDS_PER_HOUR
            order = () if option.latency.transfers is None else fastest_order(option.latency.transfers).names
            rows += [
                Candidate(calls + option.usd_per_hour * (servers or 0), option, servers, order=order)
                for servers in option.servers or (None,)
                if setting.options.may(spec.name, option.name, servers)
            ]
    if not rows:
        place = setting.resolved.where(("options", "choices", spec.name))
        what = f"no option of stage `{spec.name}` is left to choose from"
        raise PlannerError(what, where=place, hint="name other options or servers of it")
    return rows


def graph_on(
    setting: GraphSetting,
    candidates: list[list[Candidate]],
    engines: Engines,
    stream: Stream,
    *,
    searched: bool = True,
) -> SimulatedGraph:
    """The graph with its options simulated on a stream; the GPUs of pools are what options share.

    Only graphs that are `searched` need what requests take alone.
    """
    graph = SimulatedGraph(
        tuple(
            SimulatedStage(
                parents, tuple(_option(setting, engines, stream, stage, row, searched=searched) for row in rows)
            )
            for stage, (parents, rows) in enumerate(zip(setting.parents, candidates, strict=True))
        ),
        stream.arrival_s_R,
        stream.judged_R,
        setting.limits,
    )
    problem, pools = setting.resolved.problem, setting.resolved.pools
    most = sum(len(pool.job_devices) for pool in pools)
    available = (*(len(pool.job_devices) for pool in pools), problem.limits.gpus or most)
    return replace(graph, available=available)


def _option(
    setting: GraphSetting, engines: Engines, stream: Stream, stage: int, row: Candidate, *, searched: bool
) -> SimulatedOption:
    pools = len(setting.resolved.pools)
    if row.served is not None:
        served = row.served
        uses = (*(served.gpus * (pool == served.pool) for pool in range(pools)), served.gpus)
        return SimulatedOption(
            row.usd_per_hour,
            lambda ready_s_R: engines.times(stage, served, stream, ready_s_R),
            engines.alone(stage, served, stream) if searched else NO_TIME,
            uses,
        )
    assert row.function is not None
    calls_s_R, places = stream.calls_s(stage, row.function.latency, row.order), (row.servers or 0) * row.function.slots

    def run(ready_s_R: Floats) -> Times:
        end = _queued(ready_s_R, calls_s_R, places) if places else ready_s_R + calls_s_R
        return Times(end, end)

    return SimulatedOption(row.usd_per_hour, run, Times(calls_s_R, calls_s_R), (0,) * (pools + 1))


def _queued(ready_s_R: Floats, calls_s_R: Floats, places: int) -> Floats:
    """Ends of calls that take one of so many places in the order in which they are ready."""
    from planner.solvers.compiled.tandem import starts

    return np.asarray(starts(ready_s_R, calls_s_R, places) + calls_s_R)

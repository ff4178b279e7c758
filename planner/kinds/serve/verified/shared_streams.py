"""Simulates plans on the same independent streams at any load: a seed gives the draws, the load their pace.

The load of requests that come at a rate is their rate, that of clients that wait for answers is their number.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from planner.arrays import Floats
from planner.kinds.serve.options import ServeDecision
from planner.kinds.serve.simulated.load_streams import divided, drawn
from planner.kinds.serve.steady.roles_in_use import margins_in_use
from planner.kinds.serve.steady.search import ServeSetting
from planner.kinds.serve.verified.budget import Budget
from planner.plan.schema import Envelope
from planner.problem.slo import SloSpec
from planner.simulate.fleet.shared_grids import SharedGrids
from planner.simulate.plans.engines import shards_of
from planner.simulate.plans.fleet import PlannedFleet, fleet_of_plan
from planner.simulate.plans.setting import Policies
from planner.simulate.plans.simulation import STREAM_SEEDS, with_models
from planner.simulate.plans.trace_streams import TraceRows, buys_memory
from planner.simulate.plans.workload import ROUNDS
from planner.simulate.requests.stream import Requests, all_requests, together
from planner.simulate.run.attainment import Draws
from planner.simulate.run.engine import simulate_streams
from planner.simulate.run.mixture import Mixture
from planner.simulate.run.result import SimulationResult

SEARCH_STREAMS = 5  # independent ones that proposals share
MOST_ROWS = 12_000  # of a trace that a stream of the search goes through: caches fill, and forget
WHOLE = slice(None)


@dataclass(slots=True)
class SharedStreams:
    """Streams of the workloads of a problem, each with its fraction of the load, and what was simulated so far."""

    setting: ServeSetting
    fractions: tuple[float, ...]  # of the load, by workload
    budget: Budget
    runs: int = 0
    requests: int = 0
    events: int = 0
    spared_events: int = 0  # of runs asked for again
    rows: TraceRows | None = None  # whose prompts share beginnings: streams go on from one to the next
    grids: SharedGrids = field(default_factory=SharedGrids)  # of problems whose engines and lengths are alike
    _drawn: dict[tuple[int, int, int], list[Mixture]] = field(default_factory=dict)
    _traced: dict[tuple[int, int], Requests] = field(default_factory=dict)
    _fleets: dict[tuple[int, int, int, int, int], tuple[ServeDecision, PlannedFleet]] = field(default_factory=dict)

    def slos(self, decision: ServeDecision) -> tuple[SloSpec, ...]:
        """The limits by workload, divided by the margins of their confidence for the roles of a decision."""
        setting, slos = self.setting, []
        pools = [pool.name for pool in setting.resolved.pools]
        for workload, target in zip(setting.resolved.workloads, setting.targets, strict=True):
            sides = [
                (role.function, setting.costs_of_pool[workload.model, pools.index(role.pool)], shards_of(role))
                for role in decision.roles
                if role.model == workload.model and role.function != "ffn"
            ]
            slos.append(divided(workload.spec.slo, margins_in_use(target, sides)))
        return tuple(slos)

    @property
    def charged_events(self) -> int:
        """What counts as work done: whether runs asked for again are kept changes no answer."""
        return self.events + self.spared_events

    def least_requests(self) -> int:
        """Requests of all streams that give every client its rounds, and caches a round of the trace."""
        if self.rows is not None:
            return SEARCH_STREAMS * min(len(self.rows.trace), MOST_ROWS)
        clients = (
            target.clients / fraction
            for target, fraction in zip(self.setting.targets, self.fractions, strict=True)
            if target.clients is not None and fraction > 0.0
        )
        return SEARCH_STREAMS * ROUNDS * round(max(clients, default=0.0))

    def streams(self, count: int, seed: int, number: int = SEARCH_STREAMS) -> list[Mixture]:
        """So many independent streams of so many requests together."""
        key = count, seed, number
        if key not in self._drawn:
            each = -(-count // number)
            seeds = (seed + self.setting.resolved.problem.seed + STREAM_SEEDS * stream for stream in range(number))
            self._drawn[key] = [drawn(self.setting, self.fractions, each, 0, own) for own in seeds]
        return self._drawn[key]

    def simulate(
        self,
        plan: Envelope,
        decision: ServeDecision,
        rate_per_s: float,
        scale: float,
        count: int,
        seed: int,
        number: int = SEARCH_STREAMS,
        part: slice = WHOLE,
    ) -> Sequence[SimulationResult]:
        """Runs of a decision of a plan, one a stream of this `part`, at `scale` times its load.

        `rate_per_s` is the load of all workloads together; clients are those of the problem. Raises OutOfTime.
        """
        self.budget.require_time()
        streams = [
            self._requests(mixture, rate_per_s * scale, scale, seed + stream)
            for stream, mixture in enumerate(self.streams(count, seed, number))
        ]
        planned = self._fleet(plan, decision, streams, count, seed)
        runs = [with_models(planned, requests) for requests in streams[part]]
        results = simulate_streams(planned.fleet, runs, watch=self.budget.require_time)
        self.runs += len(results)
        self.requests += sum(len(result.requests) for result in results)
        self.events += sum(result.num_events for result in results)
        return results

    def _requests(self, mixture: Mixture, rate_per_s: float, scale: float, seed: int) -> Requests:
        """The requests of all workloads: at their rates, and of so many times their clients."""
        if self.rows is not None:
            return self._of_rows(self.rows, mixture.requests(rate_per_s).arrival_s, seed)
        targets = self.setting.targets
        if all(target.clients is None for target in targets):
            return mixture.requests(rate_per_s)
        numbers = [0 if target.clients is None else max(round(target.clients * scale), 1) for target in targets]
        if len(targets) == 1:
            (draws,), (clients,) = mixture.draws, numbers
            loop = Requests.closed_loop(draws.input_tokens, draws.output_tokens, clients=clients)
            return loop.with_hits(draws.hits).with_media(draws.media)
        return together(
            [
                _sessions(draws, clients) if clients else draws.requests(rate_per_s)
                for draws, clients in zip(mixture.draws, numbers, strict=True)
            ]
        )

    def _of_rows(self, rows: TraceRows, arrival_s: Floats, seed: int) -> Requests:
        """Rows of the trace at these times; which rows they are, and what they share, is the same at every load."""
        key = seed, len(arrival_s)
        if key not in self._traced:
            self._traced[key] = rows.requests(arrival_s, seed).with_media(self.setting.resolved.workloads[0].media)
        return replace(self._traced[key], arrival_s=arrival_s)

    def _fleet(
        self, plan: Envelope, decision: ServeDecision, streams: Sequence[Requests], count: int, seed: int
    ) -> PlannedFleet:
        """The engines of a decision with step times for the requests of these streams."""
        key = id(decision), max(stream.clients for stream in streams), count, seed, len(streams)
        if key not in self._fleets:
            costs = self.setting.resolved.problem.costs
            planned = fleet_of_plan(
                plan,
                decision,
                all_requests(streams),
                Policies(prefix_caching=buys_memory(decision)),
                profiles=costs.profiles,
                calibration=costs.calibration,
                grids=self.grids,
            )
            self._fleets[key] = decision, planned
        return self._fleets[key][1]


def _sessions(draws: Draws, clients: int) -> Requests:
    """Requests that so many clients send one after another, beside other workloads."""
    after = np.arange(len(draws)) + clients
    sessions = Requests.open_stream(np.zeros(len(draws)), draws.input_tokens, draws.output_tokens)
    chained = replace(sessions, successor=np.where(after < len(draws), after, -1), num_open=min(clients, len(draws)))
    return chained.with_hits(draws.hits).with_media(draws.media)

"""Simulates plans on the same independent streams at any load: a seed gives the draws, the load their pace."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from planner.kinds.serve.options import ServeDecision
from planner.kinds.serve.simulated.load_streams import drawn
from planner.kinds.serve.steady.search import ServeSetting
from planner.plan.schema import Envelope
from planner.problem.schema import SloSpec
from planner.simulate.judge.limits import STREAMS
from planner.simulate.plans.fleet import PlannedFleet, Policies, fleet_of_plan
from planner.simulate.plans.simulation import STREAM_SEEDS, with_models
from planner.simulate.requests.stream import all_requests
from planner.simulate.run.engine import simulate
from planner.simulate.run.mixture import Mixture
from planner.simulate.run.result import SimulationResult


@dataclass(slots=True)
class SharedStreams:
    """Streams of the workloads of a problem, each with its fraction of the load, and what was simulated so far."""

    setting: ServeSetting
    fractions: tuple[float, ...]  # of the load, by workload
    runs: int = 0
    requests: int = 0
    events: int = 0
    _drawn: dict[tuple[int, int], list[Mixture]] = field(default_factory=dict)
    _fleets: dict[tuple[int, int, int], tuple[Envelope, PlannedFleet]] = field(default_factory=dict)

    @property
    def slos(self) -> tuple[SloSpec, ...]:
        """The limits by workload, divided by the margins of their confidence."""
        return self.streams(STREAMS, 0)[0].slos

    def streams(self, count: int, seed: int) -> list[Mixture]:
        """Independent streams of so many requests together."""
        key = count, seed
        if key not in self._drawn:
            each = -(-count // STREAMS)
            seeds = (seed + self.setting.resolved.problem.seed + STREAM_SEEDS * number for number in range(STREAMS))
            self._drawn[key] = [drawn(self.setting, self.fractions, each, 0, own) for own in seeds]
        return self._drawn[key]

    def simulate(self, plan: Envelope, rate_per_s: float, count: int, seed: int) -> Sequence[SimulationResult]:
        """Runs of a plan at a rate of all workloads together, one a stream."""
        streams = [mixture.requests(rate_per_s) for mixture in self.streams(count, seed)]
        planned = self._fleet(plan, count, seed)
        results = [simulate(planned.fleet, with_models(planned, requests)) for requests in streams]
        self.runs += len(results)
        self.requests += sum(len(result.requests) for result in results)
        self.events += sum(result.num_events for result in results)
        return results

    def _fleet(self, plan: Envelope, count: int, seed: int) -> PlannedFleet:
        """The engines of a plan with step times for the requests of these streams."""
        key = id(plan), count, seed
        if key not in self._fleets:
            requests = all_requests([mixture.requests(1.0) for mixture in self.streams(count, seed)])
            costs = self.setting.resolved.problem.costs
            planned = fleet_of_plan(
                plan,
                ServeDecision.model_validate(plan.decision),
                requests,
                Policies(),
                profiles=costs.profiles,
                calibration=costs.calibration,
            )
            self._fleets[key] = plan, planned
        return self._fleets[key][1]

"""Request streams of several workloads in a fixed mix, the same for every fleet and rate. W workloads.

A rate is that of all workloads together; each has its share of it, and its own limits.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from planner.errors import PlannerError
from planner.problem.slo import SloSpec
from planner.simulate.fleet.instances import Fleet
from planner.simulate.requests.stream import Requests, together
from planner.simulate.run.attainment import Draws, kept
from planner.simulate.run.engine import simulate
from planner.simulate.run.result import SimulationResult
from planner.simulate.run.summary import saturated, waits_grow


@dataclass(frozen=True, slots=True, eq=False)
class Mixture:
    """The draws of each workload, at its share of one request a second, and what its requests must keep [W]."""

    draws: tuple[Draws, ...]
    slos: tuple[SloSpec, ...]

    def __post_init__(self) -> None:
        if not self.draws or len(self.draws) != len(self.slos):
            raise PlannerError(f"{len(self.draws)} workloads with the limits of {len(self.slos)}")

    def __len__(self) -> int:
        return len(self.draws)

    def of(self, workloads: Sequence[int]) -> "Mixture":
        """Some of the workloads, numbered anew from 0, at the rates that they have in the whole."""
        return Mixture(
            tuple(self.draws[number] for number in workloads), tuple(self.slos[number] for number in workloads)
        )

    def requests(self, rate_per_s: float) -> Requests:
        """The draws at a rate of all workloads of the whole mixture."""
        streams = [draws.requests(rate_per_s) for draws in self.draws]
        return streams[0] if len(streams) == 1 else together(streams)

    def simulate(self, fleet: Fleet, rate_per_s: float, *, seed: int = 0) -> tuple[SimulationResult, ...]:
        """A run at a rate, workload by workload; the paths of `fleet` are those of these workloads."""
        return self._parted(simulate(fleet, self.requests(rate_per_s), seed=seed))

    def keeps(self, fleet: Fleet, rate_per_s: float, *, seed: int = 0) -> bool:
        """Whether in a run at this rate each workload keeps all its limits, and waits of none of them grow."""
        result = simulate(fleet, self.requests(rate_per_s), seed=seed)
        return not saturated(result) and all(
            kept(run, slo, draws.warm_up) and not waits_grow(run)
            for run, slo, draws in zip(self._parted(result), self.slos, self.draws, strict=True)
        )

    def _parted(self, result: SimulationResult) -> tuple[SimulationResult, ...]:
        """A run, workload by workload."""
        if len(self) == 1:
            return (result,)
        return tuple(result.of_workload(workload) for workload in range(len(self)))

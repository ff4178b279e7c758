"""The partition of a fleet into cells of highest goodput: each serves some workloads with engines of its own.

Cells do not touch each other, so that a partition keeps the limits at a rate exactly where each of its cells does on
the draws of its own workloads, and its goodput is the lowest of theirs. A run of a cell counts for every partition with
it: a rate that it keeps, or breaks, is remembered, and like bisection the search takes for granted that a cell keeps
any lower rate too.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from planner.simulate.fleet.instances import Fleet
from planner.simulate.goodput.mixture_bound import MixtureRateBound
from planner.simulate.goodput.rate import SMALLEST, TOLERANCE, highest_kept
from planner.simulate.run.mixture import Mixture
from planner.solvers.set_partition import best_bottleneck, cheapest_partition


@dataclass(frozen=True, slots=True)
class Cell:
    """A fleet that could serve these workloads; its paths are theirs, in this order."""

    name: str
    fleet: Callable[[], Fleet]
    workloads: tuple[int, ...]
    gpus: int
    steady_per_s: float  # goodput by a steady-state model, as a rate of all workloads


@dataclass(slots=True)
class GoodputBracket:
    """What is known of a cell: no run keeps more than `bound_per_s`, one kept `low_per_s`, one broke `high_per_s`."""

    fleet: Fleet
    bound_per_s: float
    low_per_s: float
    high_per_s: float
    runs: int = 0


@dataclass(frozen=True, slots=True)
class CellPartition:
    """Cells that serve every workload once; no goodput is known where one broke limits at a rate that others keep."""

    cells: tuple[int, ...]
    goodput_per_s: float | None
    bound_per_s: float


@dataclass(slots=True)
class CellSearch:
    """Which partition of at most so many GPUs has the highest goodput, up to `most_per_s`."""

    cells: Sequence[Cell]
    mixture: Mixture
    gpus: int
    most_per_s: float = math.inf
    most_tried: int | None = None  # cells that are simulated
    known: list[GoodputBracket] = field(default_factory=list)
    tried: list[CellPartition] = field(default_factory=list)
    dropped: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        bounds: dict[tuple[int, ...], MixtureRateBound] = {}
        for cell in self.cells:
            rate_bound = bounds.setdefault(cell.workloads, MixtureRateBound(self.mixture.of(cell.workloads)))
            fleet = cell.fleet()
            bound = min(rate_bound.most_rate(fleet), self.most_per_s)
            self.known.append(GoodputBracket(fleet, bound, 0.0, bound))

    @property
    def bound(self) -> float:
        """The rate that no run of any partition exceeds on these draws; 0 where none has a chance."""
        chosen = self._bottleneck(range(len(self.cells)), [bracket.bound_per_s for bracket in self.known])
        return 0.0 if chosen is None else min(self.known[index].bound_per_s for index in chosen)

    @property
    def simulated(self) -> int:
        """Cells that were simulated."""
        return sum(bracket.runs > 0 for bracket in self.known)

    @property
    def runs(self) -> int:
        """Runs of cells."""
        return sum(bracket.runs for bracket in self.known)

    def best(self, preferred: tuple[int, ...] | None = None) -> CellPartition | None:
        """The partition of the highest goodput among those without a dropped cell, the preferred one simulated first.

        None where none has any. A partition is left out as soon as one of its cells has broken its limits, or cannot
        keep them, at a rate that would be better by the tolerance.
        """
        if preferred is not None and not self.dropped:
            self.simulate(preferred, 0.0)
        while True:
            candidates = [
                partition
                for partition in self.tried
                if partition.goodput_per_s and not self.dropped & set(partition.cells)
            ]
            incumbent = max(candidates, key=lambda partition: partition.goodput_per_s or 0.0, default=None)
            least = 0.0 if incumbent is None else (incumbent.goodput_per_s or 0.0) * (1.0 + TOLERANCE)
            chosen = self._promising(least)
            if chosen is None:
                return incumbent
            self.simulate(chosen, least)

    def simulate(self, chosen: tuple[int, ...], least_per_s: float) -> CellPartition:
        """The goodput of a partition, where it is at least `least_per_s`."""
        most = min(self.known[index].high_per_s for index in chosen)

        def good(rate: float) -> bool:
            return all(self.keeps(index, rate) for index in chosen)

        rate_per_s = highest_kept(good, most_per_s=most, least_per_s=least_per_s).rate_per_s
        if rate_per_s == 0.0 and least_per_s == 0.0:
            for index in chosen:
                if self.known[index].low_per_s == 0.0 and self.known[index].high_per_s <= 2.0 * SMALLEST * most:
                    self.known[index].high_per_s = 0.0
        bound = min(self.known[index].bound_per_s for index in chosen)
        self.tried.append(CellPartition(chosen, None if least_per_s > 0.0 and rate_per_s == 0.0 else rate_per_s, bound))
        return self.tried[-1]

    def keeps(self, index: int, rate_per_s: float) -> bool:
        """Whether a cell keeps the limits of its workloads at a rate, by what is known or by a run."""
        known, cell = self.known[index], self.cells[index]
        if rate_per_s <= known.low_per_s:
            return True
        if rate_per_s >= known.high_per_s and known.high_per_s < known.bound_per_s:
            return False
        known.runs += 1
        good = self.mixture.of(cell.workloads).keeps(known.fleet, rate_per_s)
        if good:
            known.low_per_s = rate_per_s
        else:
            known.high_per_s = rate_per_s
        return good

    def _promising(self, least_per_s: float) -> tuple[int, ...] | None:
        """The partition that steady state prefers of those which could still be better."""
        full = self.most_tried is not None and self.simulated >= self.most_tried
        alive = [
            index
            for index, bracket in enumerate(self.known)
            if bracket.high_per_s > least_per_s and index not in self.dropped and (bracket.runs or not full)
        ]
        promised = [
            min(max(self.cells[index].steady_per_s, self.known[index].low_per_s), self.known[index].high_per_s)
            for index in alive
        ]
        return self._bottleneck(alive, promised)

    def _bottleneck(self, places: Sequence[int], values: Sequence[float]) -> tuple[int, ...] | None:
        """Of these cells the partition whose lowest value is the highest."""
        sets, gpus = self._sets(places)
        chosen = best_bottleneck(sets, gpus, values, len(self.mixture), self.gpus, ties=values)
        return None if chosen is None else tuple(sorted(places[index] for index in chosen))

    def _sets(self, places: Sequence[int]) -> tuple[list[frozenset[int]], list[int]]:
        cells = [self.cells[index] for index in places]
        return [frozenset(cell.workloads) for cell in cells], [cell.gpus for cell in cells]

    def cheapest(self, rate_per_s: float, keeps: Callable[[int], bool]) -> tuple[int, ...] | None:
        """The partition of the fewest GPUs all of whose cells `keeps` accepts at a rate; None where there is none.

        Only cells whose bound allows the rate are asked; of equal ones those that steady state prefers.
        """
        accepted: dict[int, bool] = {}
        while True:
            left = [
                index for index in self._allowed(rate_per_s) if accepted.get(index, True) and index not in self.dropped
            ]
            chosen = self._fewest_gpus(left)
            if chosen is None or all(index in accepted for index in chosen):
                return chosen
            for index in chosen:
                if index not in accepted:
                    accepted[index] = keeps(index)

    def fewest_allowed(self, rate_per_s: float) -> tuple[int, ...] | None:
        """The partition of the fewest GPUs whose bounds allow a rate: fewer keep the limits in no run."""
        return self._fewest_gpus(self._allowed(rate_per_s))

    def _allowed(self, rate_per_s: float) -> list[int]:
        return [index for index, bracket in enumerate(self.known) if bracket.bound_per_s >= rate_per_s]

    def _fewest_gpus(self, places: Sequence[int]) -> tuple[int, ...] | None:
        """Of these cells the partition with the fewest GPUs, at most those at hand."""
        sets, gpus = self._sets(places)
        ties = [self.cells[index].steady_per_s for index in places]
        chosen = cheapest_partition(sets, gpus, len(self.mixture), ties=ties)
        if chosen is None or sum(gpus[index] for index in chosen) > self.gpus:
            return None
        return tuple(sorted(places[index] for index in chosen))

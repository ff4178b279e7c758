"""The placement of highest goodput: simulates where it matters, prunes by upper bounds elsewhere.

Placements are taken in the order of their bounds by work alone, what a steady-state model prefers first.
One that is not allowed more than the best found is left out; one that a single run shows not to keep its limits at a
rate that would be better is dominated; the goodput of all others is found by bisection, on the same draws for all.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from planner.problem.slo import SloSpec
from planner.simulate.fleet.instances import Fleet
from planner.simulate.goodput.rate import TOLERANCE, goodput
from planner.simulate.goodput.rate_bound import RateBound
from planner.simulate.run.attainment import Draws, required

How = Literal["simulated", "dominated", "excluded", "left"]


@dataclass(frozen=True, slots=True)
class Placement:
    """A fleet that could be; what it is worth is its rate times `weight`, such as 1 / GPUs."""

    name: str
    fleet: Callable[[], Fleet]
    weight: float
    steady_per_s: float | None = None  # goodput by a steady-state model


@dataclass(frozen=True, slots=True)
class PlacementOutcome:
    """What was found of one placement; `goodput_per_s` where it was simulated to the end."""

    how: How
    bound_per_s: float
    goodput_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class PlacementSearch:
    """The search: one entry a placement, the best of them (None where none has any goodput), and runs."""

    placements: tuple[Placement, ...]
    tried: tuple[PlacementOutcome, ...]
    best: int | None
    runs: int

    @property
    def worth(self) -> float:
        """Of the best placement."""
        return 0.0 if self.best is None else (self.tried[self.best].goodput_per_s or 0.0) * self._weight(self.best)

    @property
    def bound(self) -> float:
        """What no simulation of any placement on these draws exceeds; inf where nothing limits the rate."""
        return max((outcome.bound_per_s * self._weight(index) for index, outcome in enumerate(self.tried)), default=0.0)

    @property
    def steady_best(self) -> int | None:
        """What the steady-state model prefers."""
        return _preferred(self.placements)

    def count(self, how: How) -> int:
        """Placements that ended so."""
        return sum(outcome.how == how for outcome in self.tried)

    def _weight(self, index: int) -> float:
        return self.placements[index].weight


def search_placements(
    placements: Sequence[Placement],
    draws: Draws,
    slo: SloSpec,
    *,
    most_per_s: float = math.inf,
    tolerance: float = TOLERANCE,
    everything: bool = False,
    most_tried: int | None = None,
    rate_bound: RateBound | None = None,
) -> PlacementSearch:
    """The placement of highest worth, on the same draws for all, rates up to `most_per_s`.

    `everything` finds the goodput of all placements that have any; `most_tried` ends the search after so many.
    Raises PlannerError where `slo` limits nothing.
    """
    model = rate_bound or RateBound(draws, required(slo))
    fleets = [placement.fleet() for placement in placements]
    bounds = [min(model.most_rate(fleet), most_per_s) for fleet in fleets]
    order = sorted(range(len(placements)), key=lambda index: -bounds[index] * placements[index].weight)
    preferred = _preferred(placements)
    if preferred is not None:
        order.remove(preferred)
        order.insert(0, preferred)
    tried = [PlacementOutcome("left", bound) for bound in bounds]
    best, worth, runs, looked = None, 0.0, 0, 0
    for index in order:
        placement, bound = placements[index], bounds[index]
        least = 0.0 if everything else worth / placement.weight * (1.0 + tolerance)
        if bound <= least:
            tried[index] = PlacementOutcome("excluded", bound)
            continue
        if most_tried is not None and looked >= most_tried:
            continue
        looked += 1
        outcome = goodput(fleets[index], draws, slo, most_per_s=bound, least_per_s=least, tolerance=tolerance)
        runs += outcome.runs
        if outcome.rate_per_s == 0.0 and least > 0.0:
            tried[index] = PlacementOutcome("dominated", bound)
            continue
        tried[index] = PlacementOutcome("simulated", bound, outcome.rate_per_s)
        if outcome.rate_per_s * placement.weight > worth:
            best, worth = index, outcome.rate_per_s * placement.weight
    return PlacementSearch(tuple(placements), tuple(tried), best, runs)


def reversals(search: PlacementSearch, tolerance: float = 2.0 * TOLERANCE) -> list[tuple[int, int]]:
    """Pairs of placements, both simulated to the end, that the steady-state model ranks the other way round.

    The first of a pair is the one that the simulation prefers; differences up to `tolerance` are none.
    """
    known = [
        (index, outcome.goodput_per_s * placement.weight, placement.steady_per_s * placement.weight)
        for index, (outcome, placement) in enumerate(zip(search.tried, search.placements, strict=True))
        if outcome.goodput_per_s is not None and placement.steady_per_s is not None
    ]
    margin = 1.0 + tolerance
    return [
        (a, b)
        for a, simulated_a, steady_a in known
        for b, simulated_b, steady_b in known
        if simulated_a > simulated_b * margin and steady_b > steady_a * margin
    ]


def _preferred(placements: Sequence[Placement]) -> int | None:
    known = [index for index, placement in enumerate(placements) if placement.steady_per_s is not None]
    if not known:
        return None
    return max(known, key=lambda index: (placements[index].steady_per_s or 0.0) * placements[index].weight)

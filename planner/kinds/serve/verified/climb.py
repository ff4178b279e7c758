"""Climbs from the best plan that kept its limits: simulation chooses what steady state chose by formulas.

Placements of other shapes are tried first, those that steady state ranks highest of each, then the plan is varied on
one axis after the other (`verified.neighbours`) as long as any gives more. A plan that is tried is simulated at a load
at which it would be better than the best, and only where it keeps its limits there, is its own load looked for.
Where the load is given, plans with one instance less are tried, as they are and varied.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from planner.kinds.serve.simulated.placements import Deployment, ranked, with_placement
from planner.kinds.serve.steady.candidates import Candidate
from planner.kinds.serve.steady.formulate import gpus_at_hand
from planner.kinds.serve.steady.search import Outcome, ServeSetting
from planner.kinds.serve.verified.kept import Kept
from planner.kinds.serve.verified.neighbours import Axes, Direction
from planner.kinds.serve.verified.trials import Trials

MOST_TRIES = 24
MOST_EVENTS = 6_000_000  # of all tries together
MOST_PLACEMENTS = 6  # of other shapes
HOPEFUL = 0.6  # of the rate that is kept: the least that steady state must allow placements of other shapes
NEAR = 0.9  # of the load that is needed: what a plan keeps that varied ones may keep


class Search(Protocol):
    """What judges the plans of a problem."""

    setting: ServeSetting
    trials: Trials

    @property
    def maximising(self) -> bool: ...

    @property
    def scalable(self) -> bool:
        """Whether less load is a plan too."""

    @property
    def out_of_time(self) -> bool: ...

    def better_than(self, best: Kept, proposed: Outcome) -> Kept | None:
        """A plan at the load that it keeps, where that is better than the best."""

    def keeps_share(self, proposed: Outcome, share: float) -> bool:
        """Whether a plan keeps its limits at a share of its load."""


@dataclass(slots=True)
class Climb:
    """What is left of the work that may be done, and the axes."""

    search: Search
    relaxed: tuple[Outcome, ...]  # what steady state makes of the problem under other limits
    tries: int = 0
    most_events: int = 0

    def __post_init__(self) -> None:
        self.most_events = self.search.trials.shared.events + MOST_EVENTS

    @property
    def axes(self) -> Axes:
        return Axes(self.search.setting)

    def best(self, kept: Kept) -> Kept:
        """The best plan that tries lead to; that of the proposals where none is better."""
        if self.search.setting.resolved.problem.availability is not None or self._waiting:
            return kept
        if self.search.scalable:
            return self._varied(self._placed(kept))
        return kept if self.search.maximising else self._fewer(kept)

    @property
    def _waiting(self) -> bool:
        return any(target.clients is not None for target in self.search.setting.targets)

    def _spent(self) -> bool:
        shared = self.search.trials.shared
        return self.tries >= MOST_TRIES or shared.events >= self.most_events or self.search.out_of_time

    def _try(self, outcome: Outcome, best: Kept) -> Kept | None:
        """The plan at the load that it keeps, where it is better."""
        self.tries += 1
        return self.search.better_than(best, outcome)

    def _placed(self, best: Kept) -> Kept:
        for outcome in list(self._placements(best)):
            if self._spent():
                break
            best = self._try(outcome, best) or best
        return best

    def _varied(self, best: Kept) -> Kept:
        """Every axis in turn, until none gives more."""
        last: int | None = None  # of the directions, that gave something
        while not self._spent():
            number, further = 0, False
            for number, direction in enumerate(self.axes.directions(best.outcome)):
                if number == last:
                    continue
                climbed = self._along(direction, best)
                if climbed is not best:
                    best, last, further = climbed, number, True
                    break
                if self._spent():
                    break
            if not further:
                break
        return best

    def _along(self, direction: Direction, best: Kept) -> Kept:
        """The best of a direction, which ends with the first plan that is no better."""
        for outcome in direction:
            kept = None if self._spent() else self._try(outcome, best)
            if kept is None:
                break
            best = kept
        return best

    def _fewer(self, best: Kept) -> Kept:
        """The cheapest plan that keeps its limits with an instance less, and another less."""
        while not self._spent():
            cheaper = next(
                (kept for each in self.axes.fewer(best.outcome) if (kept := self._with_less(each, best))), None
            )
            if cheaper is None:
                break
            best = cheaper
        return best

    def _with_less(self, outcome: Outcome, best: Kept) -> Kept | None:
        """The plan, or it varied on one axis, where it keeps its limits."""
        kept = self._try(outcome, best)
        if kept is not None or self._spent() or not self.search.keeps_share(outcome, NEAR):
            return kept
        for direction in self.axes.directions(outcome):
            for varied in direction[:1]:
                if self._spent():
                    return None
                kept = self._try(varied, best)
                if kept is not None:
                    return kept
        return None

    def _placements(self, best: Kept) -> Iterator[Outcome]:
        """Placements of other shapes by what steady state makes of them under limits as stated and relaxed."""
        setting, chosen = self.search.setting, best.outcome
        used = _shapes(chosen.formulated.candidates, list(enumerate(chosen.solution.counts)))
        if len(setting.resolved.pools) > 1 or len({each.model for each in setting.resolved.workloads}) > 1:
            return
        served = best.outcome.solution.served_per_s
        fractions = [rate / sum(served) for rate in served]
        workloads, gpus = tuple(range(len(served))), gpus_at_hand(setting.resolved.problem, setting.resolved.pools)
        known: dict[object, tuple[Deployment, Outcome]] = {}
        for outcome in self.relaxed:
            candidates = outcome.formulated.candidates
            for deployment in ranked(candidates, gpus, workloads, fractions):
                known.setdefault(_shapes(candidates, deployment.counts), (deployment, outcome))
        hoped = sum(served) * best.load.scale * HOPEFUL
        rows = sorted((row for shapes, row in known.items() if shapes != used), key=lambda row: -row[0].steady_per_s)
        for deployment, outcome in rows[:MOST_PLACEMENTS]:
            if deployment.steady_per_s >= hoped:
                yield replace(_with_placement(outcome, deployment, fractions), tally=best.outcome.tally)


def _with_placement(outcome: Outcome, deployment: Deployment, fractions: list[float]) -> Outcome:
    """The placement at the rates that steady state allows, in the unit of the mix problem."""
    unit = (outcome.result.objective or 0.0) / sum(outcome.solution.served_per_s)
    rates = [deployment.steady_per_s * fraction for fraction in fractions]
    placed = with_placement(outcome, (replace(deployment, workloads=tuple(range(len(rates)))),), rates)
    return replace(placed, result=replace(placed.result, objective=unit * deployment.steady_per_s))


def _shapes(candidates: Sequence[Candidate], counts: Sequence[tuple[int, int]]) -> object:
    """What tells mixes of other shapes and counts apart: not their batches and chunks."""
    return frozenset(
        (candidates[row].function, candidates[row].shape, count * candidates[row].pooled)
        for row, count in counts
        if count
    )

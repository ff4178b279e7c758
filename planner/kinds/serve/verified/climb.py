"""Climbs from the best plan that kept its limits: simulation chooses what steady state chose by formulas.

A mix of more than two types first gives way to one of fewer that keeps nearly as much: it is what one would rather run,
and numbers of instances are an axis of two types alone. Then placements of other shapes are tried, those that steady
state ranks highest of each, and the plan is varied on one axis after the other (`verified.neighbours`) as long as any
gives more. A plan that is tried is simulated at a load at which it would be better than the best, and only where it
keeps its limits there, is its own load looked for. Where the load is given, mixes that cost less are tried
(`verified.cheaper`), then those that miss their limits by little are varied as long as they come closer, the nearest
first; so is the cheapest plan, until it has room for fresh streams. No plan is judged twice.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Protocol

from planner.kinds.serve.bounds.bound import ProblemBounds
from planner.kinds.serve.simulated.placements import Deployment, ranked, with_placement
from planner.kinds.serve.steady.candidates import Candidate
from planner.kinds.serve.steady.demand import relaxed
from planner.kinds.serve.steady.formulate import formulate, gpus_at_hand
from planner.kinds.serve.steady.points import Tally
from planner.kinds.serve.steady.search import Outcome, ServeSetting, list_candidates
from planner.kinds.serve.verified.cheaper import ROUNDING, Cheaper
from planner.kinds.serve.verified.kept import Kept
from planner.kinds.serve.verified.neighbours import Axes, Direction
from planner.kinds.serve.verified.trials import Trials
from planner.solvers.mix import MixObjective

MOST_TRIES = 24
MOST_AS_LISTED = 16  # of them, of mixes before any is varied
MOST_EVENTS = 6_000_000  # of all tries together
MOST_PLACEMENTS = 6  # of other shapes
HOPEFUL = 0.6  # of the rate that is kept: the least that steady state must allow placements of other shapes
NEAR = 0.6  # share of a limit by which a plan misses it whose variations may keep it
ROOM = (
    0.04  # share of a limit that a plan of a given load stays within it: fresh streams differ from those of the search
)
MOST_LISTED = 2  # types of a mix
WORTHWHILE = 1.008  # times the best plan: what another one must keep that formulas do not prefer
NEARLY = 0.99  # times a plan of more types: what one of `MOST_LISTED` must keep to take its place
MOST_SIMPLER = 2  # mixes that are tried so
MOST_APPROACHES = 10  # variations of a mix
WIDER = (2.5,)  # limits of steady state under which cheaper mixes are listed, beside those of the proposals


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

    def tried_beside(self, best: Kept, proposed: Outcome, least: float) -> Kept | None:
        """A plan at the load that it keeps, or refuted at `least` times the best; None where it is not simulated.

        Where the load is given, that is what it must keep.
        """


@dataclass(slots=True)
class Climb:
    """What is left of the work that may be done, and the axes."""

    search: Search
    relaxed: tuple[Outcome, ...]  # what steady state makes of the problem under other limits
    bounds: ProblemBounds
    refused: tuple[Kept, ...] = ()  # what fresh streams refuted
    not_simulated: int | None = None  # mixes that cost less than the best plan, as far as they were listed
    most_events: int = 0
    judged: dict[object, Kept | None] = field(default_factory=dict)  # by instances, each once

    def __post_init__(self) -> None:
        self.most_events = self.search.trials.shared.charged_events + MOST_EVENTS

    @property
    def tries(self) -> int:
        """Plans that were judged."""
        return len(self.judged)

    @property
    def axes(self) -> Axes:
        return Axes(self.search.setting)

    def best(self, kept: Kept) -> Kept:
        """The best plan that tries lead to; that of the proposals where none is better."""
        if self.search.setting.resolved.problem.availability is not None or self._waiting:
            return kept
        if self.search.scalable:
            return self._varied(self._placed(self._simplified(kept)))
        return kept if self.search.maximising else self._fewer(kept)

    @property
    def _waiting(self) -> bool:
        return any(target.clients is not None for target in self.search.setting.targets)

    def _spent(self) -> bool:
        shared = self.search.trials.shared
        return self.tries >= MOST_TRIES or shared.charged_events >= self.most_events or self.search.out_of_time

    def _judged(self, outcome: Outcome, best: Kept, least: float = WORTHWHILE) -> Kept | None:
        """The plan at the load that it keeps, or refuted; None where it is not simulated.

        Nor is it again where the load is free: it was no better than a plan that is no better than the best.
        """
        instances = _instances(outcome)
        if any(instances == _instances(each.outcome) for each in self.refused):
            return None
        if instances in self.judged:
            return None if self.search.scalable else self.judged[instances]
        self.judged[instances] = self.search.tried_beside(best, outcome, least)
        return self.judged[instances]

    def _try(self, outcome: Outcome, best: Kept, least: float = WORTHWHILE) -> Kept | None:
        """The plan at the load that it keeps, where that is `least` times what the best keeps."""
        judged = self._judged(outcome, best, least)
        return None if judged is None or judged.load.refuted else judged

    def _simplified(self, best: Kept) -> Kept:
        """In place of more than two types the best mix of fewer under the same limits that keeps nearly as much."""
        if len(best.outcome.roles) <= MOST_LISTED:
            return best
        placements = islice(self._placements(best, (best.outcome,)), MOST_SIMPLER)
        return next((kept for placed in placements if (kept := self._try(placed, best, NEARLY))), best)

    def _placed(self, best: Kept) -> Kept:
        for placed in list(self._placements(best, self.relaxed)):
            if self._spent():
                return best
            best = self._try(placed, best) or best
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
        """The plan of the cheapest mix that keeps its limits, of those tried."""
        if not self._may_be_cheaper(best):
            self.not_simulated = 0
            return self._roomier(best)
        cheaper = Cheaper(self._levels(best), best, self.bounds)
        near: list[Kept] = []
        for mix in cheaper.promising():
            if self._spent() or self.tries >= MOST_AS_LISTED:
                break
            judged = self._judged(cheaper.outcome(mix), best)
            if judged is not None and not judged.load.refuted:
                best = cheaper.best = judged
                continue
            cheaper.refuted.append(mix)
            near += [judged] if judged is not None and judged.load.missed <= NEAR else []
        for judged in sorted(near, key=lambda each: each.load.missed):
            if judged.value < best.value * (1.0 - ROUNDING):
                varied = self._approached(judged, best, 0.0)
                best = best if varied.load.refuted else varied
        best = cheaper.best = self._with_less(best)
        self.not_simulated = cheaper.left() if self._may_be_cheaper(best) else 0
        return self._roomier(best)

    def _with_less(self, best: Kept) -> Kept:
        """The plan with an instance less of a type, and another less, as long as it keeps its limits.

        Of mixes of two types these were tried; there are mixes of more, on several pools and of several models.
        """
        further = not _of_one_kind(self.search.setting) or len(best.outcome.roles) > MOST_LISTED
        while further and not self._spent():
            less = next((kept for each in self.axes.fewer(best.outcome) if (kept := self._kept(each, best))), None)
            best, further = less or best, less is not None
        return best

    def _kept(self, outcome: Outcome, best: Kept) -> Kept | None:
        """The plan, or what variations of it lead to, where it keeps its limits."""
        judged = None if self._spent() else self._judged(outcome, best)
        if judged is not None and 0.0 < judged.load.missed <= NEAR:
            judged = self._approached(judged, best, 0.0)
        return None if judged is None or judged.load.refuted else judged

    def _may_be_cheaper(self, best: Kept) -> bool:
        """Whether no bound says that the best plan is the cheapest."""
        bound, formulated = self.bounds.whole.value, best.outcome.formulated
        if bound is None:
            return True
        least = formulated.factor / bound if formulated.per_used else bound / formulated.factor
        if formulated.problem.objective is MixObjective.DEVICES:
            least = math.ceil(least * (1.0 - ROUNDING))
        return least < best.value * (1.0 - ROUNDING)

    def _levels(self, best: Kept) -> tuple[Outcome, ...]:
        """Types as steady state lists them under limits as stated, and under ever wider ones."""
        if not _of_one_kind(self.search.setting):
            return ()
        setting, levels = self.search.setting, list(self.relaxed)
        for factor in WIDER:
            candidates = list_candidates(setting, relaxed(setting.targets, factor), Tally())
            formulated = formulate(setting.resolved, setting.targets, candidates)
            levels.append(replace(best.outcome, formulated=formulated, searched=formulated.problem))
        return tuple(levels)

    def _roomier(self, best: Kept) -> Kept:
        """The best plan varied until it has room within its limits; as it is where no variation has more."""
        if self._spent() or best.load.scale > 1.0 + ROOM:
            return best
        judged = self._judged(best.outcome, best)
        if judged is None or judged.load.refuted:
            return best
        return self._approached(judged, best, -ROOM)

    def _approached(self, judged: Kept, best: Kept, goal: float) -> Kept:
        """A plan varied on one axis after the other as long as its worst value falls, until that is at its goal."""
        most, further = self.tries + MOST_APPROACHES, True
        while further:
            further = False
            for direction in self.axes.directions(judged.outcome):
                for varied in direction:
                    if self._spent() or self.tries >= most or judged.load.missed <= goal:
                        return judged
                    other = self._judged(varied, best)
                    if other is None or other.load.missed >= judged.load.missed:
                        break
                    judged, further = other, True
                if further:
                    break
        return judged

    def _placements(self, best: Kept, among: Sequence[Outcome]) -> Iterator[Outcome]:
        """Placements of one type or two, of other shapes, by what steady state makes of them `among` its outcomes."""
        setting, chosen = self.search.setting, best.outcome
        used = _shapes(chosen.formulated.candidates, list(enumerate(chosen.solution.counts)))
        if not _of_one_kind(setting):
            return
        served = best.outcome.solution.served_per_s
        fractions = [rate / sum(served) for rate in served]
        workloads, gpus = tuple(range(len(served))), gpus_at_hand(setting.resolved.problem, setting.resolved.pools)
        known: dict[object, tuple[Deployment, Outcome]] = {}
        for outcome in among:
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


def _of_one_kind(setting: ServeSetting) -> bool:
    """Whether all instances are of one model on one pool."""
    return len(setting.resolved.pools) == 1 and len({each.model for each in setting.resolved.workloads}) == 1


def _instances(outcome: Outcome) -> object:
    """What tells plans apart: types with their limits, and how many."""
    items = ((item.candidate, item.count) for item in outcome.roles)
    return frozenset(
        (
            *(c.function, c.model, c.pool, c.channel, c.shape, c.max_batch, c.chunk_tokens, c.draft_tokens),
            *(c.routing, c.queueing, c.elastic, count),
        )
        for c, count in items
    )


def _shapes(candidates: Sequence[Candidate], counts: Sequence[tuple[int, int]]) -> object:
    """What tells mixes of other shapes and counts apart: not their batches and chunks."""
    return frozenset((candidates[row].function, candidates[row].shape, count) for row, count in counts if count)

"""Steps from one placement of models on groups to better ones (simulated annealing): (3) of `group_search`."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from planner.solvers.placement.group_streams import Allowance, Group, Stream
from planner.solvers.placement.shared_groups import SharedGroups, lost

MOST_STEPS = 5_000  # of one round of a climb
HEAT = 2e-3  # of the late requests: how many more a step may cost at first
EXCHANGES = 0.6  # share of the steps in which two models change places
LEAVES = 0.3  # share of the steps in which a model leaves a group, where engines batch


@dataclass(slots=True)
class Climb:
    """Steps from one placement; the best so far, and its late requests of the cut streams by their weights."""

    problem: SharedGroups
    streams: Sequence[Stream]
    allowance: Allowance  # of the whole streams
    best: tuple[Group, ...]
    draws: random.Random
    least: int
    current: list[Group] = field(init=False)
    late: int = field(init=False)

    def run(self, requests: float) -> None:
        """Steps until so many requests were simulated, from hot to cold; goes on from the best."""
        self.current, self.late = list(self.best), self.least
        size = max(sum(len(stream) for stream in self.streams), 1)
        steps = min(int(requests / size), MOST_STEPS)
        for step in range(steps):
            heat = HEAT * self.late * (1.0 - step / steps)
            most = self.late + int(-heat * math.log(1.0 - self.draws.random()))
            changed = self._step()
            if changed is None:
                continue
            number = lost(self.problem, changed, self.streams, most, self.allowance)
            if number <= most:
                self.current, self.late = changed, number
                if number < self.least:
                    self.best, self.least = tuple(changed), number

    def _step(self) -> list[Group] | None:
        """A placement next to the current one; None where the draw gives none that fits."""
        draws, groups = self.draws, self.current
        index = draws.randrange(len(groups))
        group = groups[index]
        if self.problem.batches is not None and draws.random() < LEAVES:
            return self._without(index)
        models = [model for model in range(self.problem.models) if model not in group.models]
        if not models:
            return None
        comes = draws.choice(models)
        grown = Group(group.shape, tuple(sorted((*group.models, comes))))
        if self.problem.fits(grown):
            return [*groups[:index], grown, *groups[index + 1 :]]
        if not group.models:
            return None
        goes = draws.choice(group.models)
        changed = list(groups)
        changed[index] = _with(group, goes, comes)
        if draws.random() < EXCHANGES:
            others = [g for g, each in enumerate(groups) if comes in each.models and goes not in each.models]
            if not others:
                return None
            other = draws.choice(others)
            changed[other] = _with(groups[other], comes, goes)
            return changed if self.problem.fits(changed[other]) and self.problem.fits(changed[index]) else None
        left = sum(goes in each.models for each in changed)
        return changed if left >= max(self.problem.least_hosts, 1) and self.problem.fits(changed[index]) else None

    def _without(self, index: int) -> list[Group] | None:
        """The current placement with one model fewer on a group; None where that leaves too few groups of it."""
        group = self.current[index]
        if len(group.models) < 2:
            return None
        goes = self.draws.choice(group.models)
        if sum(goes in each.models for each in self.current) <= max(self.problem.least_hosts, 1):
            return None
        changed = list(self.current)
        changed[index] = Group(group.shape, tuple(model for model in group.models if model != goes))
        return changed


def _with(group: Group, goes: int, comes: int) -> Group:
    return Group(group.shape, tuple(sorted((*(model for model in group.models if model != goes), comes))))

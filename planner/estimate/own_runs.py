"""Runs of one's own near a deployment: how much longer its steps are by them, and how sure that is.

The calibration says of a group of runs how much longer all its steps are, and holds what each run told
(`planner.costs.rates.spread.GroupBias`). Errors of loads and layouts near each other go together
(`planner.costs.rates.likeness`), so that a deployment takes most from the runs that are most like it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats
from planner.costs.rates.calibration import Calibration
from planner.costs.rates.likeness import TPOT
from planner.costs.rates.spread import SeenRun
from planner.estimate.case import Case
from planner.estimate.places import layouts, loads


@dataclass(frozen=True, slots=True)
class Told:
    """What runs tell of deployments [N]."""

    longer: Floats  # multiples of their steps beyond those of their groups
    half: Floats  # of the width of the middle 80 % of the logarithm of TPOT; NaN where no run tells it

    @classmethod
    def nothing(cls, count: int) -> "Told":
        """Of so many deployments that no run is near."""
        return cls(np.ones(count), np.full(count, np.nan))


def told_by_runs(known: Calibration, cases: Sequence[Case]) -> Told:
    """Of each case by the runs of its group that the calibration holds."""
    told = Told.nothing(len(cases))
    members: dict[str, list[int]] = {group: [] for group, bias in known.runs.items() if bias.seen}
    for index, case in enumerate(cases if members else ()):
        if case.group in members:
            members[case.group].append(index)
    for group, rows in members.items():
        bias, own = known.runs[group], [cases[index] for index in rows]
        mean, told.half[rows] = TPOT.told(bias.seen, loads(own), layouts(own), lengths(own))
        told.longer[rows] = np.exp(mean - bias.mean)
    return told


def lengths(cases: Sequence[Case]) -> Floats:
    """Tokens of prompt and answer [M, 2]."""
    return np.array([(case.isl, case.osl) for case in cases], dtype=np.float64).reshape(len(cases), 2)


def seen_runs(cases: Sequence[Case], errors: Sequence[float]) -> tuple[SeenRun, ...]:
    """Runs of these cases, whose measured times per output token are so far from those of the costs alone."""
    places = zip(loads(cases).tolist(), layouts(cases).tolist(), lengths(cases).tolist(), errors, strict=True)
    return tuple(SeenRun(load, tuple(layout), tuple(length), error) for load, layout, length, error in places)

"""Runs of one's own near a deployment: how much longer its steps are by them, and how sure that is.

Errors of loads and layouts near each other go together (`planner.costs.rates.likeness`), so that a deployment takes
most from the runs that are most like it: by load and layout of each replica where they are colocated. Layouts that a
search prices take the same (`planner.costs.rates.near_runs`).
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
        load, layout = places(own)
        mean, told.half[rows] = TPOT.told(bias.seen, load, layout, lengths(own))
        told.longer[rows] = np.exp(mean - bias.mean)
    return told


def places(cases: Sequence[Case]) -> tuple[Floats, Floats]:
    """Loads [M] and layouts [M, 5], of one replica where prompts and answers share instances."""
    replicas = np.log2([case.decode.replicas if case.prefill is None else 1 for case in cases])
    layout = layouts(cases)
    layout[:, 0] -= replicas
    return np.maximum(loads(cases) - replicas, 0.0), layout


def lengths(cases: Sequence[Case]) -> Floats:
    """Tokens of prompt and answer [M, 2]."""
    return np.array([(case.isl, case.osl) for case in cases], dtype=np.float64).reshape(len(cases), 2)


def seen_runs(cases: Sequence[Case], errors: Sequence[float]) -> tuple[SeenRun, ...]:
    """Runs of these cases, whose measured times per output token are so far from those of the costs alone."""
    load, layout = places(cases)
    rows = zip(load.tolist(), layout.tolist(), lengths(cases).tolist(), errors, strict=True)
    return tuple(SeenRun(load, tuple(layout), tuple(length), error) for load, layout, length, error in rows)

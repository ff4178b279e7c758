"""Runs of one's own near a deployment: how much longer its steps are by them, and how sure that is.

Errors of loads and layouts near each other go together (`planner.costs.rates.likeness`), so that a deployment takes
most from the runs that are most like it: by layout and load of an instance, its share by GPUs of all that is in flight.
Layouts that a search prices take the same (`planner.costs.rates.near_runs`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats
from planner.costs.rates.calibration import Calibration
from planner.costs.rates.likeness import TPOT
from planner.costs.rates.near_runs import in_flight, layout_of, load_of
from planner.costs.rates.spread import SeenRun
from planner.estimate.case import Case, Part


@dataclass(frozen=True, slots=True)
class Told:
    """What runs tell of deployments [N]."""

    decode_longer: Floats  # multiples of steps that decode beyond those of their groups
    prefill_longer: Floats  # the same of steps of prompts, which instances of their own may take
    half: Floats  # of the width of the middle 80 % of the logarithm of TPOT; NaN where no run tells it

    @classmethod
    def nothing(cls, count: int) -> "Told":
        """Of so many deployments that no run is near."""
        return cls(np.ones(count), np.ones(count), np.full(count, np.nan))


def told_by_runs(known: Calibration, cases: Sequence[Case]) -> Told:
    """Of each case by the runs of its group that the calibration holds."""
    told = Told.nothing(len(cases))
    members: dict[str, list[int]] = {group: [] for group, bias in known.runs.items() if bias.seen}
    for index, case in enumerate(cases if members else ()):
        if case.group in members:
            members[case.group].append(index)
    for group, rows in members.items():
        bias, own = known.runs[group], [cases[index] for index in rows]
        parts = ([case.decode for case in own], [case.prefill or case.decode for case in own])
        decoding, prefilling = (TPOT.told(bias.seen, *places(own, each), lengths(own)) for each in parts)
        told.half[rows] = decoding.half
        told.decode_longer[rows] = np.exp(decoding.mean - bias.mean)
        told.prefill_longer[rows] = np.exp(prefilling.mean - bias.mean)
    return told


def places(cases: Sequence[Case], parts: Sequence[Part]) -> tuple[Floats, Floats]:
    """Loads [M] and layouts [M, 5] of an instance of these parts of cases."""
    rows = [
        (
            in_flight(case.clients, case.rate_per_s, case.osl),
            case.gpus,
            part.devices,
            part.tp,
            part.dp,
            part.ep,
            case.prefill is not None,
        )
        for case, part in zip(cases, parts, strict=True)
    ]
    clients, gpus, own, *degrees = np.array(rows, dtype=np.float64).reshape(len(rows), 7).T
    return load_of(clients / gpus, own), layout_of(own, *degrees)


def lengths(cases: Sequence[Case]) -> Floats:
    """Tokens of prompt and answer [M, 2]."""
    return np.array([(case.isl, case.osl) for case in cases], dtype=np.float64).reshape(len(cases), 2)


def seen_runs(cases: Sequence[Case], errors: Sequence[float]) -> tuple[SeenRun, ...]:
    """Runs of these cases, whose measured times per output token are so far from those of the costs alone."""
    load, layout = places(cases, [case.decode for case in cases])
    rows = zip(load.tolist(), layout.tolist(), lengths(cases).tolist(), errors, strict=True)
    return tuple(SeenRun(load, tuple(layout), tuple(length), error) for load, layout, length, error in rows)

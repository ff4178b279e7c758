"""Validates a profile against fresh measurements, at its own points and between them (interpolation error)."""

import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from planner.errors import PlannerError
from planner.hardware.profiling.adaptive import Point, Refinement, refine
from planner.hardware.profiling.device import describe, open_device
from planner.hardware.profiling.journal import ProfileJournal
from planner.hardware.profiling.kernel import UnsupportedShapeError
from planner.hardware.profiling.measure import reference_of
from planner.hardware.profiling.shapes import Family
from planner.hardware.profiling.timing import one_thread, time_shape

SCHEMA = "planner.profile_verified/1"
_AGAIN = 5  # one point in so many is a repetition
_BLOCK_TOKENS = 16  # of a paged KV cache


@dataclass(frozen=True, slots=True)
class VerifiedPoint:
    """One new measurement beside what the profile says; `repeated` where the profile measured the same point."""

    family: str
    point: Point
    profile_s: float
    measured_s: float
    repeated: bool

    @property
    def error(self) -> float:
        """Profile over measured, less one."""
        return self.profile_s / self.measured_s - 1.0


def verify(
    families: Sequence[Family], folder: Path, *, device: str, budget_s: float, seed: int = 0
) -> list[VerifiedPoint]:
    """Measures points drawn at random from the families' own ranges until `budget_s` is spent.

    Raises PlannerError when the folder holds no profile of these families.
    """
    deadline_s = time.monotonic() + budget_s
    journal = ProfileJournal.open(folder, resume=True)
    refined = replay([family for family in families if family.kind != "collective"], journal)
    if not refined:
        raise PlannerError("holds no profile of these shapes", where=str(folder), hint="profile them first")
    where = open_device(device)
    facts, draw = describe(where), random.Random(seed)
    points: list[VerifiedPoint] = []
    with one_thread(where):
        while time.monotonic() < deadline_s:
            refinement = draw.choice(refined)
            known = [refinement.sizes(index) for index in refinement.measured_s]
            repeated = draw.randrange(_AGAIN) == 0
            point = draw.choice(known) if repeated else _between(refinement, draw)
            try:
                timing = time_shape(refinement.family.shape(point), where, facts)
            except (UnsupportedShapeError, RuntimeError):  # such as too little memory beside what is still resident
                continue
            profile_s = refinement.predict_s(tuple(map(float, point)))
            points.append(VerifiedPoint(refinement.family.name, point, profile_s, timing.median_s, point in known))
    return points


def replay(families: Sequence[Family], journal: ProfileJournal) -> list[Refinement]:
    """The cells of every family that a journal holds the corners of, cut as far as its points go."""
    rates = journal.rates
    if rates is None:
        return []

    def known_s(family: Family, point: Point) -> float | None:
        timing = journal.timings.get((family.name, point))
        return None if timing is None else timing.median_s

    measured = [cut for family in families if (cut := _as_measured(family, journal)) is not None]
    references = {family.name: reference_of(family, rates) for family in measured}
    return refine(measured, references, known_s, tolerance=0.0)


def _as_measured(family: Family, journal: ProfileJournal) -> Family | None:
    """The family with its axes ending at the largest sizes in the journal; None when it has no points."""
    points = [point for name, point in journal.timings if name == family.name]
    if not points:
        return None
    ends = [max(point[axis] for point in points) for axis in range(len(family.sweep))]
    sweep = tuple(
        (name, tuple(size for size in values if size <= end))
        for (name, values), end in zip(family.sweep, ends, strict=True)
    )
    return Family(family.kind, family.fixed, sweep)


def _between(refinement: Refinement, draw: random.Random) -> Point:
    """Sizes drawn evenly in the logarithm of each axis.

    Those of memory and copies in steps of 4 KiB, those of a cache in whole blocks of 16 tokens, as engines keep it.
    """
    point = []
    for name, values in refinement.family.sweep:
        size = round(float(np.exp(draw.uniform(np.log(values[0]), np.log(values[-1])))))
        step = 4096 if name.endswith("bytes") else _BLOCK_TOKENS if name == "context" else 1
        point.append(min(max(values[0], size // step * step), values[-1]))
    return tuple(point)


def summary(points: Sequence[VerifiedPoint]) -> dict[str, object]:
    """Median, 90th percentile and worst |error| of points between and of repetitions, by kind of kernel; JSON."""
    kinds: dict[str, dict[str, object]] = {}
    for kind in sorted({point.family.split(" ")[0] for point in points}):
        of_kind = [point for point in points if point.family.split(" ")[0] == kind]
        parts = {
            "between": [point for point in of_kind if not point.repeated],
            "repeated": [point for point in of_kind if point.repeated],
        }
        kinds[kind] = {name: _errors(part) for name, part in parts.items() if part}
    return {"schema": SCHEMA, "kinds": kinds, "points": [asdict(point) for point in points]}


def _errors(points: Sequence[VerifiedPoint]) -> dict[str, float]:
    errors = [abs(point.error) for point in points]
    p90 = float(np.percentile(errors, 90))
    return {"points": len(errors), "median": float(np.median(errors)), "p90": p90, "worst": max(errors)}

"""Section `runs` of calibration files: where groups of runs lie beside the costs, and what each of one's own told."""

import math
from collections.abc import Mapping
from typing import Any

from planner.costs.rates.spread import LAYOUT_SIZES, GroupBias, SeenRun
from planner.documents.read import Document
from planner.errors import PlannerError

_SIZES = {"load": 0, "layout": LAYOUT_SIZES, "lengths": 2, "error": 0}  # numbers in a list, or one alone


def runs_of(values: object, document: Document) -> dict[str, GroupBias]:
    """Section `runs`: by group, mean and deviation of the logarithm of measured over predicted step times."""
    known: dict[str, GroupBias] = {}
    for group, given in mapping(values, document, ("runs",)).items():
        path = ("runs", str(group))
        stated = mapping(given, document, path)
        numbers: list[Any] = [stated.get(name) for name in ("mean", "deviation", "runs")]
        right = all(isinstance(v, (int, float)) and not isinstance(v, bool) and math.isfinite(v) for v in numbers)
        if not right or set(stated) - {"seen"} != {"mean", "deviation", "runs"} or min(numbers[1:]) < 0:
            raise PlannerError(
                f"`{group}` is no belief about a group of runs",
                where=document.where(path),
                hint="give `mean`, and `deviation` and `runs` of at least 0, as `planner calibrate` writes them",
            )
        seen = _seen(stated.get("seen", []), document, (*path, "seen"))
        known[str(group)] = GroupBias(float(stated["mean"]), float(stated["deviation"]), int(stated["runs"]), seen)
    return known


def _seen(values: object, document: Document, path: tuple[str, ...]) -> tuple[SeenRun, ...]:
    """What each of one's own runs of a group told."""
    return tuple(_run(run, document, path) for run in (values if isinstance(values, list) else [values]))


def _run(value: object, document: Document, path: tuple[str, ...]) -> SeenRun:
    given: Mapping[str, Any] = value if isinstance(value, dict) else {}
    known = {name: _numbers(given.get(name), size) for name, size in _SIZES.items()}
    if set(given) != set(_SIZES) or not all(known.values()):
        raise PlannerError(
            f"{value!r} is no run of a group",
            where=document.where(path),
            hint="leave `seen` out, or take it as `planner calibrate` writes it",
        )
    return SeenRun(known["load"][0], known["layout"], known["lengths"], known["error"][0])


def _numbers(value: object, size: int) -> tuple[float, ...]:
    """The numbers of a list of that size, or one alone where it is 0; none where there is anything else."""
    values = value if isinstance(value, list) and size else [value]
    right = all(isinstance(v, (int, float)) and not isinstance(v, bool) and math.isfinite(v) for v in values)
    return tuple(map(float, values)) if right and len(values) == max(size, 1) else ()


def mapping(values: object, document: Document, path: tuple[str, ...]) -> dict[str, Any]:
    """The values of a part of the file; raises PlannerError where it is no mapping."""
    if not isinstance(values, dict):
        raise PlannerError(
            f"`{path[-1]}` must be a mapping, found {values!r}", where=document.where(path), hint="write `name: value`"
        )
    return values

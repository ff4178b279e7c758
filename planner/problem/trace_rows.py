"""Rows and columns of traces that problems name for lengths and media."""

import csv
import gzip
import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from planner.errors import PlannerError
from planner.problem.media import TraceAmounts, listed
from planner.problem.schema import Problem, WorkloadSpec
from planner.schema.base import Where


def recorded(problem: Problem, where: Where, base: Path) -> Problem:
    """The problem with media of traces as their distributions; raises PlannerError for traces that do not tell them."""

    def told(workload: WorkloadSpec, index: int) -> WorkloadSpec:
        images, audio_s = workload.images, workload.audio_s
        if images is not None and isinstance(images.count, TraceAmounts):
            place = where(("workloads", index, "images", "count"))
            counts = listed(_amounts(base / images.count.trace, images.count.column or "images", place))
            workload = workload.model_copy(update={"images": images.model_copy(update={"count": counts})})
        if isinstance(audio_s, TraceAmounts):
            place = where(("workloads", index, "audio_s"))
            seconds = listed(_amounts(base / audio_s.trace, audio_s.column or "audio_s", place))
            workload = workload.model_copy(update={"audio_s": seconds})
        return workload

    workloads = tuple(told(workload, index) for index, workload in enumerate(problem.workloads))
    return problem if workloads == problem.workloads else problem.model_copy(update={"workloads": workloads})


def _amounts(path: Path, column: str, where: str) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    amounts: list[float] = []
    for number, row in enumerate(trace_rows(path, where), 1):
        if column not in row:
            known = ", ".join(f"`{name}`" for name in row)
            raise PlannerError(f"`{path.name}` has no column `{column}`", where=where, hint=f"its columns are {known}")
        try:
            value = float(row[column] or 0.0)
        except (TypeError, ValueError):
            value = math.nan
        if not 0.0 <= value < math.inf:
            what = f"row {number} of `{path.name}` has {row[column]!r} in `{column}`"
            raise PlannerError(what, where=where, hint="amounts are numbers of at least 0")
        amounts.append(value)
    if not any(amounts):
        what = f"no row of `{path.name}` has anything in `{column}`"
        raise PlannerError(what, where=where, hint="name another column, or leave the media out")
    return np.array(amounts)


def trace_rows(path: Path, where: str) -> Iterator[dict[str, str]]:
    """Rows of a CSV file or of JSON lines, gzipped or not; raises PlannerError for files that cannot be read."""
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as text:
            if ".jsonl" in path.name:
                for number, line in enumerate(text, 1):
                    row = json.loads(line) if line.strip() else {}
                    if not isinstance(row, dict):
                        what = f"line {number} of `{path.name}` is no JSON object"
                        raise PlannerError(what, where=where, hint="write a request a line, as {...}")
                    if row:
                        yield row
            else:
                yield from csv.DictReader(text)
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise PlannerError(f"cannot read trace `{path}`: {error}", where=where, hint="check the path") from None

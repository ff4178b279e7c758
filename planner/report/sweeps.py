"""The page of a sweep's results: what-if matrix, break-even points, and a slider along each axis."""

import json
from collections.abc import Iterator
from typing import Any

from planner.documents.units import figure, significant
from planner.errors import PlannerError
from planner.report.charts import cells
from planner.report.marks import table, text
from planner.report.page import Page, Section

_MOST_ROWS = 200  # of the table of points


def sweep_page(document: dict[str, Any], file: str) -> Page:
    """The page of a results document; raises PlannerError where its rows are not those of a sweep."""
    try:
        return _page(document, file)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise PlannerError(
            f"is no whole result of a sweep: {type(error).__name__} {error}",
            where=file,
            hint="write it again with `planner sweep SWEEP.yaml -o results.json`",
        ) from None


def _page(document: dict[str, Any], file: str) -> Page:
    rows, axes = document["rows"], document["axes"]
    plans = [str(row["plan"]) for row in rows if row.get("plan")]
    ok = sum(row["status"] == "ok" for row in rows)
    metric = next((str(row["objective_metric"]) for row in rows if row.get("objective_metric")), "objective")
    lead = f"{len(rows)} variations along {', '.join(axes)}: {ok} have a plan, {len(set(plans))} decisions among them."
    sections = [
        *_matrix(rows, axes, metric),
        *_break_evens(document),
        *_sliders(rows, axes, metric),
        _points(rows, axes, metric),
    ]
    tiles = [("points", str(len(rows))), ("with a plan", str(ok)), ("decisions", str(len(set(plans))))]
    return Page("sweep", file, lead, tiles, sections)


def _value(row: dict[str, Any], metric: str) -> str:
    value = row.get("objective")
    return figure(metric, value) if isinstance(value, (int, float)) else str(row["status"])


def _cell(value: Any) -> str:  # noqa: ANN401 - a cell of a table
    return significant(value) if isinstance(value, float) else str(value)


def _matrix(rows: list[dict[str, Any]], axes: list[str], metric: str) -> Iterator[Section]:
    """The first two axes against each other, one picture for each combination of the rest."""
    if not axes:
        return
    across = axes[-1]
    down = axes[-2] if len(axes) > 1 else "scenario"
    rest = [axis for axis in ("scenario", *axes) if axis not in (across, down)]
    decisions = list(dict.fromkeys(str(row["plan"]) for row in rows if row.get("plan")))
    pictures = []
    for others in dict.fromkeys(tuple(_cell(row[axis]) for axis in rest) for row in rows):
        shown = [row for row in rows if tuple(_cell(row[axis]) for axis in rest) == others]
        columns, lines = (list(dict.fromkeys(_cell(row[axis]) for row in shown)) for axis in (across, down))
        at = {(_cell(row[down]), _cell(row[across])): row for row in shown}
        values = [[_matrix_cell(at.get((line, column)), decisions, metric) for column in columns] for line in lines]
        title = ", ".join(
            f"{axis} {value}"
            for axis, value in zip(rest, others, strict=True)
            if len(set(map(str, (row[axis] for row in rows)))) > 1
        )
        picture = cells(f"{metric} by {down} and {across}", columns, lines, values)
        pictures.append(f"<p>{text(title)}</p>{picture}" if title else picture)
    note = f"Rows: {down}; columns: {across}. Cells of one colour have the same decision."
    yield Section("What if", "".join(pictures[:12]), note)


def _matrix_cell(row: dict[str, Any] | None, decisions: list[str], metric: str) -> tuple[str, int, str]:
    if row is None:
        return "", -1, "no point"
    if not row.get("plan"):
        why = row.get("conflict") or row.get("error") or row["status"]
        return str(row["status"]), -1, f"{row['status']}: {why}"
    value = _value(row, metric)
    return value, decisions.index(str(row["plan"])), f"{value}\n{row['plan']}"


def _break_evens(document: dict[str, Any]) -> Iterator[Section]:
    changes = document.get("break_even") or document.get("breakeven") or document.get("break_evens") or []
    if not isinstance(changes, list) or not changes:
        return
    rows = [
        (
            row["axis"],
            f"{significant(float(row['low']), 4)} to {significant(float(row['high']), 4)}",
            _at(row.get("at") or {}),
            row["before"],
            row["after"],
        )
        for row in changes
    ]
    yield Section("Where the decision changes", table(("along", "between", "at", "below", "above"), rows))


def _at(cells_at: dict[str, Any]) -> str:
    return ", ".join(f"{name} {_cell(value)}" for name, value in cells_at.items()) or "–"


def _sliders(rows: list[dict[str, Any]], axes: list[str], metric: str) -> Iterator[Section]:
    """Along each numeric axis, all else as in the first point: what is decided where."""
    parts = []
    for place, axis in enumerate(axes):
        first = rows[0]
        line = [
            row for row in rows if all(row[other] == first[other] for other in ("scenario", *axes) if other != axis)
        ]
        if len(line) < 2 or not all(isinstance(row[axis], (int, float)) for row in line):
            continue
        told = [f"{axis} {_cell(row[axis])}: {_value(row, metric)}, {row.get('plan') or row['status']}" for row in line]
        data = text(json.dumps(told))
        parts.append(
            f'<label class="slide">{text(axis)}<input type="range" min="0" max="{len(line) - 1}" value="0" step="1" '
            f'data-rows="{data}" data-out="along{place}"></label>'
            f'<p id="along{place}" class="note" aria-live="polite">{text(told[0])}</p>'
        )
    if parts:
        yield Section("Along an axis", "".join(parts), "All other axes stand at their first value.")


def _points(rows: list[dict[str, Any]], axes: list[str], metric: str) -> Section:
    header = ("scenario", *axes, metric, "decision")
    told = [
        (row["scenario"], *(_cell(row[axis]) for axis in axes), _value(row, metric), _decided(row))
        for row in rows[:_MOST_ROWS]
    ]
    rest = f"{len(rows) - _MOST_ROWS} more points are in the file." if len(rows) > _MOST_ROWS else ""
    return Section("All points", table(header, told), rest)


def _decided(row: dict[str, Any]) -> str:
    """The decision of a point, or why there is none."""
    return str(row.get("plan") or row.get("conflict") or row.get("error") or row["status"])

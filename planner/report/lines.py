"""The page of a parametric answer: the best objective along a line, its breakpoints, and a slider over them."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from planner.documents.units import figure, significant
from planner.errors import PlannerError
from planner.report.charts import Step, steps
from planner.report.marks import table, text
from planner.report.page import Page, Section

STOPS = 400  # of the slider


def line_page(document: dict[str, Any], file: str) -> Page:
    """The page of a document of segments; raises PlannerError where it holds none."""
    sections = list(line_sections(document, file))
    told, axis, metric = _segments(document, file), str(document["axis"]), str(document["metric"])
    lead = f"Along {axis} the best {metric.replace('_', ' ')} changes {len(told) - 1} times."
    tiles = [("from", significant(told[0]["low"], 6)), ("to", significant(told[-1]["high"], 6))]
    return Page("along a line", file, lead, [*tiles, ("decisions", str(len(told)))], sections)


def line_sections(document: dict[str, Any], file: str) -> Iterator[Section]:
    """The line as a chart of steps with a slider, and its breakpoints; raises PlannerError where there is none."""
    told = _segments(document, file)
    axis, metric = str(document["axis"]), str(document["metric"])
    drawn = [Step(row["low"], row["high"], row["objective"], _words(row, axis, metric)) for row in told]
    chart = steps(f"{metric} along {axis}", drawn, axis, metric.replace("_", " "))
    rows = [
        (f"{significant(row['low'], 6)} to {significant(row['high'], 6)}", _objective(row, metric), row["decision"])
        for row in told
    ]
    note = "Each row is exact: the decision changes between the end of one and the start of the next."
    yield Section(f"Along {axis}", chart + _slider(told, axis, metric) + table((axis, metric, "decision"), rows), note)


def _segments(document: dict[str, Any], file: str) -> list[dict[str, Any]]:
    try:
        told = [
            {
                "low": float(row["low"]),
                "high": float(row["high"]),
                "objective": None if row["objective"] is None else float(row["objective"]),
                "decision": str(row["decision"]),
            }
            for row in document["segments"]
        ]
        if told and {"axis", "metric"} <= set(document):
            return told
    except (KeyError, TypeError, ValueError):
        pass
    raise PlannerError(
        "is no whole answer along a line",
        where=file,
        hint="write it again with `planner sweep PROBLEM --parametric rate=5/s..50/s -o line.json`",
    )


def _objective(row: dict[str, Any], metric: str) -> str:
    return "no plan" if row["objective"] is None else figure(metric, row["objective"])


def _words(row: dict[str, Any], axis: str, metric: str) -> str:
    ends = f"{axis} {significant(row['low'], 6)} to {significant(row['high'], 6)}"
    return f"{ends}: {_objective(row, metric)}\n{row['decision']}"


def _slider(told: Sequence[dict[str, Any]], axis: str, metric: str) -> str:
    """Values of the axis, evenly, and at each what is best there."""
    low, high = told[0]["low"], told[-1]["high"]
    values = [low + (high - low) * place / STOPS for place in range(STOPS + 1)]
    rows = [max((row for row in told if row["low"] <= value), key=lambda row: row["low"]) for value in values]
    words = {id(row): f"{_objective(row, metric)}, {row['decision']}" for row in told}
    data = json.dumps([f"{axis} {significant(v, 4)}: {words[id(row)]}" for v, row in zip(values, rows, strict=True)])
    at = f"line-{axis}"
    return (
        f'<label class="slide">{text(axis)}<input type="range" min="0" max="{STOPS}" value="0" step="1" '
        f'data-rows="{text(data)}" data-out="{text(at)}" data-chart="1"></label>'
        f'<p id="{text(at)}" class="note" aria-live="polite">{text(json.loads(data)[0])}</p>'
    )

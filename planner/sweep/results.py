"""The table of a sweep: one row a point in axis order, with the same columns and the same bytes every time."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from planner.errors import PlannerError, did_you_mean
from planner.sweep.columns import ALIASES, FIGURES, FIXED, TEXTS, USUAL_METRICS, metric_name
from planner.sweep.journal import Record
from planner.sweep.run import Swept

Cell = int | float | str | None
Type = Literal["integer", "number", "text"]


@dataclass(frozen=True, slots=True)
class Table:
    """Columns with their types, and rows as mappings; `inputs` is the base problem of every scenario."""

    columns: dict[str, Type]
    rows: list[dict[str, Cell]]
    axes: tuple[str, ...]  # the columns that tell points apart, with `scenario`
    inputs: dict[str, object] = field(default_factory=dict)
    source: str = ""


def make_table(swept: Swept) -> Table:
    """All rows of a finished sweep. Raises PlannerError for a metric that no point has."""
    records = list(swept.records())
    metrics = _metrics(swept, records)
    axis_columns = tuple(axis.column for axis in swept.axes)
    columns: dict[str, Type] = {"point": "integer", "scenario": "text"}
    columns |= {axis.column: axis.kind for axis in swept.axes}
    clash = next((name for name in axis_columns if name in (*FIXED, *metrics)), None)
    if clash is not None:
        what = f"an axis is called `{clash}`, as another column is"
        raise PlannerError(what, where=swept.sweep.where(("axes",)), hint="give the axis another `name:`")
    columns |= {"status": "text", "objective_metric": "text"}
    for name in (*FIGURES, *metrics):
        columns[name] = "number"
    for name in TEXTS:
        columns[name] = "text"
    return Table(columns, list(_rows(swept, records, metrics)), axis_columns, _inputs(swept))


def _metrics(swept: Swept, records: Sequence[Record]) -> tuple[str, ...]:
    """The columns of figures: those asked for, else the usual ones and whatever else another kind predicts."""
    found = {name for record in records for name in record.get("metrics", {})}
    wanted = swept.sweep.spec.metrics
    if wanted is None:
        serving = found & set(USUAL_METRICS)
        others = [] if serving or not found else sorted(found)
        return (*USUAL_METRICS, *others)
    for index, name in enumerate(wanted):
        if found and metric_name(name) not in found | set(USUAL_METRICS):
            known = sorted(found | set(ALIASES))
            hint = did_you_mean(name, known, otherwise=f"the metrics are {', '.join(known)}")
            raise PlannerError(f"unknown metric `{name}`", where=swept.sweep.where(("metrics", index)), hint=hint)
    return tuple(dict.fromkeys(metric_name(name) for name in wanted if name not in FIGURES))


def _rows(swept: Swept, records: Sequence[Record], metrics: Sequence[str]) -> Iterator[dict[str, Cell]]:
    for index, (point, key, record) in enumerate(zip(swept.points, swept.keys, records, strict=True)):
        row: dict[str, Cell] = {"point": index, "scenario": swept.scenarios[point.scenario]}
        row |= {axis.column: value.cell for axis, value in zip(swept.axes, point.values, strict=True)}
        row |= {name: record.get(name) for name in ("status", "objective_metric", *FIGURES)}
        row |= {name: record.get("metrics", {}).get(name) for name in metrics}
        row |= {name: record.get(name) for name in ("mode", "plan", "error")}
        row["conflict"] = conflict_text(record)
        row["problem_digest"] = key if record["status"] != "error" else None
        row["plan_digest"] = record.get("plan_digest")
        yield row


def conflict_text(record: Mapping[str, object]) -> str | None:
    """The limits that cannot hold together, in one line."""
    conflict = record.get("conflict")
    if not isinstance(conflict, list):
        return None
    return "; ".join(
        f"{limit['limit']} (nearest: {limit['nearest']})" if limit["nearest"] else limit["limit"] for limit in conflict
    )


def _inputs(swept: Swept) -> dict[str, object]:
    """The normalised problem of every scenario, before any axis."""
    from planner.problem.resolve import normalised
    from planner.sweep.axes import Point

    base = swept.runner.base
    return {name: normalised(base.resolve(Point(index, ()))) for index, name in enumerate(swept.scenarios)}

"""The results table of a sweep: one row a point in axis order, byte-identical every time."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from planner.errors import PlannerError, unknown_name
from planner.sweep.columns import ALIASES, FIGURES, FIXED, TEXTS, USUAL_METRICS, metric_name
from planner.sweep.journal import PointRecord
from planner.sweep.runner import FinishedSweep

TableCell = int | float | str | None
Type = Literal["integer", "number", "text"]


@dataclass(frozen=True, slots=True)
class ResultTable:
    """Columns with their types, and rows as mappings; `inputs` is the base problem of every scenario."""

    columns: dict[str, Type]
    rows: list[dict[str, TableCell]]
    axes: tuple[str, ...]  # the columns that tell points apart, with `scenario`
    inputs: dict[str, object] = field(default_factory=dict)
    source: str = ""


def make_table(swept: FinishedSweep) -> ResultTable:
    """All rows of a finished sweep. Raises PlannerError for a metric that no point has."""
    records = list(swept.records())
    metrics = _metrics(swept, records)
    axis_columns = tuple(axis.column for axis in swept.axes)
    columns: dict[str, Type] = {"point": "integer", "scenario": "text"}
    columns |= {axis.column: axis.kind for axis in swept.axes}
    clash = next((name for name in axis_columns if name in (*FIXED, *metrics)), None)
    if clash is not None:
        raise PlannerError(
            f"an axis is called `{clash}`, as another column is",
            where=swept.sweep.where(("axes",)),
            hint="give the axis another `name:`",
        )
    columns |= {"status": "text", "objective_metric": "text"}
    columns |= dict.fromkeys((*FIGURES, *metrics), "number")
    columns |= dict.fromkeys(TEXTS, "text")
    return ResultTable(columns, list(_rows(swept, records, metrics)), axis_columns, _inputs(swept))


def _metrics(swept: FinishedSweep, records: Sequence[PointRecord]) -> tuple[str, ...]:
    """The columns of figures: those asked for, else the usual ones of serving, and all that another kind predicts."""
    predicted = {name for record in records for name in record.get("metrics", {})}
    wanted = swept.sweep.spec.metrics
    if wanted is None:
        serving = swept.runner.base.document.data.get("kind") == "serve"
        return (*USUAL_METRICS, *([] if serving else sorted(predicted - set(USUAL_METRICS))))
    for index, name in enumerate(wanted):
        if predicted and metric_name(name) not in predicted | set(USUAL_METRICS):
            known = sorted(predicted | set(ALIASES))
            raise unknown_name(
                "metric",
                name,
                known,
                otherwise=f"the metrics are {', '.join(known)}",
                where=swept.sweep.where(("metrics", index)),
            )
    return tuple(dict.fromkeys(metric_name(name) for name in wanted if name not in FIGURES))


def _rows(
    swept: FinishedSweep, records: Sequence[PointRecord], metrics: Sequence[str]
) -> Iterator[dict[str, TableCell]]:
    for index, (point, key, record) in enumerate(zip(swept.points, swept.keys, records, strict=True)):
        row: dict[str, TableCell] = {"point": index, "scenario": swept.scenarios[point.scenario]}
        row |= {axis.column: value.cell for axis, value in zip(swept.axes, point.values, strict=True)}
        row |= {name: record.get(name) for name in ("status", "objective_metric", *FIGURES)}
        row |= {name: record.get("metrics", {}).get(name) for name in metrics}
        row |= {name: record.get(name) for name in ("mode", "plan", "within", "error")}
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


def _inputs(swept: FinishedSweep) -> dict[str, object]:
    """The normalised problem of every scenario, before any axis."""
    from planner.problem.resolve import normalised
    from planner.sweep.axes import SweepPoint

    base = swept.runner.base
    return {name: normalised(base.resolve(SweepPoint(index, ()))) for index, name in enumerate(swept.scenarios)}

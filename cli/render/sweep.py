"""Renders results of sweeps and of regression gates as text."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from planner.cli.render.columns import table as aligned
from planner.documents.units import significant

if TYPE_CHECKING:
    from planner.sweep.gate import Gate
    from planner.sweep.results import ResultTable, TableCell

_LISTED = 20


def render_sweep(table: "ResultTable", findings: Mapping[str, Any]) -> str:
    """The points, where the decision changes, and which input moves it."""
    counts = Counter(str(row["status"]) for row in table.rows)
    parts = ", ".join(f"{count:,} {status}" for status, count in sorted(counts.items()))
    sections = [f"{len(table.rows):,} points: {parts}\n", _points(table)]
    sections += [_break_evens(findings["break_evens"]), _sensitivity(findings["sensitivity"])]
    return "\n".join(section for section in sections if section)


def _points(table: "ResultTable") -> str:
    rows = table.rows[:_LISTED]
    several = len({row["scenario"] for row in table.rows}) > 1
    figures = [
        name
        for name, kind in table.columns.items()
        if kind == "number" and name not in (*table.axes, "bound", "gap", "objective")
        and any(row[name] is not None for row in table.rows)
    ]  # fmt: skip
    goals = {str(row["objective_metric"]) for row in rows if row["objective_metric"] is not None}
    goal = goals.pop() if len(goals) == 1 and not goals & set(figures) else ""
    names = [*(["scenario"] if several else []), *table.axes, *(["objective"] if goal else []), *figures]
    preferred = ["within"] if any(row["within"] for row in rows) else []
    head = [*(goal if name == "objective" else name for name in names), "plan", *preferred]
    cells = [[*(_shown(row[name]) for name in names), _answer(row), *(_shown(row[name]) for name in preferred)]
             for row in rows]  # fmt: skip
    more = f"  ... and {len(table.rows) - _LISTED:,} more; `-o FILE` has all\n" if len(table.rows) > _LISTED else ""
    return f"{aligned(head, cells)}\n{more}"


def _answer(row: Mapping[str, "TableCell"]) -> str:
    if row["status"] == "infeasible":
        return f"no plan: {row['conflict']}"
    if row["status"] == "none-found":
        return f"no plan found, none proven impossible: {row['conflict']}"
    return str(row["plan"] if row["status"] == "ok" else row["error"])


def _shown(cell: "TableCell") -> str:
    return "-" if cell is None else significant(cell) if isinstance(cell, float) else str(cell)


def _break_evens(changes: Sequence[Mapping[str, Any]]) -> str:
    if not changes:
        return ""
    rows = [
        (
            change["axis"],
            f"{change['low']:.4g} .. {change['high']:.4g}",
            ", ".join(f"{name}={_shown(cell)}" for name, cell in change["at"].items()) or "-",
            change["before"],
            change["after"],
        )
        for change in changes[:_LISTED]
    ]
    more = f"  ... and {len(changes) - _LISTED:,} more\n" if len(changes) > _LISTED else ""
    head = ("break-even along", "between", "at", "below", "above")
    return f"{aligned(head, rows)}\n{more}"


def _sensitivity(sensitivity: Mapping[str, Any]) -> str:
    rows = [
        (
            axis["axis"],
            _shown(axis["elasticity"]),
            _percent(axis["objective_spread"]),
            _percent(axis["decision_changes"]),
        )
        for axis in sensitivity["axes"]
    ]
    if not rows:
        return ""
    head = ("input", "objective per input, relative", "moves the objective by", "changes the decision")
    text = aligned(head, rows)
    return (
        f"{text}\n  {_percent(sensitivity['differs_from_base'])} of the points decide otherwise than the base problem\n"
    )


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{significant(share * 100)} %"


def render_gate(gate: "Gate") -> str:
    """The verdict: every failing point with its reason, the worst first."""
    failed = gate.failed
    lines = []
    for verdict in failed[:_LISTED]:
        lines += [f"FAIL  {verdict.name}: {breach.why}   ({breach.rule})" for breach in verdict.breaches]
    if len(failed) > _LISTED:
        lines.append(f"  ... and {len(failed) - _LISTED:,} more points")
    lines += [f"note  {note}" for note in (*gate.notes, *gate.remarks)]
    lines.append(f"{'ok' if gate.ok else 'FAIL'}    gate: {gate.counted}")
    return "\n".join(lines)

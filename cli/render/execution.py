"""Renders an executed plan: measured against predicted step times, operator by operator, and the verdict."""

from typing import TYPE_CHECKING

from planner.cli.errors import plain
from planner.cli.render.columns import table
from planner.cli.render.findings import render_findings
from planner.documents.units import format_si

if TYPE_CHECKING:
    from planner.execute.judge.verdict import Execution, StepVerdict

_MOST_OPERATORS = 8


def render_execution(execution: "Execution") -> str:
    """Steps with predicted and measured times, their largest operators, and what that means."""
    device = execution.device
    where = f"{device.get('name', 'no device')}, torch {device.get('torch', 'unknown')}"
    cut = ", ".join(f"{key} at most {value}" for key, value in execution.cut.items())
    parts = [f"on {where}, against {execution.pricer}" + (f", {cut}" if cut else "")]
    if execution.steps:
        header = ("role", "rank", "step", "batch", "context", "predicted", "measured", "error", "executed", "memory")
        parts.append(table(header, [_row(step) for step in execution.steps]))
        parts += [_operators(step) for step in execution.steps if step.claimed]
    if execution.median_error is not None:
        parts.append(f"median error {execution.median_error:.1%} of the steps with a claim")
    parts.append(render_findings(execution.findings()))
    return plain("\n\n".join(parts))


def _row(step: "StepVerdict") -> tuple[str, ...]:
    memory = format_si(step.memory_bytes, "B") if step.memory_bytes is not None else "-"
    if step.memory_error is not None:
        memory += f" ({step.memory_error:+.1%})"
    return (
        step.role,
        str(step.rank),
        step.step,
        str(step.batch),
        str(step.context),
        format_si(step.predicted_s, "s") if step.claimed else "-",
        format_si(step.measured_s, "s"),
        f"{step.error:+.1%}" if step.error is not None else "no claim",
        f"{step.executed_share:.0%}",
        memory,
    )


def _operators(step: "StepVerdict") -> str:
    """The operators that were measured on their own, those that took longest first."""
    timed = [(name, row, row.measured_s) for name, row in step.operators.items() if row.measured_s is not None]
    cells = [
        (name, f"{row.count:g}", format_si(row.predicted_s, "s"), format_si(s, "s"), _ratio(row.predicted_s, s))
        for name, row, s in sorted(timed, key=lambda row: -row[2])[:_MOST_OPERATORS]
    ]
    title = f"{step.role}, {step.step}, rank {step.rank}"
    return f"{title}\n" + table(("operator", "runs", "predicted", "measured", "error"), cells)


def _ratio(predicted_s: float, measured_s: float) -> str:
    return f"{predicted_s / measured_s - 1.0:+.1%}" if measured_s > 0 else "-"

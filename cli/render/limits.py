"""Renders every limit as stated, beside the value, its interval, the chance that it holds, and what judged it."""

from typing import TYPE_CHECKING

from planner.cli.render.columns import fitted

if TYPE_CHECKING:
    from planner.plan.schema import Decision, Envelope


def render_limits(envelope: "Envelope", decision: "Decision") -> str:
    """A row a limit; empty where the problem states none."""
    from planner.explain.limits import HEADER, limit_rows

    rows = limit_rows(envelope, decision)
    return fitted(HEADER, [row.cells for row in rows]) if rows else ""

"""Renders every limit as stated, beside the value, its interval, the chance that it holds, and what judged it."""

from typing import TYPE_CHECKING

from planner.cli.render.columns import fitted, wrapped

if TYPE_CHECKING:
    from planner.plan.schema import Decision, Envelope


def render_limits(envelope: "Envelope", decision: "Decision") -> str:
    """A row a limit, and the chance that all of a workload hold; empty where the problem states none."""
    from planner.costs.serving.chances import chances_of
    from planner.explain.chances import together_facts
    from planner.explain.limits import HEADER, limit_rows

    rows = limit_rows(envelope, decision)
    if not rows:
        return ""
    together = (wrapped(fact.what) for fact in together_facts(list(chances_of(envelope, decision))))
    return "\n".join([fitted(HEADER, [row.cells for row in rows]), *together])

"""Renders every limit as stated, beside the value, its interval, the chance that it holds, and what judged it."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from planner.cli.render.columns import fitted, span
from planner.documents.units import figure

if TYPE_CHECKING:
    from planner.explain.limits import StatedLimit
    from planner.plan.schema import Decision, Envelope


def render_limits(envelope: "Envelope", decision: "Decision") -> str:
    """A row a limit; empty where the problem states none."""
    from planner.explain.chances import chances_of
    from planner.explain.limits import stated_limits

    limits = list(stated_limits(envelope))
    if not limits:
        return ""
    chances = {
        (sure.prediction.metric, sure.workload, sure.prediction.statistic): sure.chance
        for sure in chances_of(envelope, decision)
    }
    header = ("limit on", "of", "statistic", "limit", "value", "verdict", "interval", "chance", "judged by")
    return fitted(header, [_row(limit, chances.get((limit.metric, limit.of, limit.value_of))) for limit in limits])


def _row(limit: "StatedLimit", chance: float | None) -> tuple[str, ...]:
    show: Callable[[float], str] = partial(_shown, limit.metric)
    value = "-" if limit.value is None else show(limit.value)
    if limit.value is not None and limit.value_of != limit.statistic:
        value += f" ({limit.value_of})"
    interval = f"{span(*map(show, limit.interval))} ({limit.confidence:.0%})" if limit.interval else "-"
    word = limit.verdict or {True: "kept", False: "broken", None: "not told"}[limit.kept]
    sure = "-" if chance is None else f"{chance:.0%}"
    name, of = limit.metric.removesuffix("_s"), limit.of or "plan"
    return name, of, limit.statistic, f"{limit.sense} {show(limit.bound)}", value, word, interval, sure, limit.judged_by


def _shown(metric: str, value: float) -> str:
    return f"{value:.2%}" if metric == "attainment" else figure(metric, value)

"""Every limit of a plan as a row of words: for the screen and for the page alike."""

from dataclasses import dataclass

from planner.documents.units import figure, span
from planner.explain.chances import chances_of
from planner.explain.limits import StatedLimit, stated_limits
from planner.plan.schema import Decision, Envelope

HEADER = ("limit on", "of", "statistic", "limit", "value", "verdict", "interval", "chance", "judged by")
NOTHING = "-"


@dataclass(frozen=True, slots=True)
class LimitRow:
    """A limit, and its cells in the order of `HEADER`."""

    limit: StatedLimit
    cells: tuple[str, ...]


def limit_rows(envelope: Envelope, decision: Decision) -> list[LimitRow]:
    """A row a limit, as stated, beside the value, its interval, the chance that it holds, and what judged it."""
    chances = {
        (sure.prediction.metric, sure.workload, sure.prediction.statistic): sure.chance
        for sure in chances_of(envelope, decision)
    }
    limits = stated_limits(envelope)
    return [LimitRow(each, _cells(each, chances.get((each.metric, each.of, each.value_of)))) for each in limits]


def shown(metric: str, value: float) -> str:
    """A value of a limit, with its unit."""
    return f"{value:.2%}" if metric == "attainment" else figure(metric, value)


def _cells(limit: StatedLimit, chance: float | None) -> tuple[str, ...]:
    value = NOTHING if limit.value is None else shown(limit.metric, limit.value)
    if limit.value is not None and limit.value_of != limit.statistic:
        value += f" ({limit.value_of})"
    interval = NOTHING
    if limit.interval is not None:
        interval = f"{span(*(shown(limit.metric, end) for end in limit.interval))} ({limit.confidence:.0%})"
    word = limit.verdict or {True: "kept", False: "broken", None: "not told"}[limit.kept]
    sure = NOTHING if chance is None else f"{chance:.0%}"
    name, of = limit.metric.removesuffix("_s"), limit.of or "plan"
    bound = f"{limit.sense} {shown(limit.metric, limit.bound)}"
    return name, of, limit.statistic, bound, value, word, interval, sure, limit.judged_by

"""Parses gate rules such as `cost_per_mtok > +3%`, `busy: ttft_s > 200ms`, `goodput_per_gpu < -0.5`."""

import math
import operator
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal

from planner.documents.units import PER_S, TIME_S, USD_PER_HOUR, parse_quantity
from planner.errors import PlannerError, did_you_mean
from planner.sweep.columns import ALIASES, metric_name

_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le,
}  # fmt: skip
Measure = Literal["level", "change", "relative"]

_RULE = re.compile(
    r"\s*(?:(?P<scenario>[^:<>=]+?)\s*:)?\s*(?P<metric>[A-Za-z_][\w.]*)\s*(?P<comparison>>=|<=|>|<)\s*(?P<amount>\S.*?)\s*"
)
_EXAMPLES = "write for example `cost_per_mtok > +3%`, `busy: ttft_s > 200ms` or `gpus > +0`"


@dataclass(frozen=True, slots=True)
class GateRule:
    """A point fails when its metric stands in `comparison` to `amount`.

    `level` compares the figure itself, `change` its difference from the baseline, `relative` that difference over the
    baseline's figure. Amounts are in SI units, 3 % is 0.03.
    """

    text: str
    scenario: str | None  # every scenario when None
    metric: str
    comparison: str
    amount: float
    measure: Measure

    @property
    def needs_baseline(self) -> bool:
        return self.measure != "level"

    def measured(self, now: float, before: float | None) -> float | None:
        """What the rule compares with its amount; None where there is no figure to compare with."""
        if self.measure == "level":
            return now
        if before is None:
            return None
        if self.measure == "change":
            return now - before
        if now == before:
            return 0.0
        return (now - before) / abs(before) if before else math.copysign(math.inf, now - before)

    def fails(self, measured: float) -> bool:
        """Whether `measured` breaks the rule."""
        return _COMPARISONS[self.comparison](measured, self.amount)


def parse_rule(text: str) -> GateRule:
    """The rule that `text` writes down; raises PlannerError for anything else."""
    match = _RULE.fullmatch(text)
    if match is None:
        raise PlannerError(f"`{text}` is no rule", where="--fail-on", hint=_EXAMPLES)
    amount, measure = _amount(match["amount"], text)
    return GateRule(text.strip(), match["scenario"], metric_name(match["metric"]), match["comparison"], amount, measure)


def _amount(written: str, text: str) -> tuple[float, Measure]:
    signed = written[0] in "+-"
    if written.endswith("%"):
        if not signed:
            raise PlannerError(
                f"`{text}` has a percentage without a sign",
                where="--fail-on",
                hint=f"write `+{written}` for a change against the baseline",
            )
        return _number(written[:-1], text) / 100, "relative"
    return _number(written, text), "change" if signed else "level"


def _number(written: str, text: str) -> float:
    value: float | None = None
    try:
        value = float(written)
    except ValueError:
        for table in (TIME_S, USD_PER_HOUR, PER_S):
            try:
                value = parse_quantity(written, table)
            except PlannerError:
                continue
            break
    if value is None or not math.isfinite(value):
        raise PlannerError(f"`{text}` compares with `{written}`, no number", where="--fail-on", hint=_EXAMPLES)
    return value


def require_judgeable(rule: GateRule, scenarios: Collection[str], *, baseline: bool) -> None:
    """Raises PlannerError for a rule on a scenario that the sweep does not have, or against a baseline not given."""
    if rule.scenario is not None and rule.scenario not in scenarios:
        known = list(scenarios)
        raise PlannerError(
            f"unknown scenario `{rule.scenario}` in `{rule.text}`",
            where="--fail-on",
            hint=did_you_mean(rule.scenario, known, otherwise=f"the scenarios are {', '.join(known)}"),
        )
    if rule.needs_baseline and not baseline:
        raise PlannerError(
            f"`{rule.text}` needs a baseline",
            where="--fail-on",
            hint="name it with `--baseline FILE`, or compare with a level such as `ttft_s > 200ms`",
        )


def require_metric(rule: GateRule, metrics: Collection[str]) -> None:
    """Raises PlannerError for a rule on a metric that the sweep does not have."""
    if rule.metric not in metrics:
        known = sorted({*metrics, *(alias for alias, name in ALIASES.items() if name in metrics)})
        raise PlannerError(
            f"unknown metric `{rule.metric}` in `{rule.text}`",
            where="--fail-on",
            hint=did_you_mean(rule.metric, known, otherwise=f"the metrics are {', '.join(known)}"),
        )

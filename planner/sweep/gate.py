"""Regression gate: compares every point with its rules and with the same point of the baseline."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planner.documents.tree import leaves
from planner.errors import PlannerError
from planner.sweep.journal import WITHOUT_PLAN
from planner.sweep.results import ResultTable, TableCell
from planner.sweep.rules import GateRule, require_judgeable, require_metric

Row = dict[str, TableCell]
FIXED_BY_LOAD = ("requests_per_s", "output_tokens_per_s")
"""Figures that follow from the load of a problem that minimises something: whatever the plan is, it serves that."""
_DIGITS = 9  # of an excess: equal ones keep the order of the points, whatever the last bit says


@dataclass(frozen=True, slots=True)
class Breach:
    """One reason why a point fails."""

    rule: str  # its text, or what was broken
    why: str
    excess: float  # the worst first, in a listing


@dataclass(frozen=True, slots=True)
class PointVerdict:
    """What the gate says of one point."""

    row: Row
    name: str  # scenario and axes
    before: Row | None  # the same point of the baseline
    breaches: tuple[Breach, ...]
    uncompared: tuple[str, ...] = ()  # rules that had no figure of the baseline to compare with

    @property
    def ok(self) -> bool:
        return not self.breaches

    @property
    def passed(self) -> bool:
        """Whether every rule was judged, and none is broken."""
        return self.ok and not self.uncompared


@dataclass(frozen=True, slots=True)
class Gate:
    """The verdict on a sweep; `notes` say what could not be compared, `remarks` which rules may have nothing to see."""

    verdicts: tuple[PointVerdict, ...]
    rules: tuple[GateRule, ...]
    baseline: ResultTable | None
    table: ResultTable
    notes: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def failed(self) -> tuple[PointVerdict, ...]:
        """The points that fail, the worst first."""
        bad = [verdict for verdict in self.verdicts if not verdict.ok]
        return tuple(sorted(bad, key=lambda verdict: -max(breach.excess for breach in verdict.breaches)))

    @property
    def ok(self) -> bool:
        return not self.failed

    @property
    def uncompared(self) -> tuple[PointVerdict, ...]:
        """The points that do not fail, but that some rule had nothing to compare with."""
        return tuple(verdict for verdict in self.verdicts if verdict.ok and not verdict.passed)

    @property
    def counted(self) -> str:
        """How many points pass, in words; those that were not compared are none of them."""
        total, uncompared = len(self.verdicts), len(self.uncompared)
        passed = total - len(self.failed) - uncompared
        return f"{passed:,} of {total:,} points pass{f', {uncompared:,} not compared' if uncompared else ''}"


def judge(table: ResultTable, baseline: ResultTable | None, rules: Sequence[GateRule]) -> Gate:
    """The verdict on every point.

    Raises PlannerError for a rule that cannot be judged at all: on no metric or scenario of the sweep, on one that no
    plan can change, against no baseline, or against one that shares no point with it.
    """
    metrics = {name for name, kind in table.columns.items() if kind != "text"} - {"point", *table.axes}
    for rule in rules:
        scenarios = list(dict.fromkeys(str(row["scenario"]) for row in table.rows))
        require_judgeable(rule, scenarios, baseline=baseline is not None)
        require_metric(rule, metrics)
        _require_figures(rule, table, baseline)
        _require_free(rule, table)
    known = {_identity(row, table.axes): row for row in baseline.rows} if baseline is not None else {}
    if baseline is not None and not any(_identity(row, table.axes) in known for row in table.rows):
        raise PlannerError(
            "the baseline shares no point with this sweep",
            where=baseline.source,
            hint=(
                "make it again on the main branch, with the same axes and scenarios: `planner sweep SWEEP.yaml -o FILE`"
            ),
        )
    verdicts = []
    for row in table.rows:
        before = known.get(_identity(row, table.axes))
        breaches = _breaches(row, before, rules, compared=baseline is not None)
        uncompared = _uncompared(row, before, rules) if baseline is not None else ()
        verdicts.append(PointVerdict(row, point_name(row, table), before, breaches, uncompared))
    notes, remarks = tuple(_notes(verdicts, baseline)), tuple(_constant(rules, verdicts))
    return Gate(tuple(verdicts), tuple(rules), baseline, table, notes, remarks)


def point_name(row: Row, table: ResultTable) -> str:
    """A point in words: its scenario and its value on every axis."""
    axes = [f"{axis}={_shown(row[axis])}" for axis in table.axes]
    return " ".join([str(row["scenario"]), *axes])


def _shown(cell: TableCell) -> str:
    return f"{cell:.6g}" if isinstance(cell, float) else str(cell)


def _identity(row: Row, axes: Sequence[str]) -> tuple[str, ...]:
    """What tells points apart, alike in every file format."""
    return (str(row["scenario"]), *(_plain(row.get(axis)) for axis in axes))


def _plain(cell: TableCell) -> str:
    try:
        return f"{float(cell):.12g}" if cell is not None else ""
    except ValueError:
        return str(cell)


def _require_figures(rule: GateRule, table: ResultTable, baseline: ResultTable | None) -> None:
    solved = [row for row in table.rows if row["status"] == "ok"]
    if solved and all(row.get(rule.metric) is None for row in solved):
        raise PlannerError(
            f"no point has `{rule.metric}`, which `{rule.text}` needs",
            where="--fail-on",
            hint="give every pool a `price`" if "usd" in rule.metric else "name a metric that this sweep has",
        )
    if rule.needs_baseline and baseline is not None and rule.metric not in baseline.columns:
        raise PlannerError(
            f"the baseline has no `{rule.metric}`",
            where=baseline.source,
            hint="make the baseline again with this metric",
        )


def _require_free(rule: GateRule, table: ResultTable) -> None:
    """Refuses a change of what the load alone decides."""
    if not rule.needs_baseline or rule.metric not in FIXED_BY_LOAD or any("objective" in axis for axis in table.axes):
        return
    judged = [problem for name, problem in table.inputs.items() if rule.scenario in (None, name)]
    goals = [problem.get("objective") if isinstance(problem, dict) else None for problem in judged]
    goal = next((goal["minimize"] for goal in goals if isinstance(goal, dict) and goal.get("minimize")), None)
    if goal is not None and all(isinstance(other, dict) and other.get("minimize") for other in goals):
        raise PlannerError(
            f"`{rule.text}` can never fail: where `{goal}` is minimised, `{rule.metric}` follows from the load",
            where="--fail-on",
            hint="judge what the plan decides, such as `gpus > +0` or `cost_per_mtok > +3%`",
        )


def _uncompared(row: Row, before: Row | None, rules: Sequence[GateRule]) -> tuple[str, ...]:
    """The rules that compare this point with the baseline, which has no figure for it."""
    if before is None and not rules:
        return ("feasible",)
    if row["status"] != "ok" and before is not None:
        return ()
    needing = [rule for rule in rules if rule.needs_baseline and _applies(rule, row)]
    old = before if before is not None else {}
    return tuple(rule.text for rule in needing if not isinstance(old.get(rule.metric), int | float))


def _constant(rules: Sequence[GateRule], verdicts: Sequence[PointVerdict]) -> Iterator[str]:
    """Remarks on rules whose figure is one number at every point, then as now, so that nothing tells if it can move."""
    for rule in rules:
        rows = [verdict for verdict in verdicts if _applies(rule, verdict.row) and verdict.before is not None]
        figures = {row.get(rule.metric) for verdict in rows for row in (verdict.row, verdict.before or {})} - {None}
        if rule.needs_baseline and len(rows) > 1 and len(figures) == 1:
            everywhere = f"is {_figure(figures.pop())} at every point, in the baseline and now"
            yield f"`{rule.metric}` {everywhere}: `{rule.text}` saw nothing that moves"


def _breaches(row: Row, before: Row | None, rules: Sequence[GateRule], *, compared: bool) -> tuple[Breach, ...]:
    if row["status"] == "error" or row["status"] == "stopped":
        return (Breach("solved", str(row["error"]), float("inf")),)
    if row["status"] in WITHOUT_PLAN:
        lost = before is not None and before["status"] == "ok"
        unjudged = not compared and any(_applies(rule, row) for rule in rules)
        none = "no plan" if row["status"] == "infeasible" else "no plan that is found"
        why = f"{none} meets the limits any more: {row['conflict']}" if lost else f"{none}: {row['conflict']}"
        return (Breach("feasible", why, float("inf")),) if lost or unjudged else ()
    return tuple(breach for rule in rules if _applies(rule, row) and (breach := _broken(rule, row, before)) is not None)


def _applies(rule: GateRule, row: Row) -> bool:
    return rule.scenario is None or rule.scenario == row["scenario"]


def _broken(rule: GateRule, row: Row, before: Row | None) -> Breach | None:
    now = row.get(rule.metric)
    if not isinstance(now, int | float):
        return Breach(rule.text, f"has no `{rule.metric}` to judge", float("inf"))
    old = before.get(rule.metric) if before is not None else None
    measured = rule.measured(float(now), float(old) if isinstance(old, int | float) else None)
    if measured is None or not rule.fails(measured):
        return None
    figures = f"{rule.metric} {_figure(old)} -> {_figure(now)}" if rule.needs_baseline else f"{rule.metric} {now:.6g}"
    change = f" ({measured * 100:+.3g} %)" if rule.measure == "relative" else ""
    change = f" ({measured:+.4g})" if rule.measure == "change" else change
    return Breach(rule.text, f"{figures}{change}", round(abs(measured - rule.amount), _DIGITS))


def _figure(cell: TableCell) -> str:
    return f"{cell:.6g}" if isinstance(cell, int | float) else "none"


def _notes(verdicts: Sequence[PointVerdict], baseline: ResultTable | None) -> list[str]:
    if baseline is None:
        return []
    new = sum(verdict.before is None for verdict in verdicts)
    gone = len(baseline.rows) - (len(verdicts) - new)
    freed = sum(
        verdict.before is not None and verdict.before["status"] in WITHOUT_PLAN and verdict.row["status"] == "ok"
        for verdict in verdicts
    )
    notes = [f"{new:,} points are not in the baseline and were not compared"] if new else []
    notes += [f"{gone:,} points of the baseline are not in this sweep"] if gone > 0 else []
    return notes + ([f"{freed:,} points have a plan now and had none in the baseline"] if freed else [])


def changed_inputs(table: ResultTable, baseline: ResultTable) -> list[str]:
    """Every input of the base problems that differs from the baseline's, in words."""
    lines = []
    for scenario, now in table.inputs.items():
        before = baseline.inputs.get(scenario)
        if before is None:
            continue
        old, new = _by_path(before), _by_path(now)
        prefix = f"{scenario}: " if len(table.inputs) > 1 else ""
        for path in dict.fromkeys([*old, *new]):
            if old.get(path) != new.get(path):
                lines.append(f"{prefix}{path}: {old.get(path, 'none')} -> {new.get(path, 'none')}")
    return lines


def _by_path(value: object) -> dict[str, str]:
    """Every scalar, and every list of scalars, by its dotted path."""
    return {".".join(str(key) for key in path): str(below) for path, below in leaves(value)}

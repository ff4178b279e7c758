"""Every limit that a problem states, as stated, beside what the plan has for it and what judged that."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from planner.costs.serving.chances import chances_of
from planner.documents.units import figure, span
from planner.errors import PlannerError
from planner.plan.schema import Decision, Envelope, Prediction
from planner.problem.recorded import recorded_problem
from planner.problem.schema import Problem, WorkloadSpec

HEADER = ("limit on", "of", "statistic", "limit", "held to", "value", "verdict", "interval", "chance", "judged by")
NOTHING = "-"
FORMULAS, NOT_JUDGED = "formulas", "not judged"
_VERIFIED = "certificate.proof.verified.limits"


@dataclass(frozen=True, slots=True)
class StatedLimit:
    """A limit, in SI units, and the value that the plan has for it.

    `of` is a workload, empty for the whole plan. `value_of` is the statistic that the value is of: that of the limit,
    or the mean where nothing nearer is predicted. `interval` covers `confidence` of what the value may be. The search
    compared with `held_to`, which is stricter than the `bound` where limits are kept `with_confidence`.
    """

    metric: str  # ttft_s, attainment, iteration_time_s, gpus, usd_per_hour
    of: str
    statistic: str
    sense: Literal["<=", ">="]
    bound: float
    held_to: float
    value: float | None
    value_of: str
    interval: tuple[float, float] | None
    confidence: float
    judged_by: str
    verdict: str
    with_confidence: float | None = None

    @property
    def kept(self) -> bool | None:
        """Whether the value keeps the limit; None where there is no value."""
        if self.value is None:
            return None
        return self.value <= self.bound if self.sense == "<=" else self.value >= self.bound


def stated_limits(envelope: Envelope) -> Iterator[StatedLimit]:
    """All limits of the problem inside a plan: times and attainments of workloads, then caps of the whole plan.

    Limits that were verified while instances are down follow those of the whole. Raises PlannerError where what was
    verified is not stated as limits with their values.
    """
    problem = recorded_problem(envelope.inputs)
    if problem is None:
        return
    verified, down = dict[tuple[str, str, str], StatedLimit](), list[StatedLimit]()
    stated = {
        (metric, workload.name, statistic): bound
        for workload in problem.workloads
        for metric, statistic, bound in _of_workload(workload)
    }
    for key, limit, is_down in _verified(envelope):
        margins = envelope.evidence.margins_of(key[1])
        confidence = None if margins is None else margins.confidence
        as_stated = replace(limit, bound=stated.get(key, limit.bound), with_confidence=confidence)
        if is_down:
            down.append(as_stated)
        else:
            verified[key] = as_stated
    for key, bound in stated.items():
        yield verified[key] if key in verified else _predicted(envelope, *key, bound)
    yield from down
    for metric, bound in _caps(envelope, problem):
        yield _predicted(envelope, metric, "", "mean", bound)


def _of_workload(workload: WorkloadSpec) -> Iterator[tuple[str, str, float]]:
    for time, statistic, bound_s in workload.slo.limits():
        yield f"{time}_s", statistic, bound_s
    if workload.slo.attainment is not None and workload.slo.percentile_limits():
        yield "attainment", "share", workload.slo.attainment


def _caps(envelope: Envelope, problem: Problem) -> Iterator[tuple[str, float]]:
    """Caps of the whole plan: devices, money, and the deadline of an iteration."""
    caps: dict[str, Any] = {"gpus": problem.limits.gpus, "usd_per_hour": problem.limits.usd_per_hour}
    if envelope.kind == "rl":
        caps["iteration_time_s"] = problem.options.get("max_iteration_s")
    yield from ((metric, float(bound)) for metric, bound in caps.items() if isinstance(bound, (int, float)))


def _predicted(envelope: Envelope, metric: str, of: str, statistic: str, bound: float) -> StatedLimit:
    margins = envelope.evidence.margins_of(of)
    held_to, confidence = (bound, None) if margins is None else (bound / margins.of_time(metric), margins.confidence)
    rows = [row for row in envelope.predictions if (row.metric, row.of) == (metric, of)]
    wanted = (statistic, "mean") if metric != "attainment" else ("mean",)
    row = next((row for name in wanted for row in rows if row.statistic == name), None)
    sense: Literal["<=", ">="] = ">=" if metric == "attainment" else "<="
    if row is None:
        unknown = StatedLimit(metric, of, statistic, sense, bound, held_to, None, statistic, None, 0.8, NOT_JUDGED, "")
        return replace(unknown, with_confidence=confidence)
    judge = _judge(envelope, row)
    shown = statistic if metric == "attainment" else row.statistic
    known = StatedLimit(metric, of, statistic, sense, bound, held_to, row.value, shown, row.interval, 0.8, judge, "")
    return replace(known, with_confidence=confidence)


def _judge(envelope: Envelope, row: Prediction) -> str:
    """What a prediction without a verified limit rests on."""
    if envelope.kind in ("place", "rl", "workflow") and row.metric not in ("gpus", "usd_per_hour"):
        return "simulation"
    return FORMULAS


def _verified(envelope: Envelope) -> Iterator[tuple[tuple[str, str, str], StatedLimit, bool]]:
    """((metric, workload, statistic), the limit as it was verified, whether instances were down) of each."""
    verified = envelope.certificate.proof.get("verified")
    rows: Any = verified.get("limits") if isinstance(verified, dict) else None
    try:
        for row in rows or ():
            yield _row(row)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise PlannerError(
            "what was verified is not stated as limits with their values",
            where=_VERIFIED,
            hint="`planner check` names what differs from the plan as it was solved",
        ) from error


def _row(row: Any) -> tuple[tuple[str, str, str], StatedLimit, bool]:  # noqa: ANN401 - a row of a document that may be anything
    """A row as it stands in a plan; raises what comes of one that is none."""
    down = "".join(f", {count} of {role} down" for role, count in row.get("down", {}).items())
    share = row["time"] == "attainment"
    metric, workload = "attainment" if share else f"{row['time']}_s", str(row["workload"])
    statistic = "share" if share else str(row["statistic"])
    interval = (float(row["interval_95"][0]), float(row["interval_95"][1])) if row["interval_95"] else None
    limit = StatedLimit(
        metric,
        f"{workload}{down}",
        statistic,
        ">=" if share else "<=",
        float(row["limit"]),
        float(row["limit"]),
        float(row["value"]),
        statistic,
        interval,
        0.95,
        str(row.get("judged_by", "simulation")),
        str(row["verdict"]),
    )
    return (metric, workload, statistic), limit, bool(down)


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
    word = limit.verdict or {True: "kept", False: "broken", None: "unknown"}[limit.kept]
    sure = NOTHING if chance is None else f"{chance:.0%}"
    name, of = limit.metric.removesuffix("_s"), limit.of or "plan"
    bound = f"{limit.sense} {shown(limit.metric, limit.bound)}"
    held_to = NOTHING
    if limit.held_to != limit.bound:
        held_to = shown(limit.metric, limit.held_to)
        held_to += "" if limit.with_confidence is None else f" for {limit.with_confidence:.0%}"
    return name, of, limit.statistic, bound, held_to, value, word, interval, sure, limit.judged_by

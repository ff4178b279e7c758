"""What would change the plan: its recorded problem solved again with one limit moved at a time."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planner.api import solve
from planner.diff import diff_plans
from planner.documents.units import figure, format_si, significant
from planner.errors import Infeasible, PlannerError, Stopped
from planner.explain.facts import Fact
from planner.kinds.registry import find_kind
from planner.plan.schema import Decision, Envelope
from planner.problem.recorded import INPUTS, recorded_problem, tables_at_hand
from planner.problem.resolve import resolve
from planner.problem.schema import Problem
from planner.progress import Limits

STEP = 0.10  # by how much a limit is moved, each way
MOST_S = 30.0  # of the processor, after which no further limit is moved
_SAME = 1e-9


@dataclass(frozen=True, slots=True)
class _Knob:
    """One number of the problem that can move: where it stands, what it is, and how it is written."""

    path: tuple[str | int, ...]
    name: str
    about: tuple[str, ...]
    value: float
    unit: str
    whole: bool = False

    def show(self, value: float) -> str:
        """A value of it as people write it."""
        if self.whole:
            return f"{value:.0f}"
        return format_si(value, "s") if self.unit == "s" else f"{significant(value)}{self.unit}"


def deep_facts(
    envelope: Envelope,
    *,
    profiles: Sequence[str] = (),
    base: Path = Path(),
    tell: Callable[[str], None] = lambda message: None,
    concerns: Callable[[Sequence[str]], bool] = lambda about: True,
) -> Iterator[Fact]:
    """One fact for each limit moved up and down by a tenth, of those that are about what `concerns`.

    Limits that are not reached within `MOST_S`, but for the first, are counted in a note.
    Raises PlannerError for a problem that cannot be solved here: one whose traces are not at hand, or of a kind that is
    read and not solved.
    """
    problem = recorded_problem(envelope.inputs)
    if problem is None:
        raise PlannerError("the problem in the plan is not valid", where="inputs", hint="run `planner check` on it")
    tables = tables_at_hand(envelope.digests.profiles, profiles)
    problem = problem.model_copy(update={"costs": problem.costs.model_copy(update={"profiles": tables})})
    started_s = time.process_time()
    here = _solved(problem, envelope.certificate.confidence, base, tell)
    if isinstance(here, str):
        yield Fact("note", f"the problem of this plan is {here} here and now, so nothing can be compared")
        return
    if here.digests.profiles != envelope.digests.profiles or here.digests.calibration != envelope.digests.calibration:
        yield Fact("note", "other costs than the plan's are at hand: give its kernel tables with --profiles")
    elif here.decision != envelope.decision:
        yield Fact("note", "a solve here and now decides otherwise; what follows is compared with that")
    knobs = [knob for knob in _knobs(problem) if concerns(knob.about)]
    for number, knob in enumerate(knobs):
        if number and time.process_time() - started_s > MOST_S:
            yield Fact("note", _left_out(knobs[number:]))
            return
        tell(f"moving {knob.name}")
        for factor in (1.0 - STEP, 1.0 + STEP):
            yield _moved(problem, here, knob, factor, base, tell)


def _left_out(knobs: Sequence[_Knob]) -> str:
    """What was not moved, and how to have it moved."""
    names = ", ".join(knob.name.removesuffix(" <=") for knob in knobs)
    fields = dict.fromkeys(".".join(part for part in knob.about if part != "objective") for knob in knobs)
    return (
        f"after {MOST_S:.0f} s, {len(knobs)} limits were not moved: {names}; `planner explain PLAN FIELD --deep` moves "
        f"those of a field, such as {' or '.join(f'`{name}`' for name in list(fields)[:2])}"
    )


def _solved(problem: Problem, confidence: float | None, base: Path, tell: Callable[[str], None]) -> Envelope | str:
    """The plan with limits at the confidence that was chosen, or what there is in its place, in a word."""
    try:
        resolved = replace(resolve(problem, INPUTS, base=base), confidence=confidence)
        return solve(resolved, Limits(tell=tell), level="static")
    except Infeasible as answer:
        return "infeasible" if answer.proved else "without a plan, as far as was searched"
    except Stopped:
        return "stopped short"


def _knobs(problem: Problem) -> Iterator[_Knob]:
    for index, workload in enumerate(problem.workloads):
        for name, statistic, value in workload.slo.limits():
            title = f"{statistic} {name} of `{workload.name}` <="
            about = (workload.name, name)
            yield _Knob(("workloads", index, "slo", name, f"{statistic}_s"), title, about, value, "s")
        load, name, about = workload.load, workload.name, (workload.name, "requests_per_s")
        if load is not None and load.rate_per_s is not None:
            yield _Knob(("workloads", index, "load", "rate_per_s"), f"rate of `{name}`", about, load.rate_per_s, "/s")
        if load is not None and load.concurrency is not None:
            path = ("workloads", index, "load", "concurrency")
            yield _Knob(path, f"clients of `{name}`", about, load.concurrency, "", True)
    limits, context = problem.limits, problem.engine.max_context_tokens
    if context is not None:
        yield _Knob(
            ("engine", "max_context_tokens"),
            "max_context_tokens",
            ("max_context_tokens", "objective"),
            context,
            "",
            True,
        )
    if limits.gpus is not None:
        yield _Knob(("limits", "gpus"), "gpus <=", ("gpus",), limits.gpus, "", True)
    if limits.usd_per_hour is not None:
        yield _Knob(("limits", "usd_per_hour"), "price <=", ("price",), limits.usd_per_hour, " USD/h")


def _moved(
    problem: Problem, here: Envelope, knob: _Knob, factor: float, base: Path, tell: Callable[[str], None]
) -> Fact:
    value = knob.value * factor
    if knob.whole:
        value = float(max(1, round(value) if round(value) != knob.value else knob.value + (1 if factor > 1 else -1)))
    data = problem.model_dump(mode="json", by_alias=True, exclude_none=True)
    _set(data, knob.path, int(value) if knob.whole else value)
    start = f"{knob.name} {knob.show(value)}"
    try:
        there = _solved(Problem.model_validate(data), here.certificate.confidence, base, tell)
    except PlannerError as error:
        there = error.what
    if isinstance(there, str):
        return Fact("change", f"{start}: {there}", knob.about)
    return Fact("change", f"{start}: {_difference(here, there)}", knob.about, figures=_figures(here, there))


def _set(data: Any, path: tuple[str | int, ...], value: float) -> None:  # noqa: ANN401 - parsed JSON
    for step in path[:-1]:
        data = data[step]
    data[path[-1]] = value


def _difference(here: Envelope, there: Envelope) -> str:
    difference = diff_plans(_with_decision(here), _with_decision(there))
    roles = ", ".join(
        _role_text(change.path, change.before, change.after) for change in difference.decision if _told(change.path)
    )
    metric = here.certificate.objective.metric
    value, other_value = here.certificate.objective.value, there.certificate.objective.value
    relative = _figures(here, there).get("relative", 0.0)
    if not difference.decision:
        return "the same decision"
    moved = f"{metric} {figure(metric, value)} -> {figure(metric, other_value)} ({100 * relative:+.1f} %)"
    return (
        f"{moved}{f'; {roles}' if roles else ''}"
        if abs(relative) > _SAME
        else f"equal {metric}; {roles or 'other shares'}"
    )


def _told(path: str) -> bool:
    """Roles that come or go, and how many there are of the others: what fits on a line."""
    steps = path.split(".")
    return steps[0] == "roles" and (len(steps) == 2 or steps[-1] in ("replicas", "max_batch"))


def _role_text(path: str, before: Any, after: Any) -> str:  # noqa: ANN401 - parsed JSON
    steps = path.split(".")
    if len(steps) == 2:
        return f"{'+' if before is None else '-'} {steps[1]}"
    return f"{steps[1]}.{steps[-1]} {before} -> {after}"


def _figures(here: Envelope, there: Envelope) -> dict[str, float]:
    value, other_value = here.certificate.objective.value, there.certificate.objective.value
    return {"relative": other_value / value - 1.0} if value and other_value is not None else {}


def _with_decision(envelope: Envelope) -> tuple[Envelope, Decision]:
    return envelope, find_kind(envelope.kind).decision.model_validate(envelope.decision)

"""Schedules as plans: solved, stated again from their own choices, run step by step."""

from collections.abc import Iterator
from typing import Any

from planner.documents.units import format_si
from planner.errors import Stopped
from planner.kinds.workflow import envelopes
from planner.kinds.workflow.decision import WorkflowDecision
from planner.kinds.workflow.schedules.form import S, ScheduleForm
from planner.kinds.workflow.schedules.rules import schedule_rules
from planner.plan.findings import Finding
from planner.plan.restated import Restated
from planner.plan.schema import Envelope, Evidence, Prediction
from planner.progress import Limits
from planner.solvers.workflow.cover import Cover

METRIC = "latency_s"
TIME_LIMIT_S = 60.0
SAME_S = 1e-9  # relative, of two ways to add up


def solve(form: ScheduleForm[S], limits: Limits) -> Envelope:
    """The shortest schedule; raises Stopped where the time limit came before any."""
    cover = Cover()
    time_limit_s = TIME_LIMIT_S if limits.time_limit_s is None else limits.time_limit_s
    result = form.shortest(time_limit_s, cover)
    if result.solution is None:
        raise Stopped(result.stop_reason, bound=result.bound)
    return envelope(form, result.solution, result.solver, result.bound, cover, result.stop_reason)


def envelope(
    form: ScheduleForm[S], schedule: S, solver: str, bound: float | None, cover: Cover, stop_reason: str
) -> Envelope:
    """The plan of a schedule."""
    value = form.seconds(schedule)
    predictions = (Prediction(metric=METRIC, value=value), *form.predictions(schedule))
    proven = envelopes.certificate(form.claim, METRIC, value, bound, cover, form.axes)
    return envelopes.envelope(
        form.resolved,
        solver,
        form.decision(schedule),
        predictions,
        proven.model_copy(update={"stop_reason": "finished" if proven.status == "optimal" else stop_reason}),
        Evidence(basis={"measured": 1.0}, sources=("times of stages that the problem states",)),
        form.assumptions,
    )


def restate(form: ScheduleForm[S], stated: Envelope, decision: WorkflowDecision) -> Restated:
    """The plan of its own schedule; raises PlannerError for one that the problem does not have."""
    known, schedule = stated.certificate, form.stated(decision)
    cover = envelopes.cover_of(known)
    made = envelope(form, schedule, stated.software.solver or "", known.bound, cover, known.stop_reason)
    return envelopes.restated(made, known)


def prove(form: ScheduleForm[S], stated: Envelope) -> Iterator[Finding]:
    """Whether a search made again proves as much: a schedule that is proven the shortest has one bound."""
    bound, cover = stated.certificate.bound, Cover()
    if bound is None:
        return
    again = form.shortest(TIME_LIMIT_S, cover)
    value = form.seconds(again.solution) if again.solution is not None else None
    right = value is not None and bound <= value * (1.0 + SAME_S)
    shown = "none" if value is None else format_si(value, "s")
    what = f"states the bound {format_si(bound, 's')}, solved again the shortest schedule takes {shown}"
    yield Finding("certificate.bound_again", right, what, "certificate.bound", "solve again")
    if stated.certificate.status == "optimal":
        least_s, claimed = again.bound or 0.0, stated.certificate.objective.value
        right = claimed is not None and claimed <= least_s * (1.0 + 2 * envelopes.TOLERANCE)
        what = f"is stated to be the shortest; solved again, none is shorter than {format_si(least_s, 's')}"
        yield Finding("certificate.shortest_again", right, what, "certificate.status", "solve again")


def judged(form: ScheduleForm[S], decision: WorkflowDecision) -> tuple[list[Finding], dict[str, Any]]:
    """The stated schedule run step by step, beside what its plan says of it."""
    seconds, ends = form.simulated(decision)
    stated = form.seconds(form.stated(decision))
    right = abs(seconds - stated) <= SAME_S * max(abs(stated), SAME_S)
    what = f"run step by step it takes {format_si(seconds, 's')}, stated are {format_si(stated, 's')}"
    findings = [
        *schedule_rules(form.options, decision),
        Finding("simulate.latency", right, what, "predictions", "solve again"),
    ]
    return findings, {"schema": "planner.simulation/1", "latency_s": seconds, "stages": ends}

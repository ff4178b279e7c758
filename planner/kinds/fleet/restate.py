"""States the plan of a day again from its problem, its windows, and the plans of its jobs; derives its bound again."""

from collections.abc import Iterator

from planner.errors import PlannerError
from planner.kinds.fleet.decision import CurvePoint, FleetDecision
from planner.kinds.fleet.envelope import curve_of, envelope
from planner.kinds.fleet.formulate import FleetDay
from planner.kinds.fleet.jobs import Job, read_jobs, units_per_hour
from planner.kinds.fleet.options import FleetOptions, JobSpec
from planner.plan.findings import Finding
from planner.plan.restated import LeftOut, Restated, unproven
from planner.plan.schema import Envelope
from planner.problem.recorded import AtHand, resolved_again
from planner.progress import Limits
from planner.solvers.schedules.day_solve import split_day

BOUND = LeftOut("certificate.bound", "whether no split is worth more than the bound")
REL_TOL = 1e-6  # of a bound that is computed again


def restate(stated: Envelope, decision: FleetDecision, hand: AtHand) -> Restated:
    """The plan of these windows, by the curves of the plan; points with a plan beside them are read off that.

    Raises NotAtHand where an input is missing, PlannerError for windows that the problem cannot have.
    """
    day = day_of_plan(stated, decision, hand)
    left = [
        LeftOut(f"decision.curves.{index}", "a number of nodes that no window uses, whose plan is not in this one")
        for index, point in enumerate(decision.curves)
        if day.options.jobs[_index(day, point.job)].curve is None and not _has_plan(decision, point)
    ]
    made = envelope(day, day.day_of(nodes_by_window(day, decision)), stated.certificate.bound)
    made = made.model_copy(
        update={"certificate": made.certificate.model_copy(update={"stop_reason": stated.certificate.stop_reason})}
    )
    if stated.certificate.bound is None:
        return Restated(made.model_copy(update={"certificate": unproven(made.certificate.objective)}), tuple(left))
    return Restated(made, (BOUND, *left))


def prove(stated: Envelope, decision: FleetDecision, hand: AtHand) -> Iterator[Finding]:
    """Curves solved again, and the bound on all splits by them."""
    if stated.certificate.bound is None:
        return
    day = day_of_plan(stated, decision, hand)
    jobs = read_jobs(day.resolved, day.options, Limits())
    for job in jobs:
        again = {point.nodes: point.units_per_hour for point in job.points}
        own = {point.nodes: point.units_per_hour for point in curve_of(decision, job.spec.name)}
        right = again.keys() == own.keys() and all(_near(again[nodes], own[nodes]) for nodes in own)
        what = f"solved again, `{job.spec.name}` has {'the curve' if right else 'another curve than'} that is stated"
        yield Finding("fleet.curve", right, what, f"decision.curves.{job.spec.name}", "solve again")
    result = split_day(FleetDay(day.resolved, day.options, jobs).split())
    bound, value = stated.certificate.bound, stated.certificate.objective.value or 0.0
    assert result.bound is not None
    right = bound >= min(result.bound, result.objective or result.bound) * (1.0 - REL_TOL) and bound >= value - 1e-6
    what = f"states the bound {bound:.9g}, no split of its curves is worth more than {result.bound:.9g}"
    yield Finding("certificate.bound_again", right, what, "certificate.bound", "solve again")


def nodes_by_window(day: FleetDay, decision: FleetDecision) -> list[list[int]]:
    """Nodes of every job in every window; raises PlannerError where stretches do not follow one another. [K][W]"""
    options, rows, end_s = day.options, [], 0.0
    for phase, window in zip(decision.phases, decision.windows, strict=False):
        windows = (phase.duration_s or 0.0) / options.window_s
        if abs(phase.start_s - end_s) > 1e-6 or windows < 0.5 or abs(windows - round(windows)) > 1e-9:
            what = f"a phase of {phase.duration_s} s at {phase.start_s:g} s behind {end_s:g} s"
            raise PlannerError(what, where="decision.phases", hint="let them follow one another, in whole windows")
        rows += [window.nodes] * round(windows)
        end_s = phase.start_s + (phase.duration_s or 0.0)
    names = [job.name for job in options.jobs]
    if len(rows) != options.windows or any(set(row) != set(names) for row in rows):
        what = f"{len(rows)} windows of {options.windows}, or other jobs than {', '.join(names)}"
        raise PlannerError(what, where="decision.windows", hint="give the nodes of every job in every window")
    return [[row[name] for row in rows] for name in names]


def day_of_plan(stated: Envelope, decision: FleetDecision, hand: AtHand) -> FleetDay:
    """The day of a plan, with the curves of the plan; raises PlannerError for jobs that its problem does not have."""
    resolved = resolved_again(stated.inputs, FleetOptions, stated.digests.models, hand)
    options = FleetOptions.model_validate(resolved.problem.options)
    return FleetDay(resolved, options, tuple(_job(spec, decision) for spec in options.jobs))


def _job(spec: JobSpec, decision: FleetDecision) -> Job:
    """The job with the curve of the plan: stated rates as the problem has them, others off the plans that are there."""
    if spec.curve is not None:
        rates = {each.nodes: each.units_per_hour for each in spec.curve}
        points = tuple(
            point.model_copy(update={"units_per_hour": rates.get(point.nodes, 0.0), "copies": 1})
            for point in curve_of(decision, spec.name)
        )
        return Job(spec, None, points, {})
    plans = {each.nodes: Envelope.model_validate(each.plan) for each in decision.plans if each.job == spec.name}
    points = tuple(_repriced(point, plans, spec) for point in curve_of(decision, spec.name))
    kind = str(spec.problem["kind"]) if isinstance(spec.problem, dict) else None
    return Job(spec, kind, points, plans)


def _repriced(point: CurvePoint, plans: dict[int, Envelope], spec: JobSpec) -> CurvePoint:
    plan = plans.get(point.nodes // point.copies)
    if plan is None:
        return point
    return point.model_copy(update={"units_per_hour": point.copies * units_per_hour(plan, spec)})


def _has_plan(decision: FleetDecision, point: CurvePoint) -> bool:
    own = {each.nodes for each in decision.plans if each.job == point.job}
    return point.nodes // point.copies in own


def _index(day: FleetDay, name: str) -> int:
    names = [job.name for job in day.options.jobs]
    if name not in names:
        raise PlannerError(f"no job is called `{name}`", where="decision.curves", hint=f"jobs are {', '.join(names)}")
    return names.index(name)


def _near(a: float, b: float) -> bool:
    return abs(a - b) <= REL_TOL * max(abs(a), abs(b))

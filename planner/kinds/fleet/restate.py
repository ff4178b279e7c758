"""States the plan of a day again from its problem, its windows, and the plans of its jobs; derives its bound again."""

from collections.abc import Iterator
from dataclasses import replace

from planner.errors import PlannerError
from planner.kinds.fleet.decision import CurvePoint, FleetDecision, Window
from planner.kinds.fleet.elastic import elastic_job
from planner.kinds.fleet.envelope import curve_of, envelope
from planner.kinds.fleet.formulate import FleetDay, Share, rate_of
from planner.kinds.fleet.jobs import Job, Point, free_nodes, units_per_hour
from planner.kinds.fleet.opportunistic import shared_windows
from planner.kinds.fleet.options import ELASTIC, FleetOptions, JobSpec, with_files
from planner.kinds.fleet.solve import day_jobs
from planner.plan.findings import Finding
from planner.plan.restated import LeftOut, Restated, unproven
from planner.plan.schema import Envelope
from planner.problem.recorded import AtHand, resolved_again
from planner.problem.resolve import Resolved
from planner.progress import Limits
from planner.solvers.schedules.days.solve import split_day

MORE = "whether other GPUs are worth more to what runs beside production"
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
        if _spec(day, point.job).problem is not None and not _has_plan(decision, point)
    ]
    if day.options.opportunistic is not None:
        left.append(LeftOut("decision.opportunistic", MORE))
    if day.options.elastic is not None:
        left += [LeftOut(f"decision.windows.{index}.elastic", MORE) for index in range(len(decision.windows))]
    made = envelope(day, day.day_of(shares_by_window(day, decision)), stated.certificate.bound, beside=decision)
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
    jobs = day_jobs(day.resolved, _at_hand(day.options, hand), Limits())
    for job in jobs:
        again = {point.share: point.units_per_hour for point in job.points}
        own = {_share(day.resolved, each): each.units_per_hour for each in curve_of(decision, job.spec.name)}
        right = again.keys() == own.keys() and all(_near(again[share], own[share]) for share in own)
        what = f"solved again, `{job.spec.name}` has {'the curve' if right else 'another curve than'} that is stated"
        yield Finding("fleet.curve", right, what, f"decision.curves.{job.spec.name}", "solve again")
    yield from _beside_again(day, decision)
    result = split_day(FleetDay(day.resolved, day.options, jobs).split())
    bound, value = stated.certificate.bound, stated.certificate.objective.value or 0.0
    assert result.bound is not None
    assert result.objective is not None
    least = max(value, result.objective, result.bound if stated.certificate.status == "optimal" else value)
    right = bound >= least - REL_TOL * max(abs(least), 1.0)
    what = f"states the bound {bound:.9g}, no split of its curves is worth more than {result.bound:.9g}"
    yield Finding("certificate.bound_again", right, what, "certificate.bound", "solve again")


def _beside_again(day: FleetDay, decision: FleetDecision) -> Iterator[Finding]:
    """What runs beside production is worth as much as where it is placed again."""
    shares_KWP = shares_by_window(day, decision)
    for stated, again in zip(decision.opportunistic, shared_windows(day, shares_KWP), strict=False):
        most = again.bound_usd_per_hour
        right = stated.bound_usd_per_hour >= again.usd_per_hour * (1.0 - REL_TOL)
        what = (
            f"states the bound {stated.bound_usd_per_hour:.9g} USD an hour, no placement is worth more than {most:.9g}"
        )
        yield Finding(
            "fleet.opportunistic_again", right, what, f"decision.opportunistic.{stated.window}", "solve again"
        )
    spec, elastic = day.options.elastic, next((job for job in day.jobs if job.spec.name == ELASTIC), None)
    for index, window in enumerate(decision.windows if spec is not None and elastic is not None else ()):
        assert spec is not None
        assert elastic is not None
        usd = {job.name: job.usd_per_hour for job in spec.jobs}
        worth = sum(usd.get(name, 0.0) * run.speed for name, run in window.elastic.items())
        most = rate_of(elastic, _of_window(day.resolved, window, ELASTIC))
        what = (
            f"elastic jobs are worth {worth:.9g} USD an hour, of their nodes no division is worth more than {most:.9g}"
        )
        yield Finding(
            "fleet.elastic_again", _near(worth, most), what, f"decision.windows.{index}.elastic", "solve again"
        )


def shares_by_window(day: FleetDay, decision: FleetDecision) -> list[list[Share]]:
    """Nodes of every job by window and pool; raises PlannerError where stretches do not follow one another. [K][W][P]

    What `pools` says counts where there are several.
    """
    options, end_s = day.options, 0.0
    rows: list[dict[str, Share]] = []
    for phase, window in zip(decision.phases, decision.windows, strict=False):
        windows = (phase.duration_s or 0.0) / options.window_s
        if abs(phase.start_s - end_s) > 1e-6 or windows < 0.5 or abs(windows - round(windows)) > 1e-9:
            what = f"a phase of {phase.duration_s} s at {phase.start_s:g} s behind {end_s:g} s"
            raise PlannerError(what, where="decision.phases", hint="let them follow one another, in whole windows")
        own = {name: _of_window(day.resolved, window, name) for name in window.nodes}
        rows += [own] * round(windows)
        end_s = phase.start_s + (phase.duration_s or 0.0)
    names = [job.spec.name for job in day.jobs]
    if len(rows) != options.windows or any(set(row) != set(names) for row in rows):
        what = f"{len(rows)} windows of {options.windows}, or other jobs than {', '.join(names)}"
        raise PlannerError(what, where="decision.windows", hint="give the nodes of every job in every window")
    return [[row[name] for row in rows] for name in names]


def day_of_plan(stated: Envelope, decision: FleetDecision, hand: AtHand) -> FleetDay:
    """The day of a plan, with the curves of the plan; raises PlannerError for jobs that its problem does not have."""
    resolved = resolved_again(stated.inputs, FleetOptions, hand)
    options = FleetOptions.model_validate(resolved.problem.options)
    jobs = [_job(resolved, spec, decision) for spec in options.jobs]
    elastic = elastic_job(resolved, options, free_nodes(resolved, options))
    return FleetDay(resolved, options, (*jobs, *(() if elastic is None else (elastic,))))


def _job(resolved: Resolved, spec: JobSpec, decision: FleetDecision) -> Job:
    """The job with the curve of the plan: stated rates as the problem has them, others off the plans that are there."""
    if spec.curve is not None:
        points = tuple(
            replace(point, units_per_hour=_stated(resolved, spec, point), copies=1)
            for point in (_point(resolved, each) for each in curve_of(decision, spec.name))
        )
        return Job(spec, None, points, {})
    names = [pool.name for pool in resolved.pools]
    plans = {
        (0 if each.pool not in names else names.index(each.pool), each.nodes): Envelope.model_validate(each.plan)
        for each in decision.plans
        if each.job == spec.name
    }
    points = tuple(_repriced(_point(resolved, each), plans, spec) for each in curve_of(decision, spec.name))
    kind = str(spec.problem["kind"]) if isinstance(spec.problem, dict) else None
    return Job(spec, kind, points, plans)


def _stated(resolved: Resolved, spec: JobSpec, point: Point) -> float:
    """What the problem says of a point; nothing where it does not."""
    pool = resolved.pools[point.plan[0]].name
    rates = [
        each.units_per_hour for each in spec.curve or () if each.nodes == point.nodes and each.pool in (None, pool)
    ]
    return max(rates, default=0.0)


def _point(resolved: Resolved, each: CurvePoint) -> Point:
    return Point(_share(resolved, each), each.units_per_hour, each.copies)


def _share(resolved: Resolved, each: CurvePoint) -> Share:
    """Nodes of every pool of a point."""
    return _of_pools(resolved, each.nodes, each.pools, f"decision.curves.{each.job}")


def _of_window(resolved: Resolved, window: Window, name: str) -> Share:
    """Nodes of every pool of a job in a window."""
    return _of_pools(resolved, window.nodes[name], window.pools.get(name, {}), f"decision.windows.{name}")


def _of_pools(resolved: Resolved, nodes: int, by_pool: dict[str, int], where: str) -> Share:
    """Raises PlannerError for pools that are not there, or that do not add up to the nodes."""
    names = [pool.name for pool in resolved.pools]
    stated = {names[0]: nodes} if len(names) == 1 and not by_pool else by_pool
    if sum(stated.values()) != nodes or not stated.keys() <= set(names):
        what = f"{nodes} nodes, by pool {', '.join(f'{count} of {name}' for name, count in stated.items()) or 'none'}"
        raise PlannerError(what, where=where, hint="give the nodes of every pool that the job has")
    return tuple(stated.get(name, 0) for name in names)


def _repriced(point: Point, plans: dict[tuple[int, int], Envelope], spec: JobSpec) -> Point:
    plan = plans.get(point.plan)
    return point if plan is None else replace(point, units_per_hour=point.copies * units_per_hour(plan, spec))


def _has_plan(decision: FleetDecision, point: CurvePoint) -> bool:
    own = {(each.pool, each.nodes) for each in decision.plans if each.job == point.job}
    return (next(iter(point.pools), None), point.nodes // point.copies) in own


def _at_hand(options: FleetOptions, hand: AtHand) -> FleetOptions:
    """The options with the files of the jobs' problems where they are now."""

    def located(job: JobSpec) -> JobSpec:
        if not isinstance(job.problem, dict):
            return job
        where = f"inputs.options.jobs.{job.name}"
        return job.model_copy(update={"problem": with_files(job.problem, lambda name: str(hand.file(name, where)))})

    return options.model_copy(update={"jobs": tuple(located(job) for job in options.jobs)})


def _spec(day: FleetDay, name: str) -> JobSpec:
    specs = {job.spec.name: job.spec for job in day.jobs}
    if name not in specs:
        raise PlannerError(f"no job is called `{name}`", where="decision.curves", hint=f"jobs are {', '.join(specs)}")
    return specs[name]


def _near(a: float, b: float) -> bool:
    return abs(a - b) <= REL_TOL * max(abs(a), abs(b))

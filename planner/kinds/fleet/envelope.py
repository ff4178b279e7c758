"""The plan of a day's split."""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from planner.documents.units import clock
from planner.hardware.cluster import Pool
from planner.kinds.fleet.changes import changes_of
from planner.kinds.fleet.decision import (
    BesideDay,
    CurvePoint,
    ElasticRun,
    FleetDecision,
    JobDay,
    JobPlan,
    SharedWindow,
    Window,
)
from planner.kinds.fleet.elastic import divided
from planner.kinds.fleet.formulate import FleetDay, Share, loads, made, served
from planner.kinds.fleet.jobs import Job, Point, pools_of
from planner.kinds.fleet.opportunistic import shared_windows
from planner.kinds.fleet.options import ELASTIC
from planner.kinds.fleet.placed import laid, phases_of, roles_of, spans
from planner.plan.evidence import weighted_shares
from planner.plan.restated import SOLVED_AGAIN
from planner.plan.schema import (
    Certificate,
    Envelope,
    Evidence,
    Objective,
    Prediction,
    Shares,
)
from planner.problem.envelope import plan_envelope
from planner.solvers.result import relative_gap
from planner.solvers.schedules.days.solve import MANY, SOLVER
from planner.solvers.schedules.days.split import Day, DaySplit

METRIC = "usd"
BESIDE = "opportunistic_usd"
TOLERANCE = 1e-6
ASSUMPTIONS = (
    "copies of a serving plan share its load evenly, and serve as many times what one does",
    "nodes that a job gives up stop at once, and those that arrive do nothing while they start up",
    "rates are as likely at each level of a load, and do not change within a slot",
)
BESIDE_ASSUMPTIONS = {
    "elastic": "logical workers of an elastic job run in turn, and a step ends with the slowest of its GPUs",
    "opportunistic": "opportunistic jobs are placed where the day's split leaves production, and move without loss",
}


def envelope(
    day: FleetDay,
    chosen: Day,
    bound: float | None,
    stop_reason: str = "finished",
    beside: FleetDecision | None = None,
) -> Envelope:
    """The plan of a split, with a bound on all splits where there is one.

    What runs beside production is placed anew, or taken from a plan of the same split.
    """
    split, resolved = day.split(), day.resolved
    value = split.worth(chosen)
    decision = _decision(day, split, chosen, beside)
    return plan_envelope(
        resolved,
        decision,
        _certificate(day, value, bound, stop_reason),
        _predictions(day, decision, value),
        _evidence(day, day.shares_of(chosen)),
        (*ASSUMPTIONS, *_beside_assumptions(day)),
        solver=SOLVER,
        digests={"models": {}, "traces": {}},
    )


def _beside_assumptions(day: FleetDay) -> Iterator[str]:
    if day.options.elastic is not None:
        yield BESIDE_ASSUMPTIONS["elastic"]
    if day.options.opportunistic is not None:
        yield BESIDE_ASSUMPTIONS["opportunistic"]


def _certificate(day: FleetDay, value: float, bound: float | None, stop_reason: str) -> Certificate:
    levels = sorted({job.spec.level if job.kind == "serve" else "static" for job in day.jobs if job.kind})
    by = f"curves of the jobs' own plans, judged at the level {' and '.join(levels)}" if levels else "stated curves"
    gap = relative_gap(value, bound)
    closed = gap is not None and gap <= TOLERANCE
    more = "worth more" if closed else "worth more than the bound"
    return Certificate(
        claim=f"no split of {day.nodes} nodes over {day.options.windows} windows is {more}, by {by}",
        status="optimal" if closed else "feasible",
        stop_reason=stop_reason,
        objective=Objective(metric=METRIC, sense="maximize", value=value),
        bound=bound,
        gap=gap,
        tolerance=TOLERANCE,
        axes={
            "nodes": [day.nodes],
            "windows": [day.options.windows],
            **{job.spec.name: [0, *(point.nodes for point in job.points)] for job in day.jobs},
            **{pool.name: [there] for pool, there in _told_apart(day)},
        },
        candidates=sum(len(job.points) for job in day.jobs),
        proof={} if bound is None else {"method": SOLVED_AGAIN},
    )


def _decision(day: FleetDay, split: DaySplit, chosen: Day, beside: FleetDecision | None) -> FleetDecision:
    shares_KWP, names, pools = day.shares_of(chosen), [job.spec.name for job in day.jobs], day.resolved.pools
    held_KW = laid(shares_KWP, pools)
    roles, blocks = roles_of(names, held_KW, pools)
    stretches = spans(held_KW, day.options.window_s)
    shared = shared_windows(day, shares_KWP) if beside is None else beside.opportunistic
    rows = [dict(zip(names, (row[window] for row in shares_KWP), strict=True)) for window, _, _ in stretches]
    if beside is None or len(beside.windows) != len(rows):
        runs = [_elastic_runs(day, row) for row in rows]
    else:
        runs = [window.elastic for window in beside.windows]
    windows = tuple(
        _window(day, row, f"{clock(start_s)}-{clock(end_s)}", own)
        for row, own, (_, start_s, end_s) in zip(rows, runs, stretches, strict=True)
    )
    hours = [(end_s - start_s) / 3600.0 for _, start_s, end_s in stretches]
    return FleetDecision(
        roles=tuple(roles),
        placement=tuple(blocks),
        phases=tuple(phases_of(names, held_KW, pools, stretches)),
        windows=windows,
        days=tuple(_job_day(day, k, shares_KWP[k], split.jobs[k].worth(chosen[k])) for k in range(len(day.jobs))),
        curves=tuple(curve_point(day, job.spec.name, point) for job in day.jobs for point in job.points),
        plans=tuple(plan for k, job in enumerate(day.jobs) for plan in _plans(day, job, shares_KWP[k])),
        opportunistic=shared,
        changes=tuple(changes_of(day, shares_KWP, held_KW, stretches)),
        beside=(*_elastic_days(day, windows, hours), *_opportunistic_days(day, shared)),
    )


def _elastic_runs(day: FleetDay, shares: Mapping[str, Share]) -> dict[str, ElasticRun]:
    """The GPUs of elastic jobs on their nodes."""
    spec = day.options.elastic
    return {} if spec is None else divided(day.resolved.pools, spec, day.free_nodes, shares[ELASTIC])


def _window(day: FleetDay, shares: Mapping[str, Share], hours: str, elastic: dict[str, ElasticRun]) -> Window:
    """Nodes of every job, and what elastic jobs have of theirs."""
    return Window(
        hours=hours,
        nodes={name: sum(share) for name, share in shares.items()},
        idle_nodes=day.nodes - sum(map(sum, shares.values())),
        pools={} if len(day.resolved.pools) == 1 else {name: day.by_pool(s) for name, s in shares.items() if any(s)},
        elastic=elastic,
    )


def curve_point(day: FleetDay, name: str, point: Point) -> CurvePoint:
    """A point as the plan has it."""
    return CurvePoint(
        job=name,
        nodes=point.nodes,
        units_per_hour=point.units_per_hour,
        copies=point.copies,
        pools=day.by_pool(point.share) if len(day.resolved.pools) > 1 else {},
    )


def _elastic_days(day: FleetDay, windows: Sequence[Window], hours: Sequence[float]) -> Iterator[BesideDay]:
    """What every elastic job has, after a change less the start-up of it."""
    spec = day.options.elastic
    if spec is None:
        return
    before: tuple[int, dict[str, int]] = (0, {})
    lost_h, factors = spec.start_up_s / 3600.0, []
    for window, own_h in zip(windows, hours, strict=True):
        now = (window.nodes[ELASTIC], window.pools.get(ELASTIC, {}))
        factors.append(own_h - (lost_h if now != before else 0.0))
        before = now
    for job in spec.jobs:
        runs = [window.elastic.get(job.name) for window in windows]
        speeds = [0.0 if run is None else run.speed for run in runs]
        at_speed_h = math.fsum(speed * own_h for speed, own_h in zip(speeds, factors, strict=True))
        yield BesideDay(
            job=job.name,
            gpu_hours=sum(0 if run is None else sum(run.gpus.values()) * h for run, h in zip(runs, hours, strict=True)),
            mean_speed=at_speed_h / sum(hours),
            least_speed=min(speeds),
            usd=job.usd_per_hour * at_speed_h,
        )


def _opportunistic_days(day: FleetDay, shared: Sequence[SharedWindow]) -> Iterator[BesideDay]:
    """What every opportunistic job has."""
    spec, window_h = day.options.opportunistic, day.options.window_h
    for job in () if spec is None else spec.jobs:
        runs = [next((run for run in window.runs if run.job == job.name), None) for window in shared]
        speeds = [0.0 if run is None else run.speed for run in runs]
        yield BesideDay(
            job=job.name,
            gpu_hours=sum(job.gpus * window_h for run in runs if run is not None),
            mean_speed=sum(speeds) / len(speeds),
            least_speed=min(speeds),
            usd=job.usd_per_gpu_hour * job.gpus * window_h * math.fsum(speeds),
        )


def _told_apart(day: FleetDay) -> Iterator[tuple[Pool, int]]:
    """The pools and their free nodes, where there are several."""
    if len(day.resolved.pools) > 1:
        yield from zip(day.resolved.pools, day.free_nodes, strict=True)


def _job_day(day: FleetDay, k: int, nodes_W: Sequence[Share], usd: float) -> JobDay:
    """What a job makes with these nodes, of its load at all levels in the mean."""
    job = day.jobs[k]
    before_W, options, spec = [day.before(k), *nodes_W[:-1]], day.options, job.spec
    steps = list(zip(before_W, nodes_W, strict=True))
    if spec.load is not None:
        load_LWS = loads(job, options)
        done_W = [served(job, load_LWS, m, n, options)[:, w].mean() for w, (m, n) in enumerate(steps)]
        units = float(np.sum(done_W))
        missing = float(load_LWS.mean(axis=0).sum()) * options.window_h / load_LWS.shape[-1] - units
    else:
        deadline = options.deadline_windows(spec)
        counted = steps if deadline is None else steps[: round(deadline)]
        units = sum(made(job, m, n, options) for m, n in counted)
        missing = 0.0 if spec.target is None else max(spec.target - units, 0.0)
    return JobDay(
        job=spec.name,
        node_hours=sum(map(sum, nodes_W)) * options.window_h,
        units=units,
        missing=max(missing, 0.0),
        starts=sum(any(now > was for was, now in zip(m, n, strict=True)) for m, n in steps),
        usd=usd,
    )


def _plans(day: FleetDay, job: Job, nodes_W: Sequence[Share]) -> Iterator[JobPlan]:
    """The plans that some window uses."""
    points = [job.point(share) for share in nodes_W] if job.plans else []
    several = len(day.resolved.pools) > 1
    for pool, nodes in sorted({point.plan for point in points if point is not None}):
        plan = job.plans[pool, nodes].model_dump(mode="json", by_alias=True, exclude_none=True)
        name = day.resolved.pools[pool].name if several else None
        yield JobPlan(job=job.spec.name, nodes=nodes, plan=plan, pool=name)


def _predictions(day: FleetDay, decision: FleetDecision, value: float) -> Iterator[Prediction]:
    yield Prediction(metric=METRIC, value=value)
    prices = [(pool.usd_per_gpu_hour, pool.num_gpus) for pool in day.resolved.pools]
    if all(price is not None for price, _ in prices):
        yield Prediction(metric="usd_per_hour", value=sum((price or 0.0) * gpus for price, gpus in prices))
    if day.options.opportunistic is not None:
        window_h = day.options.window_h
        yield Prediction(
            metric=BESIDE, value=window_h * math.fsum(window.usd_per_hour for window in decision.opportunistic)
        )
    hours = day.nodes * day.options.windows * day.options.window_h
    yield Prediction(metric="busy_share", value=sum(each.node_hours for each in decision.days) / hours)
    for each, job in zip(decision.days, day.jobs, strict=True):
        if job.spec.load is not None and each.units + each.missing > 0.0:
            yield Prediction(metric="served_share", of=each.job, value=each.units / (each.units + each.missing))
        elif job.spec.target is not None:
            yield Prediction(metric="target_share", of=each.job, value=min(each.units / job.spec.target, 1.0))


def _evidence(day: FleetDay, shares_KWP: Sequence[Sequence[Share]]) -> Evidence:
    """What the curves in use rest on."""
    own = [job for job in day.jobs if job.spec.name != ELASTIC]
    told = [job.spec.name for job in own if job.kind is None]
    notes = [f"the curve of `{name}` is stated" for name in told]
    if len(told) > MANY:
        notes = [f"the curves of {len(told)} jobs are stated"]
    if len(own) < len(day.jobs):
        notes.append(
            f"step times of elastic jobs are stated; {len(day.jobs[-1].points)} numbers of nodes are told apart"
        )
    if day.options.opportunistic is not None:
        notes.append("what GPUs leave to opportunistic jobs, and what is lost beside them, is stated")
    for k, job in enumerate(day.jobs):
        if job.kind is not None:
            plans = {point.plan for point in job.points}
            notes.append(f"the curve of `{job.spec.name}` is of {len(plans)} plans of kind `{job.kind}`")
        stated = job.spec.nodes or tuple(each.nodes for each in job.spec.curve or ())
        most = max(_free_to(day, k))
        beyond = sorted({nodes for nodes in stated if nodes > most})
        if beyond:
            listed = ", ".join(map(str, beyond))
            notes.append(f"`{job.spec.name}` on {listed} nodes is not considered: jobs have {most} of a pool at most")
    return Evidence(basis=weighted_shares(_rests_on(day, shares_KWP)), notes=tuple(notes))


def _free_to(day: FleetDay, k: int) -> list[int]:
    """Nodes that jobs can have, of every pool that one of them may run on."""
    return [day.free_nodes[pool] for pool in pools_of(day.resolved, k, day.jobs[k].spec)]


def _rests_on(day: FleetDay, shares_KWP: Sequence[Sequence[Share]]) -> Iterator[tuple[float, Shares]]:
    """What the plan of every job in every window rests on, weighted by its nodes; stated curves count as measured."""
    for job, shares in zip(day.jobs, shares_KWP, strict=True):
        for share in shares:
            point = job.point(share)
            if point is not None:
                yield point.nodes, {"measured": 1.0} if job.kind is None else job.plans[point.plan].evidence.basis


def curve_of(decision: FleetDecision, name: str) -> tuple[CurvePoint, ...]:
    """The points of a job."""
    return tuple(point for point in decision.curves if point.job == name)

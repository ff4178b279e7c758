"""The plan of a day's split."""

from collections.abc import Iterator, Sequence

import numpy as np

from planner import __version__
from planner.documents.files import digest
from planner.kinds.fleet.decision import CurvePoint, FleetDecision, JobDay, JobPlan, Window
from planner.kinds.fleet.formulate import FleetDay, loads, made, served
from planner.kinds.fleet.jobs import Job
from planner.kinds.fleet.placed import clock, laid, phases_of, roles_of, spans
from planner.plan.evidence import weighted_shares
from planner.plan.schema import (
    SCHEMA,
    Certificate,
    Digests,
    Envelope,
    Evidence,
    Objective,
    Prediction,
    Shares,
    Software,
)
from planner.problem.resolve import normalised
from planner.solvers.result import relative_gap
from planner.solvers.schedules.day_solve import SOLVER
from planner.solvers.schedules.day_split import Day, DaySplit

METRIC = "usd"
TOLERANCE = 1e-6
ASSUMPTIONS = (
    "copies of a serving plan share its load evenly, and serve as many times what one does",
    "nodes that a job gives up stop at once, and those that arrive do nothing while they start up",
    "rates are as likely at each level of a load, and do not change within a slot",
)


def envelope(day: FleetDay, chosen: Day, bound: float | None, stop_reason: str = "finished") -> Envelope:
    """The plan of a split, with a bound on all splits where there is one."""
    split, resolved = day.split(), day.resolved
    value, inputs = split.worth(chosen), normalised(resolved)
    decision = _decision(day, split, chosen)
    known = resolved.digests()
    return Envelope(
        schema=SCHEMA,
        kind="fleet",
        name=resolved.problem.name,
        software=Software(planner=__version__, solver=SOLVER),
        seed=resolved.problem.seed,
        digests=Digests(problem=digest(inputs), hardware=known["hardware"]),
        inputs=inputs,
        decision=decision.model_dump(mode="json", exclude_none=True),
        predictions=tuple(_predictions(day, decision, value)),
        certificate=_certificate(day, value, bound, stop_reason),
        evidence=_evidence(day, day.nodes_of(chosen)),
        assumptions=ASSUMPTIONS,
    )


def _certificate(day: FleetDay, value: float, bound: float | None, stop_reason: str) -> Certificate:
    levels = sorted({job.spec.level if job.kind == "serve" else "static" for job in day.jobs if job.kind})
    by = f"curves of the jobs' own plans, judged at the level {' and '.join(levels)}" if levels else "stated curves"
    return Certificate(
        claim=f"no split of {day.nodes} nodes over {day.options.windows} windows is worth more than the bound, by {by}",
        status="feasible",
        stop_reason=stop_reason,
        objective=Objective(metric=METRIC, sense="maximize", value=value),
        bound=bound,
        gap=relative_gap(value, bound),
        tolerance=TOLERANCE,
        axes={
            "nodes": [day.nodes],
            "windows": [day.options.windows],
            **{job.spec.name: [0, *(point.nodes for point in job.points)] for job in day.jobs},
        },
        candidates=sum(len(job.points) for job in day.jobs),
    )


def _decision(day: FleetDay, split: DaySplit, chosen: Day) -> FleetDecision:
    nodes_KW, names, pool = day.nodes_of(chosen), [job.spec.name for job in day.jobs], day.resolved.pools[0]
    held_KW = laid(nodes_KW, pool.healthy_nodes)
    roles, blocks = roles_of(names, held_KW, pool)
    stretches = spans(held_KW, day.options.window_s)
    return FleetDecision(
        roles=tuple(roles),
        placement=tuple(blocks),
        phases=tuple(phases_of(names, held_KW, stretches)),
        windows=tuple(
            Window(
                hours=f"{clock(start_s)}-{clock(end_s)}",
                nodes={name: row[window] for name, row in zip(names, nodes_KW, strict=True)},
                idle_nodes=day.nodes - sum(row[window] for row in nodes_KW),
            )
            for window, start_s, end_s in stretches
        ),
        days=tuple(_job_day(day, job, nodes_KW[k], split.jobs[k].worth(chosen[k])) for k, job in enumerate(day.jobs)),
        curves=tuple(point for job in day.jobs for point in job.points),
        plans=tuple(plan for k, job in enumerate(day.jobs) for plan in _plans(job, nodes_KW[k])),
    )


def _job_day(day: FleetDay, job: Job, nodes_W: Sequence[int], usd: float) -> JobDay:
    """What a job makes with these nodes, of its load at all levels in the mean."""
    before_W, options, spec = [job.spec.nodes_before, *nodes_W[:-1]], day.options, job.spec
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
        node_hours=sum(nodes_W) * options.window_h,
        units=units,
        missing=max(missing, 0.0),
        starts=sum(n > m for m, n in steps),
        usd=usd,
    )


def _plans(job: Job, nodes_W: Sequence[int]) -> Iterator[JobPlan]:
    """The plans that some window uses."""
    copies = {point.nodes: point.copies for point in job.points}
    used = sorted({nodes // copies[nodes] for nodes in nodes_W if nodes and job.plans})
    for nodes in used:
        plan = job.plans[nodes].model_dump(mode="json", by_alias=True, exclude_none=True)
        yield JobPlan(job=job.spec.name, nodes=nodes, plan=plan)


def _predictions(day: FleetDay, decision: FleetDecision, value: float) -> Iterator[Prediction]:
    yield Prediction(metric=METRIC, value=value)
    pool = day.resolved.pools[0]
    if pool.usd_per_gpu_hour is not None:
        yield Prediction(metric="usd_per_hour", value=pool.usd_per_gpu_hour * pool.num_gpus)
    hours = day.nodes * day.options.windows * day.options.window_h
    yield Prediction(metric="busy_share", value=sum(each.node_hours for each in decision.days) / hours)
    for each, job in zip(decision.days, day.jobs, strict=True):
        if job.spec.load is not None and each.units + each.missing > 0.0:
            yield Prediction(metric="served_share", of=each.job, value=each.units / (each.units + each.missing))
        elif job.spec.target is not None:
            yield Prediction(metric="target_share", of=each.job, value=min(each.units / job.spec.target, 1.0))


def _evidence(day: FleetDay, nodes_KW: Sequence[Sequence[int]]) -> Evidence:
    """What the curves in use rest on."""
    notes = [f"the curve of `{job.spec.name}` is stated" for job in day.jobs if job.kind is None]
    for job in day.jobs:
        if job.kind is not None:
            plans = {point.nodes // point.copies for point in job.points}
            notes.append(f"the curve of `{job.spec.name}` is of {len(plans)} plans of kind `{job.kind}`")
        stated = job.spec.nodes or tuple(point.nodes for point in job.spec.curve or ())
        beyond = sorted({nodes for nodes in stated if nodes > day.nodes})
        if beyond:
            listed = ", ".join(map(str, beyond))
            notes.append(f"`{job.spec.name}` on {listed} nodes is not considered: the jobs share {day.nodes}")
    return Evidence(basis=weighted_shares(_rests_on(day, nodes_KW)), notes=tuple(notes))


def _rests_on(day: FleetDay, nodes_KW: Sequence[Sequence[int]]) -> Iterator[tuple[float, Shares]]:
    """What the plan of every job in every window rests on, weighted by its nodes; stated curves count as measured."""
    for job, nodes_W in zip(day.jobs, nodes_KW, strict=True):
        copies = {point.nodes: point.copies for point in job.points}
        for nodes in filter(None, nodes_W):
            yield nodes, {"measured": 1.0} if job.kind is None else job.plans[nodes // copies[nodes]].evidence.basis


def curve_of(decision: FleetDecision, name: str) -> tuple[CurvePoint, ...]:
    """The points of a job."""
    return tuple(point for point in decision.curves if point.job == name)

"""Pools of stages as plans: solved, stated again from their own choices, judged on fresh streams."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic

import numpy as np

from planner.errors import Conflict, Infeasible, PlannerError, Stopped
from planner.kinds.workflow import envelopes
from planner.kinds.workflow.decision import StageChoice, WorkflowDecision
from planner.kinds.workflow.pool_options import DecodeOption
from planner.kinds.workflow.pools.form import P, PoolLimit, PoolsForm
from planner.plan.blocks import block_on
from planner.plan.findings import Finding
from planner.plan.placement import GPU_SHARE
from planner.plan.restated import Restated
from planner.plan.schema import Axis, Block, Engine, Envelope, Evidence, Parallelism, Prediction, Role
from planner.progress import Limits
from planner.solvers.result import Status
from planner.solvers.workflow.cover import Cover
from planner.solvers.workflow.shared_gpus import gpus_of, spread

METRIC = "usd_per_hour"
SEEDS_APART = 100_003  # of one stream and the next
FRESH, CHECKED = range(1, 7), range(7, 15)
T_ONE_SIDED, T_95 = 2.015, 2.365  # of Student's distribution: six streams on one side, eight on both
ROUNDS, STRICTER = 12, 0.97  # choices, each for a limit so much stricter, until fresh streams keep the one stated
TIME_LIMIT_S = 600.0
CLAIM = (
    "no pools of the options stated cost less than {plan} and keep the limits on the stream that they were chosen on; "
    "figures are of other streams"
)
SHARED = "replicas that share a GPU take as long as their options state, whoever the others are"

Figures = tuple[float, ...]  # of the limits of a form, in their order


@dataclass(frozen=True, slots=True)
class PoolsChoice(Generic[P]):
    """Pools, their figures on fresh streams, and the cost below which none keep the limits."""

    plan: P
    figures: tuple[Figures, ...]
    bound: float | None
    cover: Cover


def solve(form: PoolsForm[P], limits: Limits) -> Envelope:
    """The cheapest pools; raises Infeasible and Stopped."""
    return envelope(form, _chosen(form, limits))


def _chosen(form: PoolsForm[P], limits: Limits) -> PoolsChoice[P]:
    """The cheapest on one stream that keep the limits on six others, of ever stricter limits on the first."""
    seed, bound, cover = form.resolved.problem.seed, None, Cover()
    for number in range(ROUNDS):
        own = Cover() if bound is not None else cover
        result = form.cheapest(seed, STRICTER**number, limits.time_limit_s or TIME_LIMIT_S, own)
        if result.status is Status.UNKNOWN:
            raise Stopped(result.stop_reason, bound=result.bound if bound is None else bound)
        if result.solution is None:
            raise _none(form, proved=bound is None)
        bound = result.objective if bound is None else bound
        if not _fits(form, result.solution):
            alone = len(form.resolved.pools) == 1  # where the cheapest have the fewest GPUs
            raise _none(form, proved=alone, gpus=sum(_gpus(form, result.solution)))
        figures = _figures(form, result.solution, FRESH)
        if form.keeps(_beyond(figures, T_ONE_SIDED)):
            return PoolsChoice(result.solution, figures, bound, cover)
    raise _none(form, proved=False)


def _figures(form: PoolsForm[P], plan: P, numbers: range) -> tuple[Figures, ...]:
    seed = form.resolved.problem.seed
    return tuple(form.measured(seed + SEEDS_APART * number, plan) for number in numbers)


def _beyond(figures: Sequence[Figures], errors: float = 0.0) -> Figures:
    """The mean over streams with so many standard errors added."""
    root = math.sqrt(len(figures))
    columns = zip(*figures, strict=True)
    return tuple(float(np.mean(each)) + errors * float(np.std(each, ddof=1)) / root for each in columns)


def _fits(form: PoolsForm[P], plan: P) -> bool:
    """Whether every pool has the GPUs, and the caps of the problem hold."""
    used = _gpus(form, plan)
    limits = form.resolved.problem.limits
    total, price = sum(used), form.cost(plan)
    within = all(count <= len(pool.job_devices) for count, pool in zip(used, form.resolved.pools, strict=True))
    return within and total <= (limits.gpus or total) and price <= (limits.usd_per_hour or price) + 1e-9


def _gpus(form: PoolsForm[P], plan: P) -> list[int]:
    """In use, by pool."""
    used = [0] * len(form.resolved.pools)
    for _, row, replicas in form.chosen(plan):
        used[form.pool_of(row)] += row.gpus * replicas if row.gpu_share is None else 0
    for pool in range(len(used)):
        used[pool] += len(gpus_of([(share, count) for _, share, count in _sharing(form, plan, pool)]))
    return used


def _sharing(form: PoolsForm[P], plan: P, pool: int) -> list[tuple[str, float, int]]:
    """Stages whose replicas take a share of a GPU of a pool: the share, and how many."""
    return [
        (stage, row.gpu_share, replicas)
        for stage, row, replicas in form.chosen(plan)
        if row.gpu_share is not None and form.pool_of(row) == pool
    ]


def _none(form: PoolsForm[P], *, proved: bool, gpus: int | None = None) -> Infeasible:
    """What the dearest pools reach of each limit, and what they cost."""
    dearest = form.dearest()
    told = form.measured(form.resolved.problem.seed, dearest)
    conflict: list[Conflict] = [
        {
            "limit": f"{form.workload.name}: {limit}",
            "nearest": f"{limit.shown(value)} for {form.cost(dearest):.4g} USD/h",
        }
        for limit, value in zip(form.limits, told, strict=True)
    ]
    counts = max(max(form.counts(stage)) for stage in form.stages)
    most = f"at most {counts} replicas of a stage, and the GPUs and caps stated"
    conflict.append({"limit": most, "nearest": "" if gpus is None else f"{gpus} GPUs"})
    return Infeasible(conflict, proved=proved)


def restate(form: PoolsForm[P], stated: Envelope, decision: WorkflowDecision) -> Restated:
    """The plan of its own pools; raises PlannerError for those that the problem does not have."""
    plan, known = plan_of(form, decision), stated.certificate
    made = envelope(form, PoolsChoice(plan, _figures(form, plan, FRESH), known.bound, envelopes.cover_of(known)))
    return envelopes.restated(made, known)


def prove(form: PoolsForm[P], stated: Envelope) -> Iterator[Finding]:
    """Whether the bound is that of the problem: solved again."""
    cover = Cover()
    again = form.cheapest(form.resolved.problem.seed, 1.0, TIME_LIMIT_S, cover).objective
    yield from envelopes.bound_findings(stated.certificate, again, cover)


def judged(
    form: PoolsForm[P], envelope: Envelope, decision: WorkflowDecision
) -> tuple[list[Finding], dict[str, object]]:
    """Every limit on eight streams that nothing was chosen on or stated of."""
    figures = _figures(form, plan_of(form, decision), CHECKED)
    mean, low, high = (_beyond(figures, errors) for errors in (0.0, -T_95, T_95))
    findings = [_finding(*each) for each in zip(form.limits, mean, low, high, strict=True)]
    rows = [*zip(form.limits, mean, low, high, strict=True)]
    document: dict[str, object] = {
        "schema": "planner.simulation/1",
        "streams": len(figures),
        "beside_stated": [_beside(form, envelope, *row) for row in rows if row[0].metric.endswith("_s")],
    }
    return findings, document | {limit.metric: value for limit, value in zip(form.limits, mean, strict=True)}


def _beside(
    form: PoolsForm[P], stated: Envelope, limit: PoolLimit, mean: float, low: float, high: float
) -> dict[str, object]:
    """The simulated time of a limit beside what the plan states of it."""
    named = (limit.metric, form.workload.name, limit.statistic)
    values = (row.value for row in stated.predictions if (row.metric, row.of, row.statistic) == named)
    return {
        "workload": form.workload.name,
        "time": limit.metric.removesuffix("_s"),
        "statistic": limit.statistic,
        "simulated_s": mean,
        "interval_s": (max(low, 0.0), high),
        "limit_s": limit.bound,
        "margin": 1.0 - mean / limit.bound,
        "verdict": "broken" if low > limit.bound else "kept" if high <= limit.bound else "too close to call",
        "stated_s": next(values, None),
    }


def _finding(limit: PoolLimit, mean: float, low: float, high: float) -> Finding:
    """Broken where the whole interval is beyond the limit, too close to call where the limit lies in it."""
    close = low <= limit.bound < high
    hint = "simulate more requests" if close else "solve with a stricter limit, or lower the rate"
    between = f"{limit.shown(max(low, 0.0))} to {limit.shown(high)}"
    what = f"{limit.label} is {limit.shown(mean)} ({between}), the limit {limit.shown(limit.bound)}"
    place = limit.metric if limit.statistic == "mean" else limit.statistic
    return Finding(f"simulate.{limit.rule}", low <= limit.bound, what, place, hint, close=close)


def plan_of(form: PoolsForm[P], decision: WorkflowDecision) -> P:
    """The pools that a plan states."""
    known = {choice.stage: choice for choice in decision.stages}
    strange = sorted(set(known) - set(form.stages))
    if strange:
        raise PlannerError(f"`{strange[0]}` is no stage of `{form.key}`", where="decision.stages", hint="solve again")
    pools = []
    for stage in form.stages:
        names, choice = [option.name for option in form.rows(stage)], known.get(stage)
        if choice is None and stage in form.idle:
            pools.append((0, 0))
            continue
        if choice is None or choice.option not in names or choice.servers is None:
            raise PlannerError(f"chooses no option of `{stage}`", where="decision.stages", hint="solve again")
        pools.append((names.index(choice.option), choice.servers))
    plan = form.plan_with(tuple(pools), decision)
    if not _fits(form, plan):
        raise PlannerError("uses more GPUs or money than there is", where="decision.stages", hint="solve again")
    return plan


def envelope(form: PoolsForm[P], choice: PoolsChoice[P]) -> Envelope:
    """The plan of pools."""
    told, value = _beyond(choice.figures), form.cost(choice.plan)
    streams = f"times are of {len(FRESH)} streams of {form.options.simulated_requests} requests that nothing was"
    return envelopes.envelope(
        form.resolved,
        form.solver,
        _decision(form, choice.plan),
        _predictions(form, choice, told),
        envelopes.certificate(CLAIM, METRIC, value, choice.bound, choice.cover, form.axes),
        Evidence(
            basis={"measured": 1.0},
            sources=("times of stages that the problem states",),
            notes=(f"{streams} chosen on",),
        ),
        (*form.assumptions, *((SHARED,) if form.shares else ())),
    )


def _decision(form: PoolsForm[P], plan: P) -> WorkflowDecision:
    roles, stages = [], []
    for stage, row, replicas in form.chosen(plan):
        limits: dict[str, float | int | str] = {"slots": row.slots} if isinstance(row, DecodeOption) else {}
        limits |= {} if row.gpu_share is None else {GPU_SHARE: row.gpu_share}
        engine = form.resolved.problem.engine
        roles.append(
            Role(
                name=stage,
                function=stage,
                model=next(iter(form.resolved.models)),
                engine=Engine(name=engine.name, version=engine.version),
                pool=form.resolved.pools[form.pool_of(row)].name,
                replicas=replicas,
                parallelism=Parallelism(tp=row.gpus, moe_tp=row.gpus),
                limits=limits,
            )
        )
        usd = form.usd_per_hour(row) * replicas
        stages.append(StageChoice(stage=stage, option=row.name, usd_per_hour=usd, servers=replicas, roles=(stage,)))
    placement = tuple(_blocks(form, plan, roles))
    return WorkflowDecision(roles=tuple(roles), placement=placement, stages=tuple(stages), **form.details(plan))


def _blocks(form: PoolsForm[P], plan: P, roles: Sequence[Role]) -> Iterator[Block]:
    """Roles of a pool one behind the other, those with large replicas first so that none lies across nodes; then GPUs
    that replicas share."""
    for number, pool in enumerate(form.resolved.pools):
        job, behind = pool.job_devices.tolist(), 0
        own = [role for role in roles if role.pool == pool.name and GPU_SHARE not in role.limits]
        for role in sorted(own, key=lambda role: -role.parallelism.tp):
            size = role.parallelism.tp
            axes = (Axis(name="replica", size=role.replicas, stride=size), Axis(name="tp", size=size, stride=1))
            taken = job[behind : behind + size * role.replicas]
            yield block_on(taken, role.name, pool.name, tuple(axis for axis in axes if axis.size > 1))
            behind += size * role.replicas
        sharing = _sharing(form, plan, number)
        for gpu, held in enumerate(spread([(share, count) for _, share, count in sharing])):
            for (stage, _, _), count in zip(sharing, held, strict=True):
                for _ in range(count):  # a replica each: two of a stage may stand on one GPU
                    yield block_on([job[behind + gpu]], stage, pool.name, ())


def _predictions(form: PoolsForm[P], choice: PoolsChoice[P], told: Figures) -> Iterator[Prediction]:
    name = form.workload.name
    yield Prediction(metric=METRIC, value=form.cost(choice.plan))
    yield Prediction(metric="gpus", value=float(sum(_gpus(form, choice.plan))))
    yield Prediction(metric="requests_per_s", of=name, value=form.rate_per_s)
    for limit, value in zip(form.limits, told, strict=True):
        yield Prediction(metric=limit.metric, of=name, statistic=limit.statistic, value=value)

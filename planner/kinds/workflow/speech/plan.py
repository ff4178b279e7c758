"""Pools for speech as plans: solved, stated again from their own choices, judged on fresh streams."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from planner import __version__
from planner.documents.files import digest
from planner.documents.units import format_si
from planner.errors import Conflict, Infeasible, PlannerError, Stopped
from planner.kinds.workflow.decision import StageChoice, WorkflowDecision
from planner.kinds.workflow.speech.setting import SpeechSetting, faster, pools_on, read_speech
from planner.plan.blocks import block_on
from planner.plan.findings import Finding
from planner.plan.restated import LeftOut, Restated, unproven
from planner.plan.schema import (
    SCHEMA,
    Axis,
    Block,
    Certificate,
    Digests,
    Engine,
    Envelope,
    Evidence,
    Objective,
    Parallelism,
    Prediction,
    Role,
    Software,
)
from planner.problem.resolve import Resolved, normalised
from planner.progress import Limits
from planner.solvers.result import Status, relative_gap
from planner.solvers.workflow.speech_pools import SOLVER, STAGES, Heard, SpeechPlan, cheapest_pools, cost, heard, keeps

METRIC = "usd_per_hour"
TOLERANCE = 1e-6
SEEDS_APART = 100_003  # of one stream and the next
FRESH, CHECKED = range(1, 7), range(7, 15)
T_ONE_SIDED, T_95 = 2.015, 2.365  # of Student's distribution: six streams on one side, eight on both
ROUNDS, STRICTER = 12, 0.97  # choices, each for a limit so much stricter, until fresh streams keep the one stated
TIME_LIMIT_S = 600.0
BOUND = LeftOut("certificate.bound", "whether no pools cost less")
ASSUMPTIONS = (
    "stages take requests first come, first served; a reply holds a slot of decode from its first token to its last",
    "a token takes as long as with all slots full; moves between stages are part of their times as stated",
    "a later chunk is late where it is ready after it is to be played, slack included",
)


@dataclass(frozen=True, slots=True)
class SpeechChoice:
    """Pools, what is heard of them on fresh streams, and the cost below which none keep the limits."""

    plan: SpeechPlan
    heard: tuple[Heard, ...]
    usd_per_hour: float
    bound: float | None


def solve(resolved: Resolved, limits: Limits) -> Envelope:
    """The cheapest pools; raises Infeasible, Stopped, and PlannerError for what is no such problem."""
    setting = read_speech(resolved)
    return envelope(setting, _chosen(setting, limits))


def _chosen(setting: SpeechSetting, limits: Limits) -> SpeechChoice:
    """The cheapest on one stream that keep the limits on six others, of ever stricter limits on the first."""
    seed, bound = setting.resolved.problem.seed, None
    stated = pools_on(setting, seed)
    problem = stated
    for _ in range(ROUNDS):
        result = cheapest_pools(problem, time_limit_s=limits.time_limit_s or TIME_LIMIT_S)
        if result.status is Status.UNKNOWN:
            raise Stopped(result.stop_reason, bound=result.bound if bound is None else bound)
        if result.solution is None:
            raise _none(setting, proved=bound is None)
        bound = result.objective if bound is None else bound
        told = _heard(setting, result.solution, FRESH)
        if keeps(stated, _beyond(told, T_ONE_SIDED)) and _fits(setting, result.solution):
            return SpeechChoice(result.solution, told, cost(stated, result.solution.pools), bound)
        if not _fits(setting, result.solution):
            alone = len(setting.resolved.pools) == 1  # where the cheapest have the fewest GPUs
            raise _none(setting, proved=alone, gpus=sum(_gpus(setting, result.solution)))
        problem = faster(problem, STRICTER)
    raise _none(setting, proved=False)


def _heard(setting: SpeechSetting, plan: SpeechPlan, numbers: range) -> tuple[Heard, ...]:
    seed = setting.resolved.problem.seed
    return tuple(heard(pools_on(setting, seed + SEEDS_APART * number), plan) for number in numbers)


def _mean(told: Sequence[Heard]) -> Heard:
    """Over streams."""
    return Heard(
        float(np.mean([each.first_audio_s for each in told])), float(np.mean([each.late_share for each in told]))
    )


def _beyond(told: Sequence[Heard], errors: float) -> Heard:
    """The mean over streams with so many standard errors added."""
    firsts, lates = [each.first_audio_s for each in told], [each.late_share for each in told]
    mean, root = _mean(told), math.sqrt(len(told))
    return Heard(
        mean.first_audio_s + errors * float(np.std(firsts, ddof=1)) / root,
        mean.late_share + errors * float(np.std(lates, ddof=1)) / root,
    )


def _fits(setting: SpeechSetting, plan: SpeechPlan) -> bool:
    """Whether every pool has the GPUs, and the caps of the problem hold."""
    used = _gpus(setting, plan)
    limits = setting.resolved.problem.limits
    total = sum(used)
    within = all(count <= len(pool.job_devices) for count, pool in zip(used, setting.resolved.pools, strict=True))
    price = sum(
        count * (pool.usd_per_gpu_hour or 0.0) for count, pool in zip(used, setting.resolved.pools, strict=True)
    )
    return within and total <= (limits.gpus or total) and price <= (limits.usd_per_hour or price) + 1e-9


def _gpus(setting: SpeechSetting, plan: SpeechPlan) -> list[int]:
    used = [0] * len(setting.resolved.pools)
    for stage, (option, replicas) in zip(STAGES, plan.pools, strict=True):
        row = setting.rows(stage)[option]
        used[setting.pool_of(row)] += row.gpus * replicas
    return used


def _none(setting: SpeechSetting, *, proved: bool, gpus: int | None = None) -> Infeasible:
    name = setting.resolved.workloads[0].spec.name
    conflict: list[Conflict] = [
        {"limit": f"{name}: {setting.statistic} first audio <= {format_si(setting.first_audio_s, 's')}", "nearest": ""},
        {"limit": f"{setting.speech.late_share:.2%} of later chunks late", "nearest": ""},
        {
            "limit": f"at most {setting.speech.most_replicas} replicas of a stage, and the GPUs and caps stated",
            "nearest": "" if gpus is None else f"{gpus} GPUs",
        },
    ]
    return Infeasible(conflict, proved=proved)


def restate(resolved: Resolved, stated: Envelope, decision: WorkflowDecision) -> Restated:
    """The plan of its own pools; raises PlannerError for those that the problem does not have."""
    setting = read_speech(resolved)
    plan = plan_of(setting, decision)
    value = cost(pools_on(setting, resolved.problem.seed), plan.pools)
    choice = SpeechChoice(plan, _heard(setting, plan, FRESH), value, stated.certificate.bound)
    made = envelope(setting, choice)
    if stated.certificate.bound is None:
        return Restated(made.model_copy(update={"certificate": unproven(made.certificate.objective)}))
    return Restated(made, (BOUND,))


def prove(resolved: Resolved, stated: Envelope) -> Iterator[Finding]:
    """Whether the bound is that of the problem: solved again."""
    bound = stated.certificate.bound
    if bound is None:
        return
    again = cheapest_pools(pools_on(read_speech(resolved), resolved.problem.seed)).objective
    what = f"states the bound {bound:.9g}, its pools give {again}"
    right = again is not None and abs(bound - again) <= TOLERANCE * max(abs(again), 1.0)
    yield Finding("certificate.bound_again", right, what, "certificate.bound", "solve again")


def judged(resolved: Resolved, decision: WorkflowDecision) -> tuple[list[Finding], dict[str, object]]:
    """First audio and late chunks on eight streams that nothing was chosen on or stated of."""
    setting = read_speech(resolved)
    told = _heard(setting, plan_of(setting, decision), CHECKED)
    mean, low, high = _mean(told), _beyond(told, -T_95), _beyond(told, T_95)
    between = f"({format_si(low.first_audio_s, 's')} to {format_si(high.first_audio_s, 's')})"
    first = f"{setting.statistic} of first audio is {format_si(mean.first_audio_s, 's')} {between}, "
    first += f"the limit {format_si(setting.first_audio_s, 's')}"
    late = f"{mean.late_share:.2%} of later chunks are late ({max(low.late_share, 0.0):.2%} to {high.late_share:.2%}), "
    late += f"{setting.speech.late_share:.2%} may be"
    findings = [
        _finding("ttft", first, setting.statistic, setting.first_audio_s, low.first_audio_s, high.first_audio_s),
        _finding("late", late, "late_share", setting.speech.late_share, low.late_share, high.late_share),
    ]
    return findings, {
        "schema": "planner.simulation/1",
        "streams": len(told),
        "first_audio_s": mean.first_audio_s,
        "late_share": mean.late_share,
    }


def _finding(rule: str, what: str, place: str, limit: float, low: float, high: float) -> Finding:
    """Broken where the whole interval is beyond the limit, too close to call where the limit lies in it."""
    close = low <= limit < high
    hint = "simulate more requests" if close else "solve with a stricter limit, or lower the rate"
    return Finding(f"simulate.{rule}", low <= limit, what, place, hint, close=close)


def plan_of(setting: SpeechSetting, decision: WorkflowDecision) -> SpeechPlan:
    """The pools that a plan states."""
    known = {choice.stage: choice for choice in decision.stages}
    pools = []
    for stage in STAGES:
        names = [option.name for option in setting.rows(stage)]
        choice = known.get(stage)
        if choice is None or choice.option not in names or choice.servers is None:
            raise PlannerError(f"chooses no option of `{stage}`", where="decision.stages", hint="solve again")
        pools.append((names.index(choice.option), choice.servers))
    if len(known) != len(STAGES) or decision.first_chunk_tokens not in setting.speech.first_chunks:
        what = "states other stages than those of speech, or a first chunk that is none of the problem's"
        raise PlannerError(what, where="decision.first_chunk_tokens", hint="solve again")
    plan = SpeechPlan(tuple(pools), decision.first_chunk_tokens or 0)
    if not _fits(setting, plan):
        raise PlannerError("uses more GPUs or money than there is", where="decision.stages", hint="solve again")
    return plan


def envelope(setting: SpeechSetting, choice: SpeechChoice) -> Envelope:
    """The plan of pools."""
    resolved = setting.resolved
    inputs, known = normalised(resolved), resolved.digests()
    told, bound = _mean(choice.heard), choice.bound
    value = choice.usd_per_hour
    bound = None if bound is None else min(bound, value)
    return Envelope(
        schema=SCHEMA,
        kind="workflow",
        name=resolved.problem.name,
        software=Software(planner=__version__, solver=SOLVER),
        seed=resolved.problem.seed,
        digests=Digests(
            problem=digest(inputs), models=known["models"], hardware=known["hardware"], traces=known["traces"]
        ),
        inputs=inputs,
        decision=_decision(setting, choice.plan).model_dump(mode="json", exclude_none=True),
        predictions=tuple(_predictions(setting, choice, told)),
        certificate=Certificate(
            claim="no pools of the options stated cost less than the bound and keep the limits on the stream that they "
            "were chosen on; figures are of other streams",
            status="feasible",
            objective=Objective(metric=METRIC, sense="minimize", value=value),
            bound=bound,
            gap=relative_gap(value, bound),
            tolerance=TOLERANCE,
            axes={stage: [option.name for option in setting.rows(stage)] for stage in STAGES},
            candidates=int(np.prod([len(setting.rows(stage)) * setting.speech.most_replicas for stage in STAGES])),
        ),
        evidence=Evidence(
            basis={"measured": 1.0},
            sources=("times of stages that the problem states",),
            notes=(f"times are of {len(FRESH)} streams of {setting.options.simulated_requests} requests that nothing "
                   "was chosen on",),
        ),
        assumptions=(*ASSUMPTIONS, *resolved.price_notes),
    )  # fmt: skip


def _decision(setting: SpeechSetting, plan: SpeechPlan) -> WorkflowDecision:
    roles, stages = [], []
    for stage, (option, replicas) in zip(STAGES, plan.pools, strict=True):
        row = setting.rows(stage)[option]
        slots = {"slots": setting.speech.decode[option].slots} if stage == "decode" else {}
        engine = setting.resolved.problem.engine
        roles.append(
            Role(
                name=stage,
                function=stage,
                model=next(iter(setting.resolved.models)),
                engine=Engine(name=engine.name, version=engine.version),
                pool=setting.resolved.pools[setting.pool_of(row)].name,
                replicas=replicas,
                parallelism=Parallelism(tp=row.gpus, moe_tp=row.gpus),
                limits=dict(slots),
            )
        )
        usd = setting.usd_per_hour(row) * replicas
        stages.append(StageChoice(stage=stage, option=row.name, usd_per_hour=usd, servers=replicas, roles=(stage,)))
    placement = tuple(_blocks(setting, roles))
    return WorkflowDecision(
        roles=tuple(roles), placement=placement, stages=tuple(stages), first_chunk_tokens=plan.first_chunk
    )


def _blocks(setting: SpeechSetting, roles: Sequence[Role]) -> Iterator[Block]:
    """Roles of a pool one behind the other, those with large replicas first so that none lies across nodes."""
    for pool in setting.resolved.pools:
        job, behind = pool.job_devices.tolist(), 0
        own = [role for role in roles if role.pool == pool.name]
        for role in sorted(own, key=lambda role: -role.parallelism.tp):
            size = role.parallelism.tp
            axes = (Axis(name="replica", size=role.replicas, stride=size), Axis(name="tp", size=size, stride=1))
            taken = job[behind : behind + size * role.replicas]
            yield block_on(taken, role.name, pool.name, tuple(axis for axis in axes if axis.size > 1))
            behind += size * role.replicas


def _predictions(setting: SpeechSetting, choice: SpeechChoice, told: Heard) -> Iterator[Prediction]:
    name = setting.resolved.workloads[0].spec.name
    yield Prediction(metric=METRIC, value=choice.usd_per_hour)
    yield Prediction(metric="gpus", value=float(sum(_gpus(setting, choice.plan))))
    yield Prediction(metric="requests_per_s", of=name, value=setting.rate_per_s)
    yield Prediction(metric="ttft_s", of=name, statistic=setting.statistic, value=told.first_audio_s)
    yield Prediction(metric="late_chunk_share", of=name, value=told.late_share)

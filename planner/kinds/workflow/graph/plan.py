"""Workflows of stages as plans: solved, stated again from their own choices, and their bound derived again."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from planner.costs.rates.calibration import load_calibration
from planner.documents.files import digest
from planner.errors import Infeasible, PlannerError, Stopped
from planner.kinds.registry import checksummed, find_kind
from planner.kinds.workflow import envelopes
from planner.kinds.workflow.decision import StageChoice, WorkflowDecision
from planner.kinds.workflow.graph.candidates import Candidate, Engines, functions_of
from planner.kinds.workflow.graph.choose import (
    CHECKED,
    FRESH,
    Choice,
    Reached,
    best_choice,
    chosen_stream,
    reached,
    streams_of,
)
from planner.kinds.workflow.graph.draws import scenarios_judged
from planner.kinds.workflow.graph.floor import laid
from planner.kinds.workflow.graph.serving import Served, embedded
from planner.kinds.workflow.graph.setting import GraphSetting, read_setting
from planner.kinds.workflow.nested import plan_place, roles_of, serving_plan
from planner.plan.evidence import weighted_shares
from planner.plan.findings import Finding
from planner.plan.restated import Restated
from planner.plan.schema import Envelope, Evidence, Prediction, Role, Shares
from planner.problem.recorded import AtHand
from planner.problem.resolve import Resolved, normalised
from planner.progress import Limits
from planner.solvers.workflow.simulated_graph import SOLVER, quantile_s

METRIC = "usd_per_hour"
CLAIM = (
    "no options of the stages, of those stated and of the serving plans solved for, cost less than {plan} and keep the "
    "limits on the stream that they were chosen on; figures are of other streams"
)
SERVED = (
    "; a model is served on one pool, by the plan that is the cheapest there within a latency of the axes: engines "
    "over several pools, or of other plans, may cost less"
)
ORDERED = ", clusters beyond GPU memory in the orders that were found"
ASSUMPTIONS = (
    "a stage begins for a request when all stages it waits for have ended, without a transfer between",
    "functions with servers take calls first come, first served; those without never wait",
    "engines of a stage take requests by the routing policy of their serving plan",
)


def solve(resolved: Resolved, limits: Limits) -> Envelope:
    """The cheapest options of all stages that keep the limits together.

    Raises Infeasible where none do, Stopped at the time limit, PlannerError for what is no such problem.
    """
    setting = read_setting(resolved)
    return envelope(setting, best_choice(setting, limits))


def restate(resolved: Resolved, stated: Envelope, decision: WorkflowDecision, hand: AtHand) -> Restated:
    """The plan of its own choices; raises PlannerError for choices that the problem does not have."""
    setting, known = read_setting(resolved), stated.certificate
    rows = rows_of(setting, decision, hand)
    streams = streams_of(setting, FRESH)
    told = reached(setting, rows, Engines(setting, (chosen_stream(setting), *streams)), streams)
    orders = known.proof.get("orders")
    beside = orders if isinstance(orders, dict) else {}
    choice = Choice(rows, told, known.bound, envelopes.cover_of(known), known.axes, beside)
    return envelopes.restated(envelope(setting, choice), known)


def prove(resolved: Resolved, stated: Envelope) -> Iterator[Finding]:
    """Whether bound and counts are those of the problem: solved again."""
    if stated.certificate.bound is None:
        return
    try:
        again = best_choice(read_setting(resolved), Limits(seed=resolved.problem.seed))
    except (Infeasible, Stopped) as error:
        yield Finding("certificate.bound_again", False, f"solved again, no plan was found: {error}", "certificate")
        return
    yield from envelopes.bound_findings(stated.certificate, again.bound, again.cover)
    what = "the options that were chosen from are those of the problem"
    same = dict(again.axes) == dict(stated.certificate.axes)
    yield Finding("certificate.axes", same, what, "certificate.axes", "solve again")


def simulated(resolved: Resolved, decision: WorkflowDecision, hand: AtHand) -> tuple[GraphSetting, list[Reached]]:
    """What the choices of a plan reach on each of the streams that nothing was chosen on or stated of."""
    setting = read_setting(resolved)
    streams = streams_of(setting, CHECKED)
    rows, engines = rows_of(setting, decision, hand), Engines(setting, streams)
    return setting, [reached(setting, rows, engines, (stream,)) for stream in streams]


def rows_of(setting: GraphSetting, decision: WorkflowDecision, hand: AtHand) -> tuple[Candidate, ...]:
    """The options that a plan chose; raises PlannerError for stages, options and plans that are not of the problem."""
    known = {choice.stage: choice for choice in decision.stages}
    if sorted(known) != sorted(stage.name for stage in setting.stages) or len(known) != len(decision.stages):
        raise PlannerError("the plan does not choose once for every stage", where="decision.stages", hint="solve again")
    return tuple(_row(setting, index, known[stage.name], hand) for index, stage in enumerate(setting.stages))


def _row(setting: GraphSetting, stage: int, choice: StageChoice, hand: AtHand) -> Candidate:
    where = f"decision.stages.{choice.stage}"
    if setting.stages[stage].serve is None:
        for row in functions_of(setting, stage):
            if row.name == choice.option and row.servers == choice.servers:
                if sorted(row.order) != sorted(choice.transfer_order):
                    raise PlannerError("does not move every cluster once", where=where, hint="solve again")
                return replace(row, order=choice.transfer_order)
        what = f"option `{choice.option}` on {choice.servers} servers is none of the stage"
        raise PlannerError(what, where=where, hint="solve again")
    return Candidate(choice.usd_per_hour or 0.0, served=_served(setting, stage, choice, hand))


def _served(setting: GraphSetting, stage: int, choice: StageChoice, hand: AtHand) -> Served:
    """The serving plan of a stage, stated again from its own decision."""
    where, kind = plan_place(choice), find_kind("serve")
    stated, decision = serving_plan(choice)
    pools = [pool.name for pool in setting.resolved.pools]
    named = {role.pool for role in decision.roles}
    if len(named) != 1 or not named <= set(pools) or choice.limit_s is None:
        raise PlannerError("stands on no single pool of the problem", where=where, hint="solve again")
    pool = pools.index(named.pop())
    inner = embedded(setting, stage, pool, choice.limit_s)
    if digest(normalised(inner)) != digest(stated.inputs):
        raise PlannerError("is for another problem than that of the stage", where=where, hint="solve again")
    made = checksummed(kind.restate(stated, decision, hand).envelope)
    return Served(pool, choice.limit_s, setting.of_first(stage), made, kind.decision.model_validate(made.decision))


def envelope(setting: GraphSetting, choice: Choice) -> Envelope:
    """The plan of a choice."""
    resolved, value = setting.resolved, sum(row.usd_per_hour for row in choice.rows)
    decision = _decision(setting, choice.rows)
    return envelopes.envelope(
        resolved,
        SOLVER,
        decision,
        _predictions(setting, decision, choice.reached),
        envelopes.certificate(
            CLAIM + (ORDERED if choice.orders else "") + (SERVED if setting.serves else ""),
            METRIC,
            value,
            choice.bound,
            choice.cover,
            choice.axes,
            {"orders": choice.orders} if choice.orders else {},
        ),
        _evidence(setting, choice),
        ASSUMPTIONS,
        calibration=load_calibration(resolved.problem.costs.calibration).digest if setting.serves else None,
    )


def _decision(setting: GraphSetting, rows: Sequence[Candidate]) -> WorkflowDecision:
    pairs = list(zip(setting.stages, rows, strict=True))
    return WorkflowDecision(
        roles=tuple(role for stage, row in pairs for role in _roles(stage.name, row)),
        placement=laid(setting, rows),
        stages=tuple(_choice(stage.name, row) for stage, row in pairs),
    )


def _choice(stage: str, row: Candidate) -> StageChoice:
    served = row.served
    return StageChoice(
        stage=stage,
        option=row.name,
        usd_per_hour=row.usd_per_hour,
        servers=row.servers,
        transfer_order=row.order,
        roles=tuple(role.name for role in _roles(stage, row)),
        limit_s=None if served is None else served.limit_s,
        plan=None if served is None else served.envelope.model_dump(mode="json", by_alias=True, exclude_none=True),
    )


def _roles(stage: str, row: Candidate) -> tuple[Role, ...]:
    return () if row.served is None else roles_of(stage, row.served.decision)


def _predictions(setting: GraphSetting, decision: WorkflowDecision, told: Reached) -> Iterator[Prediction]:
    gpus = sum(role.replicas * role.parallelism.devices for role in decision.roles)
    yield Prediction(metric=METRIC, value=sum(choice.usd_per_hour or 0.0 for choice in decision.stages))
    if setting.serves:
        yield Prediction(metric="gpus", value=float(gpus))
    name = setting.workload.name
    yield Prediction(metric="requests_per_s", of=name, value=setting.rate_per_s)
    for limit in setting.limits:
        metric = "ttft_s" if limit.of_first else "latency_s"
        yield Prediction(
            metric=metric, of=name, statistic=f"p{100 * limit.share:.10g}", value=quantile_s(limit, told.whole)
        )
    for stage, times in zip(setting.stages, told.stages, strict=True):
        yield Prediction(metric="latency_s", of=stage.name, value=float(np.mean(times.end_s_R)))
        yield Prediction(
            metric="latency_s", of=stage.name, statistic="p95", value=float(np.quantile(times.end_s_R, 0.95))
        )


def _evidence(setting: GraphSetting, choice: Choice) -> Evidence:
    """What serving plans rest on, weighted by cost; functions are as the problem states them."""
    stated_shares: Shares = {"measured": 1.0}
    basis = weighted_shares(
        (row.usd_per_hour, stated_shares if row.served is None else row.served.envelope.evidence.basis)
        for row in choice.rows
    )
    notes = (_judged_on(setting),)
    functions = ("latencies and prices of functions that the problem states",)
    stated = any(row.served is None for row in choice.rows)
    return Evidence(basis=basis, sources=functions if stated else (), notes=notes)


def _judged_on(setting: GraphSetting) -> str:
    """What the times of a plan are of."""
    if not setting.every_scenario:
        count = setting.options.simulated_requests
        return f"times are of {len(FRESH)} streams of {count} requests that nothing was chosen on"
    known, held_back = scenarios_judged(setting)
    kept = (
        "those that options were not chosen on" if held_back else "those that options were chosen on, as they are few"
    )
    return f"times are of {known} scenarios, {kept}"

"""Workflows of stages as plans: solved, stated again from their own choices, and their bound derived again."""

from collections.abc import Iterator, Sequence

import numpy as np
from pydantic import ValidationError

from planner import __version__
from planner.costs.rates.calibration import load_calibration
from planner.documents.files import digest
from planner.errors import Infeasible, PlannerError, Stopped
from planner.kinds.registry import checksummed, find_kind
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
from planner.kinds.workflow.graph.floor import laid, role_name
from planner.kinds.workflow.graph.serving import Served, embedded
from planner.kinds.workflow.graph.setting import GraphSetting, read_setting
from planner.plan.evidence import weighted_shares
from planner.plan.findings import Finding
from planner.plan.restated import LeftOut, Restated, unproven
from planner.plan.schema import (
    SCHEMA,
    Certificate,
    Digests,
    Envelope,
    Evidence,
    Objective,
    Prediction,
    Role,
    Shares,
    Software,
)
from planner.problem.recorded import AtHand
from planner.problem.resolve import Resolved, normalised
from planner.progress import Limits
from planner.solvers.result import relative_gap
from planner.solvers.workflow.simulated_graph import SOLVER, quantile_s

METRIC = "usd_per_hour"
TOLERANCE = 1e-6
BOUND = LeftOut("certificate.bound", "whether no options cost less")
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
    setting = read_setting(resolved)
    rows = rows_of(setting, decision, hand)
    streams = streams_of(setting, FRESH)
    told = reached(setting, rows, Engines(setting, (chosen_stream(setting), *streams)), streams)
    counted = stated.certificate
    simulated = counted.pruned.get("stages simulated", 0)
    made = envelope(setting, Choice(rows, told, counted.bound, counted.candidates, simulated))
    if counted.bound is None:
        return Restated(made.model_copy(update={"certificate": unproven(made.certificate.objective)}))
    return Restated(made, (BOUND,))


def prove(resolved: Resolved, stated: Envelope) -> Iterator[Finding]:
    """Whether bound and counts are those of the problem: solved again."""
    if stated.certificate.bound is None:
        return
    try:
        again = best_choice(read_setting(resolved), Limits(seed=resolved.problem.seed)).bound
    except (Infeasible, Stopped) as error:
        yield Finding("certificate.bound_again", False, f"solved again, no plan was found: {error}", "certificate")
        return
    bound = stated.certificate.bound
    assert again is not None
    what = f"states the bound {bound:.9g}, its options give {again:.9g}"
    right = abs(bound - again) <= TOLERANCE * max(abs(again), 1.0)
    yield Finding("certificate.bound_again", right, what, "certificate.bound", "solve again")


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
                return row
        what = f"option `{choice.option}` on {choice.servers} servers is none of the stage"
        raise PlannerError(what, where=where, hint="solve again")
    return Candidate(choice.usd_per_hour, served=_served(setting, stage, choice, hand))


def _served(setting: GraphSetting, stage: int, choice: StageChoice, hand: AtHand) -> Served:
    """The serving plan of a stage, stated again from its own decision."""
    where, kind = f"decision.stages.{choice.stage}.plan", find_kind("serve")
    try:
        stated = Envelope.model_validate(choice.plan)
        decision = kind.decision.model_validate(stated.decision)
    except ValidationError:
        raise PlannerError("is no serving plan", where=where, hint="solve again") from None
    pools = [pool.name for pool in setting.resolved.pools]
    named = {role.pool for role in decision.roles}
    if len(named) != 1 or not named <= set(pools) or choice.limit_s is None:
        raise PlannerError("stands on no single pool of the problem", where=where, hint="solve again")
    pool = pools.index(named.pop())
    inner = embedded(setting, stage, pool, choice.limit_s)
    if digest(normalised(inner)) != digest(stated.inputs):
        raise PlannerError("is for another problem than that of the stage", where=where, hint="solve again")
    made = checksummed(kind.restate(stated, decision, hand).envelope)
    return Served(pool, choice.limit_s, made, kind.decision.model_validate(made.decision))


def envelope(setting: GraphSetting, choice: Choice) -> Envelope:
    """The plan of a choice."""
    resolved = setting.resolved
    inputs, known = normalised(resolved), resolved.digests()
    decision = _decision(setting, choice.rows)
    return Envelope(
        schema=SCHEMA,
        kind="workflow",
        name=resolved.problem.name,
        software=Software(planner=__version__, solver=SOLVER),
        seed=resolved.problem.seed,
        digests=Digests(
            problem=digest(inputs),
            models=known["models"],
            hardware=known["hardware"],
            calibration=load_calibration(resolved.problem.costs.calibration).digest,
            traces=known["traces"],
        ),
        inputs=inputs,
        decision=decision.model_dump(mode="json", exclude_none=True),
        predictions=tuple(_predictions(setting, decision, choice.reached)),
        certificate=_certificate(setting, choice),
        evidence=_evidence(setting, choice),
        assumptions=(*ASSUMPTIONS, *resolved.price_notes),
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
        roles=tuple(role.name for role in _roles(stage, row)),
        limit_s=None if served is None else served.limit_s,
        plan=None if served is None else served.envelope.model_dump(mode="json", by_alias=True, exclude_none=True),
    )


def _roles(stage: str, row: Candidate) -> tuple[Role, ...]:
    """Roles of the serving plan of a stage, by names that say whose they are."""
    roles = () if row.served is None else row.served.decision.roles
    return tuple(role.model_copy(update={"name": role_name(stage, role.name)}) for role in roles)


def _predictions(setting: GraphSetting, decision: WorkflowDecision, told: Reached) -> Iterator[Prediction]:
    value = sum(choice.usd_per_hour for choice in decision.stages)
    gpus = sum(role.replicas * role.parallelism.devices for role in decision.roles)
    yield Prediction(metric=METRIC, value=value)
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


def _certificate(setting: GraphSetting, choice: Choice) -> Certificate:
    value = sum(row.usd_per_hour for row in choice.rows)
    bound = None if choice.bound is None else min(choice.bound, value)
    return Certificate(
        claim="no options of the stages, of those stated and of the serving plans solved for, cost less than the bound "
        "and keep the limits on the stream that they were chosen on; figures are of other streams",
        status="feasible",
        objective=Objective(metric=METRIC, sense="minimize", value=value),
        bound=bound,
        gap=relative_gap(value, bound),
        tolerance=TOLERANCE,
        axes={"stages": [stage.name for stage in setting.stages]},
        candidates=choice.candidates,
        pruned={"stages simulated": choice.simulated} if choice.simulated else {},
    )


def _evidence(setting: GraphSetting, choice: Choice) -> Evidence:
    """What serving plans rest on, weighted by cost; functions are as the problem states them."""
    stated_shares: Shares = {"measured": 1.0}
    basis = weighted_shares(
        (row.usd_per_hour, stated_shares if row.served is None else row.served.envelope.evidence.basis)
        for row in choice.rows
    )
    count = setting.options.simulated_requests
    notes = (f"times are of {len(FRESH)} streams of {count} requests that nothing was chosen on",)
    functions = ("latencies and prices of functions that the problem states",)
    stated = any(row.served is None for row in choice.rows)
    return Evidence(basis=basis, sources=functions if stated else (), notes=notes)

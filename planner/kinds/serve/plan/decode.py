"""Decodes a solved instance mix into a plan: roles, placement, routing, predictions, certificate, evidence."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

from planner.costs.rates.evidence import UNMEASURED
from planner.costs.rates.profiled import Profiled
from planner.kinds.serve.options import AttentionFfn, Drafting, FrontierPoint, ServeDecision, SpareRoom
from planner.kinds.serve.plan.assumptions import assumptions
from planner.kinds.serve.plan.certificate import certificate, objective
from planner.kinds.serve.plan.context import beyond_predictions
from planner.kinds.serve.plan.encoded import encoding_predictions
from planner.kinds.serve.plan.losses import losses_of, spare_room
from planner.kinds.serve.plan.memory import prefix_memory, with_tiers
from planner.kinds.serve.plan.own_runs import limit_margins, time_beliefs
from planner.kinds.serve.plan.place import placement_blocks
from planner.kinds.serve.plan.steps import step_evidence
from planner.kinds.serve.steady.allowed import is_measured, text_of
from planner.kinds.serve.steady.attention_ffn import advice
from planner.kinds.serve.steady.candidates import Candidate
from planner.kinds.serve.steady.context import role_context
from planner.kinds.serve.steady.demand import Target
from planner.kinds.serve.steady.formulate import gpus_at_hand
from planner.kinds.serve.steady.predict import resting_scale, times
from planner.kinds.serve.steady.roles_in_use import RoleInUse
from planner.kinds.serve.steady.search import Outcome, ServeSetting
from planner.kinds.serve.steady.shapes import InstanceShape
from planner.plan.evidence import weighted_shares
from planner.plan.restated import unproven
from planner.plan.schema import (
    Block,
    Certificate,
    Engine,
    Envelope,
    Evidence,
    Memory,
    Parallelism,
    Prediction,
    Role,
    Route,
)
from planner.problem.envelope import plan_envelope
from planner.solvers.mix import Flow, MixSolution
from planner.solvers.mix_solve import MixCertificate
from planner.solvers.stochastic.routed_queues import Routing

_MODES: dict[frozenset[str], Literal["colocated", "disaggregated", "attention-ffn"]] = {
    frozenset({"colocated"}): "colocated",
    frozenset({"prefill", "decode"}): "disaggregated",
    frozenset({"prefill", "attention"}): "attention-ffn",
}
LEAST_SHARE = 1e-9  # of a workload's traffic; less is numerical dust


def decode(
    setting: ServeSetting, outcome: Outcome, proof: MixCertificate, frontier: Sequence[FrontierPoint]
) -> Envelope:
    """The plan of a solved mix."""
    return steady_plan(setting, outcome, certificate(setting, outcome, proof), frontier)


def steady_plan(
    setting: ServeSetting, outcome: Outcome, proven: Certificate, frontier: Sequence[FrontierPoint]
) -> Envelope:
    """The plan of a mix with what is proven of it, limits judged in steady state."""
    predictions = (*_predictions(setting, outcome), *beyond_predictions(setting, outcome))
    assumed = tuple(assumptions(setting, outcome, _drafting(setting, outcome.roles)))
    return envelope(setting, outcome, proven, predictions, assumed, frontier)


def envelope(
    setting: ServeSetting,
    outcome: Outcome,
    proven: Certificate,
    predictions: tuple[Prediction, ...],
    assumptions: tuple[str, ...],
    frontier: Sequence[FrontierPoint] = (),
) -> Envelope:
    """The plan of a mix with what is proven and predicted of it."""
    used = outcome.roles
    return plan_envelope(
        setting.resolved,
        _decision(setting, outcome, used, frontier, _apart(setting, outcome)),
        proven.model_copy(update={"confidence": setting.resolved.confidence}),
        predictions,
        _evidence(setting, used),
        assumptions,
        solver=outcome.result.solver,
        digests=_digests(setting),
    )


def proposal(setting: ServeSetting, outcome: Outcome) -> Envelope:
    """The plan of a mix as simulations take it: nothing is predicted of it, proven or explained."""
    value = outcome.objective
    assert value is not None
    return plan_envelope(
        setting.resolved,
        _decision(setting, outcome, outcome.roles, (), None),
        unproven(objective(outcome, value)),
        (),
        Evidence(spread_gpus=setting.spread_gpus),
        (),
        solver=outcome.result.solver,
        digests=_digests(setting),
    )


def _digests(setting: ServeSetting) -> dict[str, object]:
    return {"profiles": tuple(sorted(setting.profile_digests)), "calibration": setting.calibration.digest}


def _decision(
    setting: ServeSetting,
    outcome: Outcome,
    used: Sequence[RoleInUse],
    frontier: Sequence[FrontierPoint],
    apart: AttentionFfn | None,
) -> ServeDecision:
    functions = frozenset(item.candidate.function for item in used)
    drafted = {item.candidate.channel.index for item in used if item.candidate.channel and item.candidate.draft_tokens}
    moved = sum(
        flow.rate_per_s * (target.transfer_bytes + target.draft_bytes * (flow.channel in drafted))
        for flow in outcome.solution.flows
        for target in (setting.targets[flow.demand],)
    )
    memory = prefix_memory(setting.resolved)
    roles = with_tiers([role for item in used for role in roles_of(setting, item)], memory)
    placement = tuple(_placement(setting, used))
    return ServeDecision(
        mode=_MODES.get(functions, "mixed"),
        roles=roles,
        placement=placement,
        routing=tuple(_routes(setting, outcome, used)),
        kv_transfer_bytes_per_s=moved,
        frontier=tuple(frontier),
        attention_ffn=apart,
        drafting=_drafting(setting, used),
        availability=_spare_room(setting, outcome, used, roles, placement),
        router_policy=_router_policy(setting, used),
        queueing=None if used[0].candidate.queueing == "fcfs" else used[0].candidate.queueing,
        elastic=True if used[0].candidate.elastic else None,
        cache=memory,
    )


def _router_policy(setting: ServeSetting, used: Sequence[RoleInUse]) -> Literal["round-robin", "power-of-two"] | None:
    """How routers choose among equal instances, where there are several; simulated placements were not chosen so."""
    if setting.options.judged_by == "simulation" or all(item.count == 1 for item in used):
        return None
    return "round-robin" if used[0].candidate.routing is Routing.ROUND_ROBIN else "power-of-two"


def _spare_room(
    setting: ServeSetting,
    outcome: Outcome,
    used: Sequence[RoleInUse],
    roles: Sequence[Role],
    placement: Sequence[Block],
) -> SpareRoom | None:
    """What the failures leave that the problem reckons with."""
    availability = setting.resolved.problem.availability
    if availability is None:
        return None
    by_name, rows = {role.name: role for role in roles}, list(outcome.formulated.candidates)
    sides = {item.role: by_name[item.ffn_role] for item in used if item.candidate.ffn is not None}
    pools = {pool.name: pool for pool in setting.resolved.pools}
    shapes = tuple(outcome.formulated.problem.shapes[rows.index(item.candidate)] for item in used)
    return spare_room(
        availability,
        losses_of(roles, sides, placement, pools, availability.per),
        replace(outcome.formulated.problem, shapes=shapes),
        {item.role: row for row, item in enumerate(used)},
        [item.count for item in used],
        [item.load_per_s for item in used],
    )


def _drafting(setting: ServeSetting, used: Sequence[RoleInUse]) -> Drafting | None:
    """Who drafts, and what a step of each role that decodes with drafts yields."""
    drafted = [item for item in used if item.candidate.draft_tokens]
    if not drafted:
        return None
    costs_of_pool = (setting.costs_of_pool[item.candidate.model, item.candidate.pool] for item in drafted)
    drafters = [pool_costs.costs.drafter for pool_costs in costs_of_pool]
    first = next(drafter for drafter in drafters if drafter is not None)
    return Drafting(
        drafter=", ".join(dict.fromkeys(drafter.name for drafter in drafters if drafter is not None)),
        acceptance=first.acceptance,
        tokens_per_step={
            item.role: float(first.tokens_per_step(item.candidate.draft_tokens))
            for item in drafted
            if item.candidate.function != "prefill"
        },
    )


def _apart(setting: ServeSetting, outcome: Outcome) -> AttentionFfn | None:
    """Whether the first workload decodes better with attention and feed-forward apart."""
    if "attention-ffn" not in setting.options.modes:
        return None
    copies = setting.options.searched_copies
    return advice(outcome.formulated.candidates, setting.targets[0], setting.costs_of_pool, copies)


def roles_of(setting: ServeSetting, item: RoleInUse) -> tuple[Role, ...]:
    """The role of an instance type in use, or the two of one with the sides apart, attention first."""
    role, ffn = _role(setting, item), item.candidate.ffn
    if ffn is None:
        return (role,)
    memory = Memory(
        weights_bytes=ffn.weights_bytes,
        activations_bytes=ffn.activations_bytes,
        workspace_bytes=item.candidate.workspace_bytes,
        capacity_bytes=ffn.pool_costs.memory_bytes,
    )
    tokens = item.candidate.max_batch * item.candidate.shape.dp / ffn.micro_batches
    limits: dict[str, float | int | str] = {
        "micro_batches": ffn.micro_batches,
        "micro_batch_tokens": math.ceil(tokens),
        **ffn.shape.limits,
    }
    own = {
        "name": item.ffn_role,
        "function": "ffn",
        "parallelism": _parallelism(ffn.shape),
        "pool": ffn.pool_costs.pool.name,
    }
    return (
        role.model_copy(update={"limits": {**role.limits, "micro_batches": ffn.micro_batches}}),
        role.model_copy(update={**own, "limits": limits, "memory": memory}),
    )


def _parallelism(shape: InstanceShape) -> Parallelism:
    return Parallelism(tp=shape.tp, pp=shape.pp, dp=shape.dp, moe_tp=shape.moe_tp, ep=shape.ep)


def _role(setting: ServeSetting, item: RoleInUse) -> Role:
    """The role of an instance type in use, with its limits and the memory of its devices."""
    candidate, engine = item.candidate, setting.resolved.problem.engine
    pool_costs = setting.costs_of_pool[candidate.model, candidate.pool]
    limits: dict[str, float | int | str] = {"max_context_tokens": role_context(candidate, pool_costs).tokens}
    if candidate.max_batch:
        limits["max_batch"] = candidate.max_batch
    if candidate.chunk_tokens:
        limits["chunk_tokens"] = candidate.chunk_tokens
    if candidate.draft_tokens:
        limits["draft_tokens"] = candidate.draft_tokens
    limits |= candidate.shape.limits
    if engine.async_scheduling is not None:
        limits["async_scheduling"] = "on" if engine.async_scheduling else "off"
    if not candidate.decodes and any(_hit_by(target, candidate) for target in setting.targets):
        limits["prefix_caching"] = "on"
        if engine.host_cache_bytes_per_gpu is not None:
            limits["host_cache_bytes"] = int(engine.host_cache_bytes_per_gpu)
    return Role(
        name=item.role,
        function=candidate.function,
        model=candidate.model,
        engine=Engine(name=engine.name, version=engine.version),
        pool=setting.resolved.pools[candidate.pool].name,
        replicas=item.count,
        parallelism=_parallelism(candidate.shape),
        limits=limits,
        memory=Memory(
            weights_bytes=candidate.weights_bytes,
            kv_cache_bytes=item.kv_bytes(),
            activations_bytes=candidate.activations_bytes,
            workspace_bytes=candidate.workspace_bytes,
            capacity_bytes=pool_costs.memory_bytes,
        ),
    )


def _hit_by(target: Target, candidate: Candidate) -> bool:
    return target.prefix_hits > 0.0 and candidate.capacities[target.index] is not None


def _placement(setting: ServeSetting, used: Sequence[RoleInUse]) -> list[Block]:
    availability = setting.resolved.problem.availability
    apart = availability is not None and availability.per != "role"
    return [
        block
        for index, pool in enumerate(setting.resolved.pools)
        if (wanted := [(parts, item.count) for item in used if (parts := _parts(item, index))])
        for block in placement_blocks(pool, wanted, apart=apart)
    ]


def _parts(item: RoleInUse, pool: int) -> list[tuple[str, InstanceShape]]:
    """What of an instance stands together in a pool, by role."""
    candidate, ffn = item.candidate, item.candidate.ffn
    parts = [(item.role, candidate.shape)] if candidate.pool == pool else []
    if ffn is not None and ffn.pool_costs.index == pool:
        parts.append((item.ffn_role, ffn.shape))
    return parts


def _routes(setting: ServeSetting, outcome: Outcome, used: Sequence[RoleInUse]) -> list[Route]:
    """Shares of each workload: from the front door to first roles, and on from prefill to decode by pool flows."""
    solution = outcome.solution
    routes: list[Route] = []
    for target in setting.targets:
        w, served_per_s = target.index, solution.served_per_s[target.index]
        if served_per_s <= 0:
            continue
        for item in used:
            share = item.load_per_s[w] / served_per_s
            if not item.candidate.decodes and share > LEAST_SHARE:
                routes.append(Route(workload=target.name, to=item.role, share=min(share, 1.0)))
        for flow in solution.flows:
            if flow.demand == w:
                routes += _spread(target, used, flow, flow.rate_per_s / served_per_s)
        for item in used:
            into = sum(route.share for route in routes if (route.workload, route.to) == (target.name, item.role))
            if item.candidate.ffn is not None and into > 0.0:
                routes.append(Route(workload=target.name, source=item.role, to=item.ffn_role, share=min(into, 1.0)))
    return routes


def _spread(target: Target, used: Sequence[RoleInUse], flow: Flow, share: float) -> list[Route]:
    """A flow between pools over the roles of its channel there, each in proportion to its load."""
    w = target.index
    channel_roles = [i for i in used if i.candidate.channel is not None and i.candidate.channel.index == flow.channel]
    channel_roles = [i for i in channel_roles if i.load_per_s[w] > 0.0]
    senders = [i for i in channel_roles if i.candidate.function == "prefill" and i.candidate.pool == flow.source]
    receivers = [i for i in channel_roles if i.candidate.decodes and i.candidate.pool == flow.target]
    sent, received = sum(i.load_per_s[w] for i in senders), sum(i.load_per_s[w] for i in receivers)
    return [
        Route(workload=target.name, source=a.role, to=b.role, share=min(part, 1.0))
        for a in senders
        for b in receivers
        if (part := share * a.load_per_s[w] / sent * b.load_per_s[w] / received) > LEAST_SHARE
    ]


def _predictions(setting: ServeSetting, outcome: Outcome) -> Iterator[Prediction]:
    """Figures by workload, then of the whole plan; times of the slowest path of the workload."""
    used = outcome.roles
    requests = tokens = 0.0
    for target in setting.targets:
        scale = 1.0
        if target.clients is not None and not outcome.formulated.problem.maximising:
            scale = resting_scale(used, target, setting.costs_of_pool)
        rate = outcome.solution.served_per_s[target.index] * scale
        requests += rate
        tokens += rate * target.osl
        yield Prediction(metric="requests_per_s", of=target.name, value=rate)
        yield Prediction(metric="output_tokens_per_s", of=target.name, value=rate * target.osl)
        yield from encoding_predictions(setting, outcome, target)
        yield from times(used, target, setting.costs_of_pool, scale)
    yield from whole_predictions(setting, outcome.solution, requests, tokens)


def whole_predictions(
    setting: ServeSetting, solution: MixSolution, requests_per_s: float, tokens_per_s: float
) -> Iterator[Prediction]:
    """Figures of the whole plan: requests and output tokens by GPU, GPUs, and what both cost.

    GPUs are those at hand, or those in use where the plan serves stated loads.
    """
    problem = setting.resolved.problem
    gpus = solution.devices if problem.serves_loads else gpus_at_hand(problem, setting.resolved.pools)
    yield Prediction(metric="goodput_per_gpu", value=requests_per_s / gpus)
    yield Prediction(metric="output_tokens_per_s_per_gpu", value=tokens_per_s / gpus)
    yield Prediction(metric="gpus", value=float(solution.devices))
    if all(pool.usd_per_gpu_hour is not None for pool in setting.resolved.pools):
        cached = setting.resolved.cached
        usd_per_hour = solution.price_per_hour + (0.0 if cached is None else cached.usd_per_hour)
        yield Prediction(metric="usd_per_hour", value=usd_per_hour)
        if cached is not None:
            yield Prediction(metric="memory_usd_per_hour", value=cached.usd_per_hour)
            yield Prediction(metric="prefix_hit_share", value=cached.hit_share)
        if tokens_per_s > 0:
            usd_per_mtok = usd_per_hour / (tokens_per_s * 3600.0) * 1e6
            yield Prediction(metric="usd_per_mtok", value=usd_per_mtok)


def _evidence(setting: ServeSetting, used: Sequence[RoleInUse]) -> Evidence:
    """Basis of the step times of the roles in use, weighted by their devices."""
    spots = [
        setting.costs_of_pool[item.candidate.model, pool] for item in used for pool, _ in item.candidate.devices_of_pool
    ]
    pricers = [spot.costs.pricer for spot in spots]
    notes = {note for pricer in pricers if isinstance(pricer, Profiled) for note in pricer.notes}
    if not any(isinstance(pricer, Profiled) for pricer in pricers):
        notes.add("no kernel tables were given: every time is analytical, from data-sheet rates and named efficiencies")
    forms = setting.calibration.forms
    types = [item.candidate for item in used if forms]
    if far := dict.fromkeys(text_of(candidate) for candidate in types if not is_measured(candidate, forms)):
        notes.add(f"{UNMEASURED}: no run has {', '.join(far)}")
    return Evidence(
        basis=weighted_shares((item.count * item.candidate.devices, item.candidate.basis) for item in used),
        sources=tuple(dict.fromkeys(pricer.name for pricer in pricers)),
        notes=tuple(sorted(notes)),
        steps={name: step for item in used for name, step in step_evidence(setting, item).items()},
        spread_gpus=setting.spread_gpus,
        beliefs=tuple(time_beliefs(setting, used)),
        margins=tuple(limit_margins(setting, used)),
    )

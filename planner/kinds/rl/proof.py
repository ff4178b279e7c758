"""Verifies an RL plan: objective priced again and bound derived again, without the search.

What the problem states is read from the problem in the plan, lengths are drawn again by its seed; the curves in the
proof are taken on trust: they rest on the costs.
"""

from collections.abc import Callable, Iterator, Mapping
from math import isclose, isinf
from typing import Any

from pydantic import JsonValue

from planner.errors import PlannerError
from planner.kinds.rl.agents.stated import agentic_problem, rollouts_of
from planner.kinds.rl.decision import RlDecision
from planner.kinds.rl.drawn import digest_of, draw_periods, trained_tokens
from planner.kinds.rl.fused_training import relaxed, replayed
from planner.kinds.rl.horizon import METRICS, horizon_problem, plan_named, steps_of
from planner.kinds.rl.names import replica_name
from planner.kinds.rl.options import RlOptions
from planner.kinds.rl.planned import agentic_plan_of, plan_of
from planner.kinds.rl.simulated_parts import (
    fused_scoring,
    in_flight_updates,
    late_rollout,
    partial_rollouts,
    served_scoring,
)
from planner.kinds.rl.stated import stated_problem
from planner.plan.findings import Finding
from planner.plan.schema import Envelope
from planner.problem.recorded import INPUTS
from planner.problem.resolve import resolve_pool
from planner.problem.schema import Problem
from planner.rl.agentic import evaluate_agentic
from planner.rl.curves import Curves
from planner.rl.evaluate import evaluate
from planner.rl.plan import RlEvaluation
from planner.rl.problem import RlProblem
from planner.rl.record import curves_record, read_curves_record
from planner.rl.search.agentic_search import derive_agentic_bound
from planner.rl.search.horizon import HorizonPlan, OpenStates, evaluate_horizon, plan_horizon
from planner.rl.search.search import PlanGroup, RlSolution
from planner.rl.search.verify import derive_bound
from planner.rl.trajectories import SampleBatch
from planner.schema.base import Spec

METHOD, HORIZON = "best_first", "horizon"
HEURISTIC = "heuristic_rollouts"
"""Mixes of replicas whose assignment of trajectories is a heuristic's, so that a better one may be."""
REL_TOL = 1e-9
MOST_OPEN = 400  # states of a period that a certificate lists
HORIZON_EVIDENCE = ("changes", "running", "periods")
_HINT = "solve again: the proof is not one for this plan"


def proof_record(
    curves: Curves, batches: tuple[SampleBatch, ...], solution: RlSolution[Any], in_metric: Callable[[float], float]
) -> dict[str, JsonValue]:
    """What `proof_findings` derives the bound from; `in_metric` turns what was minimised into the certificate's."""
    return {
        "method": METHOD,
        "priced_exactly": solution.seen,
        "excluded_by_bound": solution.pruned,
        "groups": [_group_record(group, in_metric) for group in solution.groups],
        "lengths": digest_of(batches),
        "curves": curves_record(curves),
        **({HEURISTIC: solution.unproven} if solution.unproven else {}),
    }


def _group_record(group: PlanGroup, in_metric: Callable[[float], float]) -> dict[str, JsonValue]:
    record: dict[str, JsonValue] = {
        "first_replicas": replica_name(group.first),
        "end": group.end,
        "configurations": group.configurations,
        "plans": group.plans,
        "priced": group.priced,
    }
    return record if isinf(group.least) else {**record, "least": in_metric(group.least)}


def horizon_record(
    curves: Curves, problem: Problem, options: RlOptions, searched: Mapping[str, JsonValue]
) -> dict[str, JsonValue]:
    """What the bound over a horizon is derived from: every plan priced in every period, all sequences weighed."""
    drawn = tuple(batch for period in draw_periods(problem, options) for batch in period)
    return {"method": HORIZON, "lengths": digest_of(drawn), "curves": curves_record(curves), **searched}


def horizon_evidence(optimum: HorizonPlan) -> dict[str, JsonValue]:
    """What changes cost, what ran before, and the states of each period that the best sequence could take."""
    record: dict[str, JsonValue] = {
        "changes": list(optimum.change_A),
        **({"running": list(optimum.initial_A)} if optimum.initial_A is not None else {}),
    }
    if all(len(period.cost_K) <= MOST_OPEN for period in optimum.open_states):
        record["periods"] = [_period_record(period) for period in optimum.open_states]
    return record


def _period_record(period: OpenStates) -> dict[str, JsonValue]:
    rows = zip(period.attribute_KA.tolist(), period.cost_K.tolist(), strict=True)
    record: dict[str, JsonValue] = {"open": [[*attributes, cost] for attributes, cost in rows], "left": period.left}
    return record if isinf(period.least_left) else {**record, "least_left": period.least_left}


def proof_findings(envelope: Envelope, decision: RlDecision, problem: Problem, options: RlOptions) -> Iterator[Finding]:
    """One finding a rule: lengths, objective, proof; none for plans that prove nothing."""
    certificate = envelope.certificate
    if certificate.proof.get("method") not in (METHOD, HORIZON) or certificate.status == "stated":
        return
    try:
        curves = read_curves_record(_part(certificate.proof, "curves"))
        periods = draw_periods(problem, options)
        pools = [resolve_pool(spec, index, INPUTS) for index, spec in enumerate(problem.cluster.pools)]
    except PlannerError as error:
        yield Finding("certificate.proof", False, error.what, "certificate.proof", _HINT)
        return
    same = certificate.proof.get("lengths") == digest_of(tuple(batch for period in periods for batch in period))
    yield Finding(
        "certificate.lengths",
        same,
        "the seed draws the lengths of the proof" if same else "the seed draws other lengths than the proof has",
        "certificate.proof.lengths",
        _HINT,
    )
    if not same:
        return
    searched = stated_problem(problem, options, pools, curves, periods[0])
    try:
        if options.horizon is not None:
            yield from _horizon(envelope, decision, searched, problem, options)
            return
        yield _objective(envelope, decision, searched, curves, options)
        yield _bound(envelope, relaxed(searched, curves), options)
    except PlannerError as error:
        yield Finding("certificate.proof", False, error.what, "certificate.proof.curves", _HINT)


def proven_problem(envelope: Envelope, problem: Problem, options: RlOptions) -> tuple[RlProblem, Curves]:
    """The problem of the first period on the curves of the proof; raises PlannerError where that holds none."""
    curves = read_curves_record(_part(envelope.certificate.proof, "curves"))
    pools = [resolve_pool(spec, index, INPUTS) for index, spec in enumerate(problem.cluster.pools)]
    return stated_problem(problem, options, pools, curves, draw_periods(problem, options)[0]), curves


def _part(proof: dict[str, JsonValue], key: str) -> dict[str, JsonValue]:
    part = proof.get(key)
    if not isinstance(part, dict):
        raise PlannerError(f"the proof has no `{key}`", hint=_HINT)
    return part


def _objective(
    envelope: Envelope, decision: RlDecision, searched: RlProblem, curves: Curves, options: RlOptions
) -> Finding:
    """The plan of the decision, priced on the curves, is worth what the certificate says; what is fused is replayed."""
    rule, where = "certificate.objective", "certificate.objective"
    stated = envelope.certificate.objective
    plan = plan_of(decision, searched)
    if plan is None:
        return Finding(rule, False, "the proof has no curve for the replicas of the plan", where, _HINT)
    if decision.fused_training is not None:
        searched, trained = replayed(searched, curves, plan, decision.fused_training)
        if not _same(decision.fused_training, trained):
            return Finding("rl.fused_training", False, "replayed, other times come out", "fused_training", _HINT)
    agents = agentic_plan_of(decision, searched)
    if agents is not None and options.agents is not None:
        evaluation = evaluate_agentic(agentic_problem(searched, options.agents), agents)
    else:
        evaluation = evaluate(searched, plan)
    if evaluation.broken:
        return Finding(rule, False, evaluation.broken[0], where, _HINT)
    simulated = {
        "agents": (decision.agents, rollouts_of(agents, evaluation) if agents is not None else None),
        "fused_scoring": (decision.fused_scoring, fused_scoring(searched, plan)),
        "late_rollout": (decision.late_rollout, late_rollout(searched, plan)),
        "served_scoring": (decision.served_scoring, served_scoring(searched, plan)),
        "partial_rollouts": (decision.partial_rollouts, partial_rollouts(searched, plan)),
        "in_flight_updates": (decision.in_flight_updates, in_flight_updates(searched, plan)),
    }
    for name, (part, again) in simulated.items():
        if not _same(part, again):
            return Finding(f"rl.{name}", False, "simulated again, something else comes out", name, _HINT)
    worth = _metrics(evaluation, trained_tokens(searched.batches, options)).get(stated.metric)
    return Finding(
        rule,
        worth is not None and stated.value is not None and abs(worth - stated.value) <= REL_TOL * abs(worth),
        f"priced again {worth!r} {stated.metric}, stated {stated.value!r}",
        where,
        _HINT,
    )


def _horizon(
    envelope: Envelope, decision: RlDecision, searched: RlProblem, problem: Problem, options: RlOptions
) -> Iterator[Finding]:
    """The plans of all periods are worth what the certificate says, and no sequence is worth more."""
    certificate, where = envelope.certificate, "certificate.objective"
    named = [plan_named(step, searched) for step in decision.horizon]
    plans = tuple(plan for plan in named if plan is not None)
    running = plan_named(decision.running, searched) if decision.running is not None else None
    known = len(plans) == len(options.horizon.periods if options.horizon is not None else ()) == len(named)
    if not known or (decision.running is not None and running is None) or plan_of(decision, searched) != plans[0]:
        yield Finding(
            "certificate.objective",
            False,
            "periods, roles or what ran before are no plans of the problem",
            "horizon",
            _HINT,
        )
        return
    horizon = horizon_problem(problem, options, searched, running)
    evaluation = evaluate_horizon(horizon, plans)
    stated, value = certificate.objective, certificate.objective.value
    steps = steps_of(options, plans, evaluation)
    right = value is not None and isclose(evaluation.total, value, rel_tol=REL_TOL) and not evaluation.broken
    right = right and stated.metric == METRICS[searched.objective]
    right = right and all(_same(step, other) for step, other in zip(decision.horizon, steps, strict=True))
    yield Finding(
        "certificate.objective",
        right,
        evaluation.broken[0]
        if evaluation.broken
        else f"priced again {evaluation.total!r} {stated.metric}, stated {value!r}",
        where,
        _HINT,
    )
    least = plan_horizon(horizon).bound
    bound = certificate.bound
    proven = bound is not None and bound <= least * (1 + REL_TOL)
    yield Finding(
        "certificate.proof",
        proven,
        f"all plans priced in all periods again: no sequence is below {least:.9g}, the bound is {bound}",
        "certificate.proof",
        "solve again: the stated bound does not hold",
    )


def _same(stated: Spec | None, simulated: Spec | None) -> bool:
    """Whether what a plan states of a fusion is what comes out when it is simulated again, but for rounding."""
    if stated is None or simulated is None:
        return stated is simulated
    again = simulated.model_dump()
    return all(
        isclose(value, again[key], rel_tol=REL_TOL) if isinstance(value, float) else value == again[key]
        for key, value in stated.model_dump().items()
    )


def _metrics(evaluation: RlEvaluation, tokens: float) -> dict[str, float]:
    known = {"iteration_time_s": evaluation.iteration_s}
    if evaluation.cost_usd > 0:
        known |= {"usd_per_iteration": evaluation.cost_usd, "tokens_per_usd": tokens / evaluation.cost_usd}
    return known


def _bound(envelope: Envelope, searched: RlProblem, options: RlOptions) -> Finding:
    """No configuration of the space has a plan below the bound."""
    certificate, rule, where = envelope.certificate, "certificate.proof", "certificate.proof"
    bound = certificate.bound
    if bound is None or bound <= 0:
        return Finding(rule, bound is None, f"a bound of {bound}", where, _HINT)
    turned = certificate.objective.metric == "tokens_per_usd"
    tokens = trained_tokens(searched.batches, options)
    least = tokens / bound if turned else bound
    if options.agents is not None:
        derived = derive_agentic_bound(agentic_problem(searched, options.agents), least, REL_TOL)
    else:
        derived = derive_bound(searched, least, REL_TOL)
    least = tokens / derived.least if turned else derived.least
    what = (
        f"derived again: no plan beats {bound:.9g} ({derived.closed} configurations closed by a formula, "
        f"{derived.simulated} simulated)"
    )
    right = abs(least - bound) <= REL_TOL * abs(bound)
    if not right:
        what = f"a plan of the space reaches {least:.9g}, beyond the bound {bound:.9g}"
    return Finding(rule, right, what, where, "solve again: the stated bound does not hold")

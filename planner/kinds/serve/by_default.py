"""How sure limits are kept where the problem does not say: a preference, given up where it is not worth its price.

Predictions err, so that a plan which just keeps its limits breaks them about as often as not. On measured deployments
picks that keep theirs with DEFAULT_CONFIDENCE capture more (`benchmarks/serving_picks.py`, docs/accuracy.md). Where no
plan keeps the limits with so much the next of CONFIDENCES is tried, and last the limits as they stand: what is called
infeasible is the problem that the user stated. They are taken as they stand, too, where more is expected of that: of a
rate, times the share of requests whose limits hold; of a cost, over that share. Limits of which each holds with a half
hold together with less (`planner.costs.rates.spread.all_hold`).
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from planner.costs.rates.calibration import Calibration, load_calibration
from planner.costs.rates.spread import all_hold, group_of_runs
from planner.costs.serving.chances import errs_as, share_within_limits
from planner.errors import Infeasible
from planner.kinds.serve.choice import chosen
from planner.kinds.serve.options import ServeDecision
from planner.kinds.serve.steady.search import prepare
from planner.plan.schema import AtConfidence, Envelope
from planner.problem.confidence import BY_ESTIMATE, leaves_open
from planner.problem.resolve import Resolved
from planner.progress import Limits

DEFAULT_CONFIDENCE = 0.7
CONFIDENCES = (DEFAULT_CONFIDENCE, 0.6)
Solve = Callable[[Resolved, Limits], Envelope]


def solved_by_default(resolved: Resolved, limits: Limits, solve: Solve) -> Envelope:
    """The plan at the highest of CONFIDENCES that any plan has, or by the estimate; its certificate says which.

    Raises what `solve` raises of the limits as they stand.
    """
    if not takes_default(resolved):
        return solve(resolved, limits)
    searched: list[AtConfidence] = []
    started_s = time.monotonic()
    for confidence in CONFIDENCES:
        limits.tell(f"keeping limits with {confidence:.0%}")
        plan = _plan_if_any(replace(resolved, confidence=confidence), limits.left(started_s), solve)
        if plan is not None:
            return _more_expected(resolved, limits, started_s, solve, plan, searched)
        searched.append(AtConfidence(confidence=confidence))
    return _chosen_from(solve(replace(resolved, confidence=BY_ESTIMATE), limits.left(started_s)), searched)


def _more_expected(
    resolved: Resolved,
    limits: Limits,
    started_s: float,
    solve: Solve,
    sure: Envelope,
    searched: Sequence[AtConfidence],
) -> Envelope:
    """The plan that is `sure` of its limits with a confidence, or that by the estimate where more is expected of it.

    The latter is made where formulas promise so much, and time is left; others `searched` before have no plan.
    """
    if limits.spent(started_s):
        return _chosen_from(sure, searched)
    as_it_stands, own = replace(resolved, confidence=BY_ESTIMATE), _at_own(sure)
    promised = _by_formulas(as_it_stands, limits.left(started_s))
    if promised is None:
        return _chosen_from(sure, searched)
    at_estimate = AtConfidence(confidence=BY_ESTIMATE, objective=promised)
    costs = load_calibration(resolved.problem.costs.calibration)
    expected = _expected(sure, _share(sure, costs))
    if _expected(sure, _share_at_estimate(resolved), promised) > expected and not limits.spent(started_s):
        plan = _plan_if_any(as_it_stands, limits.left(started_s), solve)
        at_estimate = AtConfidence(confidence=BY_ESTIMATE) if plan is None else _at_own(plan)
        if plan is not None and _expected(plan, _share(plan, costs)) > expected:
            return _chosen_from(plan, (*searched, own))
    return _chosen_from(sure, (*searched, at_estimate))


def takes_default(resolved: Resolved) -> bool:
    """Whether limits on times are left without a confidence, and it is known how far predictions of these err."""
    problem = resolved.problem
    slos = [workload.spec.slo for workload in resolved.workloads]
    limited = any(map(leaves_open, slos))
    if resolved.confidence is not None or problem.objective.expected is not None or not limited:
        return False
    by_layout = problem.options.get("judged_by") == "simulation" and has_own_runs(resolved)
    return not by_layout and {"ttft", "tpot"} <= set(load_calibration(problem.costs.calibration).spreads)


def has_own_runs(resolved: Resolved) -> bool:
    """Whether the calibration has runs of one's own of a model of the problem on a pool of it."""
    problem = resolved.problem
    calibration = load_calibration(problem.costs.calibration)
    groups = {
        group_of_runs(resolved.models[workload.model], pool.node.accelerator.name, problem.engine.name)
        for workload in resolved.workloads
        for pool in resolved.pools
    }
    return any(calibration.runs[group].seen for group in groups & calibration.runs.keys())


def _plan_if_any(resolved: Resolved, limits: Limits, solve: Solve) -> Envelope | None:
    try:
        return solve(resolved, replace(limits, explain=False))
    except Infeasible:
        return None


def _by_formulas(resolved: Resolved, limits: Limits) -> float | None:
    """The best objective by formulas; not told beside memory for prefixes, which is another search."""
    if resolved.problem.cache is not None:
        return None
    outcome = chosen(prepare(resolved), limits).outcome
    return outcome.objective if outcome.has_mix else None


def _expected(plan: Envelope, share: float, objective: float | None = None) -> float:
    """What is expected of an objective, the plan's unless another is given, where limits of this share hold.

    In the sense of the plan's: more is better.
    """
    stated = plan.certificate.objective
    value = stated.value if objective is None else objective
    assert value is not None
    return share * value if stated.sense == "maximize" else -value / share


def _share(plan: Envelope, costs: Calibration) -> float:
    """The share of a plan's requests whose limits hold, in expectation."""
    return share_within_limits(plan, ServeDecision.model_validate(plan.decision), costs)


def _share_at_estimate(resolved: Resolved) -> float:
    """That of a plan by formulas, which uses every limit up: each holds with a half. Of the workload that is surest."""
    times = [{errs_as(name) for name, _, _ in workload.spec.slo.limits()} for workload in resolved.workloads]
    return max(all_hold((BY_ESTIMATE,) * len(of)) for of in times)


def _at_own(plan: Envelope) -> AtConfidence:
    """What a plan reaches at its confidence."""
    known = plan.certificate
    assert known.confidence is not None
    return AtConfidence(confidence=known.confidence, objective=known.objective.value, simulated=known.estimate is None)


def _chosen_from(plan: Envelope, searched: Sequence[AtConfidence]) -> Envelope:
    told = {"confidences": tuple(searched)}
    return plan.model_copy(update={"certificate": plan.certificate.model_copy(update=told)})

"""States an RL plan again from its problem and its own decision: curves, times, memory and prices."""

from collections.abc import Iterator
from dataclasses import replace

from planner.errors import PlannerError
from planner.kinds.rl.agents.stated import agentic_problem
from planner.kinds.rl.decision import RlDecision
from planner.kinds.rl.drawn import digest_of
from planner.kinds.rl.formulate import FormulatedRl, formulate
from planner.kinds.rl.fused_training import replayed
from planner.kinds.rl.horizon import METRICS, horizon_problem, plan_named
from planner.kinds.rl.options import RlOptions
from planner.kinds.rl.plan.certificate import (
    PRUNED,
    TOLERANCE,
    axes_of,
    claim,
    horizon_axes,
    horizon_claim,
    objective,
)
from planner.kinds.rl.plan.solved import Solved
from planner.kinds.rl.planned import agentic_plan_of, plan_of
from planner.kinds.rl.proof import HEURISTIC, HORIZON_EVIDENCE, METHOD, horizon_record, proof_findings
from planner.kinds.rl.setting import RlSetting, read_setting
from planner.kinds.rl.simulated.scaled import scaled
from planner.kinds.rl.solve import UNKNOWN_RUNNING, plan_of_iteration, plan_over_time
from planner.plan.findings import Finding
from planner.plan.restated import LeftOut, Restated, unproven
from planner.plan.schema import Certificate, Envelope, Objective
from planner.problem.recorded import AtHand, recorded_options, recorded_problem, resolved_again
from planner.rl.agentic import evaluate_agentic
from planner.rl.evaluate import evaluate
from planner.rl.plan import RlPlan
from planner.rl.record import curves_record
from planner.rl.search.horizon import evaluate_horizon

COUNTS = LeftOut(
    "certificate.candidates", "counts of the search and floors of its groups, what the next best plans evaluated lose"
)
SEQUENCES = LeftOut("certificate.candidates", "sequences weighed, and what the next best evaluated lose")
SEQUENCES_FROM_NOW = replace(SEQUENCES, hint="", proven=False)  # the plan that runs now is no input at hand
_NONE = "no plan of the problem has these roles and this mode"


def restate(envelope: Envelope, decision: RlDecision, hand: AtHand) -> Restated:
    """The plan of this decision under the costs at hand.

    Raises NotAtHand where an input is missing, PlannerError for a decision that the problem cannot have.
    """
    setting = read_setting(resolved_again(envelope.inputs, RlOptions, hand, envelope.digests.profiles))
    formulated, left = formulate(setting), (COUNTS,) if envelope.certificate.proof else ()
    if decision.rollout_scales:
        formulated = scaled(formulated, decision.rollout_scales)
    plan = plan_of(decision, formulated.problem)
    if plan is None:
        raise PlannerError(_NONE, where="decision.roles")
    if setting.options.agents is not None:
        return Restated(_of_agents(envelope, decision, setting, formulated), left)
    if setting.options.horizon is not None:
        sequences = SEQUENCES if decision.running is None else SEQUENCES_FROM_NOW
        return Restated(_over_time(envelope, decision, setting, formulated), (sequences,) if left else ())
    problem, fused = formulated.problem, decision.fused_training
    if fused is not None:
        problem, fused = replayed(problem, formulated.curves, plan, fused)
    evaluation = evaluate(problem, plan)
    if evaluation.broken:
        raise PlannerError(evaluation.broken[0], where="decision")
    solved = Solved(setting, replace(formulated, problem=problem), plan, evaluation, fused)
    return Restated(plan_of_iteration(solved, _certificate(envelope.certificate, solved)), left)


def _of_agents(envelope: Envelope, decision: RlDecision, setting: RlSetting, formulated: FormulatedRl) -> Envelope:
    agents = agentic_plan_of(decision, formulated.problem)
    if agents is None or setting.options.agents is None:
        raise PlannerError(_NONE, where="decision.roles")
    evaluation = evaluate_agentic(agentic_problem(formulated.problem, setting.options.agents), agents)
    if evaluation.broken:
        raise PlannerError(evaluation.broken[0], where="decision")
    solved = Solved(setting, formulated, agents.whole, evaluation, agents=agents)
    return plan_of_iteration(solved, _certificate(envelope.certificate, solved))


def prove(envelope: Envelope, decision: RlDecision, hand: AtHand) -> Iterator[Finding]:
    """Objective and bound derived again on the curves of the proof, without the search."""
    problem = recorded_problem(envelope.inputs)
    options = recorded_options(problem, RlOptions)
    if problem is not None and options is not None:
        yield from proof_findings(envelope, decision, problem, options)


def _certificate(stated: Certificate, solved: Solved) -> Certificate:
    """What follows from the decision, the stated bound and the stated counts."""
    metric, value = objective(solved)
    wanted = Objective(metric=metric, sense="maximize" if metric == "tokens_per_usd" else "minimize", value=value)
    if not stated.proof:
        return unproven(wanted)
    formulated, counts = solved.formulated, stated.proof
    proof = {
        "method": METHOD,
        "priced_exactly": counts.get("priced_exactly"),
        "excluded_by_bound": counts.get("excluded_by_bound"),
        "groups": counts.get("groups"),
        "lengths": digest_of(formulated.problem.batches),
        "curves": curves_record(formulated.curves),
        **{name: counts[name] for name in (HEURISTIC,) if name in counts},
    }
    closed = _closed(value, stated.bound)
    return stated.model_copy(
        update={
            "objective": wanted,
            "tolerance": TOLERANCE,
            "claim": claim(metric, closed=closed),
            "status": "optimal" if closed else "feasible",
            "axes": axes_of(formulated, solved.setting),
            "pruned": {PRUNED: sum(stated.pruned.values())},
            "proof": proof,
        }
    )


def _closed(value: float, bound: float | None) -> bool:
    return bound is not None and abs(value - bound) / max(abs(value), 1e-9) <= TOLERANCE


def _over_time(envelope: Envelope, decision: RlDecision, setting: RlSetting, formulated: FormulatedRl) -> Envelope:
    """The plan of every period; what ran before is as the decision says."""
    problem, options = formulated.problem, setting.options
    plans = tuple(_named(plan_named(step, problem), f"decision.horizon.{i}") for i, step in enumerate(decision.horizon))
    before = None if decision.running is None else _named(plan_named(decision.running, problem), "decision.running")
    horizon = horizon_problem(setting.resolved.problem, options, problem, before)
    if len(plans) != len(horizon.periods):
        raise PlannerError(f"{len(plans)} plans for {len(horizon.periods)} periods", where="decision.horizon")
    evaluation = evaluate_horizon(horizon, plans)
    if evaluation.broken:
        raise PlannerError(evaluation.broken[0], where="decision.horizon")
    solved = Solved(setting, formulated, plans[0], evaluation.evaluations[0])
    stated, metric = envelope.certificate, METRICS[problem.objective]
    proven = unproven(Objective(metric=metric, sense="minimize", value=evaluation.total))
    if stated.proof:
        searched = {name: stated.proof[name] for name in HORIZON_EVIDENCE if name in stated.proof}
        update = {
            "objective": proven.objective,
            "tolerance": TOLERANCE,
            "claim": horizon_claim(metric),
            "status": "optimal" if _closed(evaluation.total, stated.bound) else "feasible",
            "axes": horizon_axes(formulated, setting, len(plans)),
            "pruned": {},
            "proof": horizon_record(formulated.curves, setting.resolved.problem, options, searched),
        }
        proven = stated.model_copy(update=update)
    unknown = decision.running is None and UNKNOWN_RUNNING in envelope.assumptions
    return plan_over_time(solved, proven, plans, evaluation, before, unknown=unknown)


def _named(plan: RlPlan | None, where: str) -> RlPlan:
    if plan is None:
        raise PlannerError(_NONE, where=where)
    return plan

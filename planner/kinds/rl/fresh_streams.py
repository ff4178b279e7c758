"""Judges an RL plan by simulation: its rollouts in the engines' simulator, and training that runs ahead beside them."""

from dataclasses import replace
from typing import Any

import numpy as np

from planner.arrays import Floats
from planner.documents.units import format_si
from planner.errors import PlannerError
from planner.kinds.rl.decision import RlDecision, RlOptions
from planner.kinds.rl.formulate import formulate
from planner.kinds.rl.names import LATE
from planner.kinds.rl.proof import plan_of
from planner.kinds.rl.setting import read_setting
from planner.kinds.rl.simulated.engines import simulated_finish_s, simulated_period_s
from planner.kinds.rl.simulated.scaled import scaled
from planner.plan.findings import Finding
from planner.plan.schema import Envelope
from planner.problem.recorded import AtHand, resolved_again
from planner.rl.coupled.referee import ASYNCHRONOUS, coupled_iteration_s, why_not
from planner.rl.evaluate import evaluate, priced
from planner.rl.generation import batch_finish_times
from planner.rl.in_flight import flows
from planner.rl.plan import RlPlan
from planner.rl.problem import RlProblem
from planner.rl.training import rollout_of

TOLERANCE = 0.10
"""By which a rollout may take longer in simulation than it is priced at: what decode curves are fitted to, and no more,
so that a plan whose iterations would slip is told."""


def judged(envelope: Envelope, decision: RlDecision, hand: AtHand) -> tuple[list[Finding], dict[str, Any]]:
    """Findings on the mean rollout and, of asynchronous plans, on the mean iteration, with the seconds behind them.

    Raises as `restate` does.

    Raises PlannerError for plans whose rollouts are more than samples on replicas: what is carried over, what ends on
    other replicas or scores beside it.
    """
    _require_plain(decision)
    setting = read_setting(
        resolved_again(envelope.inputs, RlOptions, envelope.digests.models, hand, envelope.digests.profiles)
    )
    problem = scaled(formulate(setting), decision.rollout_scales or {}).problem
    plan = plan_of(decision, problem)
    if plan is None:
        raise PlannerError("no plan of the problem has these roles and this mode", where="decision.roles")
    roles = [role for role in decision.roles if role.function == "rollout"]
    finish_s = list(simulated_finish_s(setting, problem, plan, roles))
    flow_s = simulated_period_s(setting, problem, plan, roles[0]) if plan.mode.in_flight else None
    document = {"schema": "planner.simulation/1", **_figures(problem, plan, finish_s, flow_s)}
    findings = [_finding(document)]
    if plan.mode.sync in ASYNCHRONOUS:
        coupled_s = None if (apart := why_not(problem, plan)) else _coupled_s(problem, plan)
        findings.append(_coupled_finding(coupled_s, apart))
        document |= {} if coupled_s is None else {"coupled_iteration_s": coupled_s}
    return findings, document


def _coupled_s(problem: RlProblem, plan: RlPlan) -> dict[str, float]:
    """The mean iteration as priced, and as generators and trainer take it together."""
    evaluation = evaluate(problem, plan)
    simulated_s = coupled_iteration_s(problem, plan, evaluation.handover_s)
    return {"priced": evaluation.iteration_s, "simulated": simulated_s}


def _require_plain(decision: RlDecision) -> None:
    named = {
        "partial_rollouts": "samples that are carried over",
        "late_rollout": f"replicas that end a rollout (`{LATE}`)",
        "fused_scoring": "replicas that score beside the last samples",
        "agents": "trajectories one by one",
    }
    for field, what in named.items():
        if getattr(decision, field) is not None:
            hint = "simulate the plan without it; `--level proof` simulates it on the curves"
            raise PlannerError(f"engines are not simulated with {what}", where=f"decision.{field}", hint=hint)


def _figures(problem: RlProblem, plan: RlPlan, finish_s: list[Floats], flow_s: float | None) -> dict[str, Any]:
    """Seconds of each rollout and of the mean iteration, as priced and as simulated."""
    stated_s = [
        batch_finish_times(batch, plan.groups, problem.dispatch, plan.tail_fraction, plan.policy)
        for batch in problem.batches
    ]
    parts, needed = problem.minibatches if plan.training is not None else 1, problem.trained_samples
    by_curve, by_engine = (
        rollout_of(problem.batches, times, parts, needed, plan.services) for times in (stated_s, finish_s)
    )
    known = flows(problem, plan.groups, (plan.mode,))
    engine_flows = {
        ahead: flow if flow_s is None else flow.times(flow_s / flow.period_s) for ahead, flow in known.items()
    }
    ends = [priced(problem, plan, replace(by_curve, flows=known))]
    ends.append(priced(problem, plan, replace(by_engine, flows=engine_flows)))
    rows = zip(by_curve.generation_s_B.tolist(), by_engine.generation_s_B.tolist(), strict=True)
    figures: dict[str, Any] = {
        "rollouts": [{"priced_s": stated, "simulated_s": simulated} for stated, simulated in rows],
        "generation_s": {"priced": ends[0].generation_s, "simulated": ends[1].generation_s},
        "iteration_s": {"priced": ends[0].iteration_s, "simulated": ends[1].iteration_s},
        "mean_sample_s": {"priced": _mean(stated_s), "simulated": _mean(finish_s)},
    }
    return figures


def _mean(times: list[Floats]) -> float:
    return float(np.mean(np.concatenate(times)))


def _finding(document: dict[str, Any]) -> Finding:
    rollout, iteration = document["generation_s"], document["iteration_s"]
    ratio = rollout["simulated"] / rollout["priced"]
    what = (
        f"engines generate a batch in {format_si(rollout['simulated'], 's')}, priced"
        f" {format_si(rollout['priced'], 's')} ({ratio - 1:+.1%}, {TOLERANCE:.0%} allowed); an iteration then takes"
        f" {format_si(iteration['simulated'], 's')} for {format_si(iteration['priced'], 's')}"
    )
    hint = "solve again with `simulated_rollouts: true`, or give the step of these replicas as `costs.generation`"
    return Finding("simulate.rollout", ratio <= 1.0 + TOLERANCE, what, "roles.rollout", hint)


def _coupled_finding(coupled_s: dict[str, float] | None, apart: str | None) -> Finding:
    """On generators and trainer that wait for each other, on the curves that the plan is priced with."""
    if coupled_s is None:
        what = f"generators and trainer are not simulated together with {apart}"
        return Finding("simulate.coupled", True, what, "synchrony", skipped=True)
    ratio = coupled_s["simulated"] / coupled_s["priced"]
    what = (
        f"generators and trainer simulated together take {format_si(coupled_s['simulated'], 's')} an iteration, priced"
        f" {format_si(coupled_s['priced'], 's')} ({ratio - 1:+.1%}, {TOLERANCE:.0%} allowed)"
    )
    hint = "plan with another `max_staleness`, or without `in_flight_updates`"
    return Finding("simulate.coupled", ratio <= 1.0 + TOLERANCE, what, "synchrony", hint)

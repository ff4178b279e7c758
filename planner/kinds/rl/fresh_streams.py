"""Judges an RL plan by simulation: its rollouts in the engines' simulator, and training that runs ahead beside them."""

from dataclasses import replace
from typing import Any

import numpy as np

from planner.arrays import Floats
from planner.documents.units import format_si
from planner.errors import PlannerError
from planner.kinds.rl.decision import RlDecision
from planner.kinds.rl.formulate import formulate
from planner.kinds.rl.names import LATE
from planner.kinds.rl.options import RlOptions
from planner.kinds.rl.planned import plan_of
from planner.kinds.rl.setting import RlSetting, read_setting
from planner.kinds.rl.simulated.engines import simulated_finish_s, simulated_iterations, simulated_period_s
from planner.kinds.rl.simulated.scaled import scaled
from planner.plan.findings import Finding
from planner.plan.schema import Envelope, Role
from planner.problem.recorded import AtHand, resolved_again
from planner.rl.coupled.referee import ASYNCHRONOUS, coupled_iteration_s, why_not
from planner.rl.evaluate import evaluate, priced
from planner.rl.generation import batch_finish_times
from planner.rl.in_flight import flows
from planner.rl.partial import partial_iterations, rollout_of_iterations
from planner.rl.plan import RlPlan
from planner.rl.problem import RlProblem
from planner.rl.training import Rollout, rollout_of

TOLERANCE = 0.10
"""By which a rollout may take longer in simulation than it is priced at: what decode curves are fitted to, and no more,
so that a plan whose iterations would slip is told."""


def judged(envelope: Envelope, decision: RlDecision, hand: AtHand) -> tuple[list[Finding], dict[str, Any]]:
    """Findings on the mean rollout and, of asynchronous plans, on the mean iteration, with the seconds behind them.

    Raises as `restate` does.

    Raises PlannerError for plans whose rollouts are more than samples on replicas: what ends on other replicas or
    scores beside it.
    """
    _require_plain(decision)
    setting = read_setting(resolved_again(envelope.inputs, RlOptions, hand, envelope.digests.profiles))
    problem = scaled(formulate(setting), decision.rollout_scales or {}).problem
    plan = plan_of(decision, problem)
    if plan is None:
        raise PlannerError("no plan of the problem has these roles and this mode", where="decision.roles")
    roles = [role for role in decision.roles if role.function == "rollout"]
    of_rollouts = _carried if problem.partial else _whole
    document = {
        "schema": "planner.simulation/1",
        **_figures(problem, plan, *of_rollouts(setting, problem, plan, roles)),
    }
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
        "late_rollout": f"replicas that end a rollout (`{LATE}`)",
        "fused_scoring": "replicas that score beside the last samples",
        "agents": "trajectories one by one",
    }
    for field, what in named.items():
        if getattr(decision, field) is not None:
            hint = "simulate the plan without it; `--level proof` simulates it on the curves"
            raise PlannerError(f"engines are not simulated with {what}", where=f"decision.{field}", hint=hint)


Simulated = tuple[Rollout, list[Floats]]
"""Rollouts, and when the samples of each are done [N], seconds."""


def _whole(setting: RlSetting, problem: RlProblem, plan: RlPlan, roles: list[Role]) -> tuple[Simulated, Simulated]:
    """Rollouts that begin anew, as priced and as engines take them."""
    stated_s = [
        batch_finish_times(batch, plan.groups, problem.dispatch, plan.tail_fraction, plan.policy)
        for batch in problem.batches
    ]
    finish_s = list(simulated_finish_s(setting, problem, plan, roles))
    parts, needed = problem.minibatches if plan.training is not None else 1, problem.trained_samples
    by_curve, by_engine = (
        rollout_of(problem.batches, times, parts, needed, plan.services) for times in (stated_s, finish_s)
    )
    known = engine_flows = flows(problem, plan.groups, (plan.mode,), plan.services)
    if plan.mode.in_flight:
        flow_s = simulated_period_s(setting, problem, plan, roles[0])
        engine_flows = {ahead: flow.times(flow_s / flow.period_s) for ahead, flow in known.items()}
    return (replace(by_curve, flows=known), stated_s), (replace(by_engine, flows=engine_flows), finish_s)


def _carried(setting: RlSetting, problem: RlProblem, plan: RlPlan, roles: list[Role]) -> tuple[Simulated, Simulated]:
    """Rollouts that carry samples over, as priced and as engines take them."""
    stated, simulated = (
        (
            rollout_of_iterations(iterations, problem.minibatches, plan.services),
            [iteration.done_s_D for iteration in iterations],
        )
        for iterations in (
            partial_iterations(problem, plan.groups[0], plan.services),
            simulated_iterations(setting, problem, plan, roles[0]),
        )
    )
    return stated, simulated


def _figures(problem: RlProblem, plan: RlPlan, stated: Simulated, simulated: Simulated) -> dict[str, Any]:
    """Seconds of each rollout and of the mean iteration, as priced and as simulated."""
    ends = [priced(problem, plan, rollout) for rollout, _ in (stated, simulated)]
    rows = zip(*(rollout.generation_s_B.tolist() for rollout, _ in (stated, simulated)), strict=True)
    return {
        "rollouts": [{"priced_s": priced_s, "simulated_s": simulated_s} for priced_s, simulated_s in rows],
        "generation_s": {"priced": ends[0].generation_s, "simulated": ends[1].generation_s},
        "iteration_s": {"priced": ends[0].iteration_s, "simulated": ends[1].iteration_s},
        "mean_sample_s": {"priced": _mean(stated[1]), "simulated": _mean(simulated[1])},
    }


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

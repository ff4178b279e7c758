"""Agents of a problem as `planner.rl` searches them, and its plans as a decision states them."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf, isfinite

import numpy as np

from planner.kinds.rl.agents.options import AgentBatch, AgentDispatch, AgentRollouts, Agents, Priority
from planner.rl.agentic import AgenticDispatch, AgenticPlan, AgenticProblem
from planner.rl.plan import Placement, RlEvaluation, RlMode, RlPlan
from planner.rl.problem import RlProblem
from planner.rl.trajectories import Trajectories

DISPATCHES: dict[AgentDispatch, AgenticDispatch] = {
    "fifo": "fifo",
    "longest_first": "predicted_longest_first",
    "assigned": "assigned",
}


def trajectories_of(batch: AgentBatch) -> Trajectories:
    """The trajectories of one iteration as arrays."""
    rows = batch.trajectories
    turns_N = np.array([len(row.output_tokens) for row in rows], np.int64)
    plain = Trajectories(
        np.array([row.input_tokens for row in rows], np.int64),
        np.concatenate([np.zeros(1, np.int64), np.cumsum(turns_N)]),
        np.array([tokens for row in rows for tokens in row.output_tokens], np.int64),
        np.array([wait_s for row in rows for wait_s in (*row.wait_s, 0.0)], float),
        np.array([tokens for row in rows for tokens in (*row.observation_tokens, 0)], np.int64),
        np.zeros(int(turns_N.sum())),
    )
    left = np.split(plain.remaining_T.astype(float), plain.first_N[1:-1])
    stated = [true if row.predicted is None else np.array(row.predicted) for row, true in zip(rows, left, strict=True)]
    return replace(plain, predicted_T=np.concatenate(stated))


def agent_modes(agents: Agents, arrangements: Sequence[Placement], synchrony: Sequence[str] | None) -> list[RlMode]:
    """Arrangements with the staleness that goes with them, of the synchrony asked for."""
    asked = synchrony or ("synchronous", "asynchronous")
    steps = [step for step in sorted(set(agents.staleness)) if ("asynchronous" if step else "synchronous") in asked]
    in_turn = [RlMode(arrangement, "sync") for arrangement in dict.fromkeys(arrangements) if 0 in steps]
    if "disaggregated" not in arrangements:
        return in_turn
    return [*in_turn, *(RlMode("disaggregated", "k_step_async", step) for step in steps if step)]


def agentic_problem(searched: RlProblem, agents: Agents) -> AgenticProblem:
    """The agents of a problem whose pools, curves and modes are `searched`."""
    return AgenticProblem(
        curves=searched,
        batches=tuple(trajectories_of(batch) for batch in agents.batches),
        keep_kv=agents.keep_kv,
        move_s=agents.move_s,
        move_token_s=agents.move_token_s,
        dispatches=tuple(DISPATCHES[dispatch] for dispatch in dict.fromkeys(agents.dispatches)),
        priorities=tuple(dict.fromkeys(agents.priorities)),
        move_thresholds=tuple(inf if factor is None else factor for factor in dict.fromkeys(agents.move_thresholds)),
    )


def dispatch_of(plan: AgenticPlan) -> AgentDispatch:
    """As a decision names it."""
    return next(name for name, dispatch in DISPATCHES.items() if dispatch == plan.dispatch)


def threshold_of(plan: AgenticPlan) -> float | None:
    """None for never."""
    return plan.move_threshold if isfinite(plan.move_threshold) else None


def rollouts_of(plan: AgenticPlan, evaluation: RlEvaluation) -> AgentRollouts:
    """What a decision states beyond roles and policies."""
    return AgentRollouts(assignment=plan.assignment, moved=evaluation.moved)


def agentic_plan(
    plan: RlPlan,
    dispatch: AgentDispatch,
    priority: Priority,
    move_threshold: float | None,
    rollouts: AgentRollouts | None,
) -> AgenticPlan | None:
    """What a decision states, on the groups, training and mode of `plan`; None without training."""
    if plan.training is None:
        return None
    assignment = () if rollouts is None else rollouts.assignment
    threshold = inf if move_threshold is None else move_threshold
    return AgenticPlan(plan.mode, plan.groups, plan.training, DISPATCHES[dispatch], priority, threshold, assignment)

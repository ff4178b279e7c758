"""Agentic RL: multi-turn rollouts with tool calls on unequal workers, and training with bounded staleness.

Array suffixes: N trajectories, B batches, K minibatches, T training choices.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Literal

import numpy as np

from planner.arrays import Floats, Ints
from planner.errors import PlannerError
from planner.rl.evaluate import (
    broken_deadline,
    broken_places,
    broken_pools,
    broken_training,
    gpus_of_pool,
    priced,
)
from planner.rl.plan import GenerationGroup, RlEvaluation, RlMode, RlPlan, TrainingChoice
from planner.rl.problem import Objective, RlProblem, validate
from planner.rl.rollouts.rollout import RolloutPolicy, RolloutWorker, simulate
from planner.rl.training import Rollout
from planner.rl.trajectories import Trajectories

AgenticDispatch = Literal["fifo", "predicted_longest_first", "assigned"]
Priority = Literal["fifo", "longest_first"]


@dataclass(frozen=True, slots=True)
class AgenticProblem:
    """`curves` holds pools, curves, modes and objective, and the trajectories as plain lengths.

    A plan may use any numbers of all kinds of replicas. The other fields are what it may choose of.
    """

    curves: RlProblem
    batches: tuple[Trajectories, ...]
    keep_kv: bool
    move_s: float
    move_token_s: float
    dispatches: tuple[AgenticDispatch, ...]
    priorities: tuple[Priority, ...]
    move_thresholds: tuple[float, ...]  # infinite: never

    @property
    def objective(self) -> Objective:
        return self.curves.objective


@dataclass(frozen=True, slots=True)
class AgenticPlan:
    """`assignment` gives every trajectory of every batch its worker where `dispatch` is `assigned`, else nothing."""

    mode: RlMode
    groups: tuple[GenerationGroup, ...]
    training: TrainingChoice
    dispatch: AgenticDispatch
    priority: Priority
    move_threshold: float
    assignment: tuple[tuple[int, ...], ...] = ()

    @property
    def whole(self) -> RlPlan:
        """Who generates and trains, and how both overlap."""
        return RlPlan(self.mode, self.groups, self.training)


def policy_of(problem: AgenticProblem, priority: Priority, move_threshold: float) -> RolloutPolicy:
    """How rollouts of `problem` go under these choices."""
    return RolloutPolicy(
        problem.keep_kv, priority == "longest_first", move_threshold, problem.move_s, problem.move_token_s
    )


def predicted_N(trajectories: Trajectories) -> Floats:
    """What is predicted before the first turn of each."""
    return trajectories.predicted_T[trajectories.first_N[:-1]]


def queues_for(
    dispatch: AgenticDispatch, trajectories: Trajectories, workers: int, assignment: Sequence[int]
) -> tuple[list[int], list[Ints]]:
    """The queue of each worker, and the queues: one for all, or one each with the longest predictions first."""
    if dispatch == "fifo":
        return [0] * workers, [np.arange(trajectories.size)]
    order = np.argsort(-predicted_N(trajectories), kind="stable")
    if dispatch == "predicted_longest_first":
        return [0] * workers, [order]
    places = np.array(assignment, np.int64)[order]
    return list(range(workers)), [order[places == worker] for worker in range(workers)]


def workers_for(
    plan: AgenticPlan, trajectories: Trajectories, batch: int
) -> tuple[tuple[RolloutWorker, ...], list[Ints]]:
    """Replicas of a plan in the order of its groups, and the queues that they take trajectories of a batch from."""
    kinds = [group.option.curve for group in plan.groups for _ in range(group.replicas)]
    assignment = plan.assignment[batch] if plan.dispatch == "assigned" else ()
    of_worker, queues = queues_for(plan.dispatch, trajectories, len(kinds), assignment)
    return tuple(RolloutWorker(curve, queue) for curve, queue in zip(kinds, of_worker, strict=True)), queues


def token_parts(problem: AgenticProblem) -> Floats:
    """Tokens of the minibatches [B, K]: equal parts of all tokens of a batch."""
    parts = problem.curves.minibatches
    return np.array([[batch.final_context_N.sum() / parts] * parts for batch in problem.batches], float)


def check_agentic(problem: AgenticProblem) -> None:
    """Raises PlannerError for what no plan can fix, with the nearest value that works."""
    validate(problem.curves)
    for batch in problem.batches:
        require_divisible(batch.size, problem.curves.minibatches)


def require_divisible(samples: int, minibatches: int, where: str = "minibatches") -> None:
    """Raises PlannerError unless `samples` make `minibatches` equal ones, naming the nearest numbers that do."""
    if samples % minibatches:
        divisors = [count for count in range(1, samples + 1) if samples % count == 0]
        below = max(count for count in divisors if count < minibatches)
        above = min((count for count in divisors if count > minibatches), default=samples)
        whole = round(samples / minibatches) * minibatches
        raise PlannerError(
            f"{samples} samples do not divide into {minibatches} minibatches",
            where=where,
            hint=f"use {below} or {above} minibatches, or {whole} samples",
        )


def evaluate_agentic(problem: AgenticProblem, plan: AgenticPlan) -> RlEvaluation:
    """`plan` priced under `problem`, with the rules that it breaks; one that breaks some takes forever."""
    curves = problem.curves
    policy = policy_of(problem, plan.priority, plan.move_threshold)
    whole = plan.whole
    broken = _broken(problem, plan, whole, sum(group.replicas for group in plan.groups))
    end_s_B, moved = np.zeros(len(problem.batches)), 0
    for index, batch in enumerate(problem.batches if not broken else ()):
        workers, queues = workers_for(plan, batch, index)
        result = simulate(workers, batch, queues, policy)
        end_s_B[index] = result.end_s
        moved += result.moved
    evaluation = priced(curves, whole, Rollout(end_s_B, token_parts(problem), np.zeros((0, 0))))
    if not broken:
        return replace(evaluation, moved=moved, broken=tuple(broken_deadline(curves, evaluation)))
    never = (inf,) * len(end_s_B)
    return replace(
        evaluation,
        objective=inf,
        iteration_s=inf,
        cost_usd=inf,
        generation_s=inf,
        generation_s_of_batch=never,
        broken=tuple(broken),
    )


def _broken(problem: AgenticProblem, plan: AgenticPlan, whole: RlPlan, workers: int) -> list[str]:
    curves = problem.curves
    used = gpus_of_pool(whole)
    broken = [*broken_pools(curves, used), *broken_places(curves, whole, used)]
    if plan.mode not in curves.modes:
        broken.append(f"`{plan.mode.placement}` with staleness {plan.mode.staleness} is not allowed")
    if plan.dispatch not in problem.dispatches or plan.priority not in problem.priorities:
        broken.append(f"dispatch `{plan.dispatch}` with priority `{plan.priority}` is not allowed")
    if plan.move_threshold not in problem.move_thresholds:
        broken.append(f"the move threshold {plan.move_threshold:g} is not allowed")
    return [*broken, *_broken_places(problem, plan, workers), *broken_training(curves, whole, plan.training)]


def _broken_places(problem: AgenticProblem, plan: AgenticPlan, workers: int) -> list[str]:
    """Every trajectory must fit where it may start; where all share a queue, on every worker."""
    capacity = [group.option.curve.kv_tokens for group in plan.groups for _ in range(group.replicas)]
    for index, batch in enumerate(problem.batches):
        if plan.dispatch != "assigned":
            if batch.final_context_N.max() > min(capacity):
                return [f"a trajectory of {batch.final_context_N.max()} tokens exceeds the {min(capacity)} of a worker"]
            continue
        places = plan.assignment[index] if index < len(plan.assignment) else ()
        if len(places) != batch.size or not all(0 <= place < workers for place in places):
            return [f"batch {index} does not give each trajectory one of {workers} workers"]
        for place, need in zip(places, batch.final_context_N, strict=True):
            if need > capacity[place]:
                return [f"a trajectory of {need} tokens exceeds the {capacity[place]} of its worker"]
    return []

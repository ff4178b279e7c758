"""RL post-training of agents: trajectories with tool calls on unequal workers, training some steps behind.

Array suffixes: N trajectories, B batches, K minibatches, T training choices.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

import numpy as np

from planner.arrays import Floats, Ints
from planner.errors import PlannerError
from planner.rl.curves import NEVER_FITS
from planner.rl.evaluate import SECONDS_PER_HOUR, gpus_of_pool, handover_s, hourly_usd, weight_sync_s
from planner.rl.plan import GenerationGroup, RlMode, RlPlan, TrainingChoice
from planner.rl.problem import RlProblem, validate
from planner.rl.rollouts.rollout import RolloutPolicy, RolloutWorker, simulate
from planner.rl.training import Rollout, TrainingTable, iteration_s, minibatch_s
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


@dataclass(frozen=True, slots=True)
class AgenticEvaluation:
    """An agentic plan priced: seconds and dollars an iteration, and the rules that it breaks."""

    objective: float
    iteration_s: float
    cost_usd: float
    generation_s_of_batch: tuple[float, ...]
    training_s_of_batch: tuple[float, ...]
    moved: int
    gpus_of_pool: dict[str, int]
    broken: tuple[str, ...]


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


def token_parts(problem: AgenticProblem) -> Floats:
    """Tokens of the minibatches [B, K]: equal parts of all tokens of a batch."""
    parts = problem.curves.minibatches
    return np.array([[batch.final_context_N.sum() / parts] * parts for batch in problem.batches], float)


def check_agentic(problem: AgenticProblem) -> None:
    """Raises PlannerError for what no plan can mend, with the nearest value that works."""
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
        what = f"{samples} samples do not divide into {minibatches} minibatches"
        raise PlannerError(what, where=where, hint=f"use {below} or {above} minibatches, or {whole} samples")


def evaluate_agentic(problem: AgenticProblem, plan: AgenticPlan) -> AgenticEvaluation:
    """`plan` priced under `problem`, with the rules that it breaks."""
    curves = problem.curves
    policy = policy_of(problem, plan.priority, plan.move_threshold)
    kinds = [group.option.curve for group in plan.groups for _ in range(group.replicas)]
    broken = _broken(problem, plan, len(kinds))
    ends, moved = [], 0
    for at, batch in enumerate(problem.batches):
        if broken:
            break
        assignment = plan.assignment[at] if plan.dispatch == "assigned" else ()
        of_worker, queues = queues_for(plan.dispatch, batch, len(kinds), assignment)
        workers = tuple(RolloutWorker(curve, queue) for curve, queue in zip(kinds, of_worker, strict=True))
        result = simulate(workers, batch, queues, policy)
        ends.append(result.end_s)
        moved += result.moved
    generation_B = np.array(ends if not broken else [inf] * len(problem.batches))
    table = TrainingTable.of((plan.training,), [pool.name for pool in curves.pools])
    work = minibatch_s(table, token_parts(problem))
    whole = RlPlan(plan.mode, plan.groups, plan.training)
    rollout = Rollout(generation_B, token_parts(problem), np.zeros((0, 0)))
    handover = np.array([handover_s(curves, whole)])
    overlapped = curves.weight_sync_overlapped
    time_s = inf if broken else float(iteration_s(plan.mode, rollout, work, handover, overlapped=overlapped)[0])
    used = gpus_of_pool(whole)
    cost = hourly_usd(curves, used) * time_s / SECONDS_PER_HOUR
    if curves.max_iteration_s is not None and time_s > curves.max_iteration_s and not broken:
        broken = [f"the iteration takes {time_s:.6g} s, at most {curves.max_iteration_s:.6g} s allowed"]
    return AgenticEvaluation(
        objective=time_s if curves.objective == "iteration_time" else cost,
        iteration_s=time_s,
        cost_usd=cost,
        generation_s_of_batch=tuple(float(one) for one in generation_B),
        training_s_of_batch=tuple(float(one) for one in work[0].sum(axis=1)),
        moved=moved,
        gpus_of_pool=used,
        broken=tuple(broken),
    )


def _broken(problem: AgenticProblem, plan: AgenticPlan, workers: int) -> list[str]:
    curves, training = problem.curves, plan.training
    found = []
    for name, count in gpus_of_pool(RlPlan(plan.mode, plan.groups, training)).items():
        if count > curves.pool_of[name].gpus:
            found.append(f"pool `{name}` has {curves.pool_of[name].gpus} GPUs, the plan takes {count}")
    if plan.mode not in curves.modes:
        found.append(f"`{plan.mode.placement}` with staleness {plan.mode.staleness} is not allowed")
    if plan.dispatch not in problem.dispatches or plan.priority not in problem.priorities:
        found.append(f"dispatch `{plan.dispatch}` with priority `{plan.priority}` is not allowed")
    if plan.move_threshold not in problem.move_thresholds:
        found.append(f"the move threshold {plan.move_threshold:g} is not allowed")
    limit = curves.trained_samples // curves.minibatches
    if training.dp > limit:
        found.append(f"dp {training.dp} for {limit} samples a minibatch")
    if training.dp < training.option.min_dp:
        least = training.option.min_dp
        found.append(f"dp {training.dp} does not fit in memory" + (f", {least} does" if least < NEVER_FITS else ""))
    found += _broken_places(problem, plan, workers)
    pools = {group.option.pool for group in plan.groups}
    if plan.mode.placement == "colocated":
        if pools != {training.option.pool} or sum(group.gpus for group in plan.groups) != training.gpus:
            found.append("colocated generation and training need the same GPUs of one pool")
    elif weight_sync_s(curves, pools, training.option.pool) is None:
        found.append("generation and training have no network in common")
    return found


def _broken_places(problem: AgenticProblem, plan: AgenticPlan, workers: int) -> list[str]:
    """Every trajectory must fit where it may start; where all share a queue, on every worker."""
    capacity = [group.option.curve.kv_tokens for group in plan.groups for _ in range(group.replicas)]
    for at, batch in enumerate(problem.batches):
        if plan.dispatch != "assigned":
            if batch.final_context_N.max() > min(capacity):
                return [f"a trajectory of {batch.final_context_N.max()} tokens exceeds the {min(capacity)} of a worker"]
            continue
        places = plan.assignment[at] if at < len(plan.assignment) else ()
        if len(places) != batch.size or not all(0 <= place < workers for place in places):
            return [f"batch {at} does not give each trajectory one of {workers} workers"]
        for place, need in zip(places, batch.final_context_N, strict=True):
            if need > capacity[place]:
                return [f"a trajectory of {need} tokens exceeds the {capacity[place]} of its worker"]
    return []

"""Exact search: configurations of generation in the order of a lower bound, each simulated once for all trainings.

Array suffixes: N samples, B batches, C configurations, T training choices, M modes.
"""

import time
from dataclasses import dataclass, field, replace

import numpy as np

from planner.arrays import Floats
from planner.rl.evaluate import evaluate
from planner.rl.generation import FusedBatch, LateBatch, finish_times
from planner.rl.partial import partial_rollout
from planner.rl.plan import Fusion, LateReplicas, RlEvaluation, RlPlan
from planner.rl.problem import RlProblem, validate
from planner.rl.rollouts.rollout import RolloutPolicy
from planner.rl.search.best_first import BestFirst
from planner.rl.search.pricing import pricing_of
from planner.rl.search.space import RlSpace, build_space
from planner.rl.training import Rollout, rollout_of
from planner.solvers.result import Status, relative_gap


@dataclass(frozen=True, slots=True)
class RlSolution:
    """The best plan, what was proven of it, and what of the space was seen (priced exactly) or pruned by a bound.

    `nearest_iteration_s` is given when no plan meets `max_iteration_s`: the shortest iteration there is.
    """

    status: Status
    stop_reason: str  # "finished" or "time_limit"
    plan: RlPlan | None
    evaluation: RlEvaluation | None
    bound: float | None
    seen: int
    pruned: int
    solve_s: float = field(compare=False)
    nearest_iteration_s: float | None = None

    @property
    def objective(self) -> float | None:
        return self.evaluation.objective if self.evaluation is not None else None

    @property
    def gap(self) -> float | None:
        """`relative_gap` of the objective; None without a plan or a bound."""
        return relative_gap(self.objective, self.bound)


def solve(problem: RlProblem, *, time_limit_s: float | None = None, gap: float = 0.0) -> RlSolution:
    """The best plan of `problem`; exact but for a time limit or a `gap` above 0. Raises PlannerError for bad input.

    The same problem gives the same plan: ties go to the configuration met first, and nothing is drawn at random.
    """
    validate(problem)
    started = time.perf_counter()
    space = build_space(problem)
    search = BestFirst(pricing_of(space), Simulations(space).rollout, gap)
    reason = search.run(started + time_limit_s if time_limit_s is not None else np.inf)
    plan = _plan(space, search.best_at)
    seen, pruned, took = search.seen, search.pricing.total - search.seen, time.perf_counter() - started
    if plan is None and reason == "time_limit":
        return RlSolution(Status.UNKNOWN, reason, None, None, None, seen, pruned, took)
    if plan is None:
        nearest = _nearest_s(problem, time_limit_s)
        return RlSolution(Status.INFEASIBLE, reason, None, None, None, seen, pruned, took, nearest)
    evaluation = evaluate(problem, plan)
    bound = min(search.bound, evaluation.objective)
    proven = evaluation.objective - bound <= max(gap, 1e-9) * abs(evaluation.objective)
    status = Status.OPTIMAL if proven else Status.FEASIBLE
    return RlSolution(status, reason, plan, evaluation, bound, seen, pruned, took)


def _nearest_s(problem: RlProblem, time_limit_s: float | None) -> float | None:
    """The shortest iteration of any plan, where a cap on it is what no plan meets."""
    if problem.max_iteration_s is None:
        return None
    free = replace(problem, max_iteration_s=None, objective="iteration_time")
    evaluation = solve(free, time_limit_s=time_limit_s).evaluation
    return evaluation.iteration_s if evaluation is not None else None


def _plan(space: RlSpace, at: tuple[int, int, int]) -> RlPlan | None:
    config, mode, choice = at
    if config < 0:
        return None
    problem = space.problem
    training = space.table.choices[choice] if problem.training else None
    fraction = int(space.fraction_C[config])
    tail = problem.tail_fractions[fraction] if fraction >= 0 else 0.0
    return RlPlan(
        problem.modes[mode],
        space.groups_of(config),
        training,
        tail,
        space.fusion_of(config),
        space.late_of(config),
        space.policy_of(config),
    )


class Simulations:
    """Rollouts of configurations; what two configurations share is simulated once."""

    def __init__(self, space: RlSpace) -> None:
        self._space = space
        problem = space.problem
        self._ends_alone = not problem.training and problem.samples is None  # then only the last completion matters
        self._late_batches: dict[int, list[LateBatch]] = {}
        self._fused_batches: dict[int, list[FusedBatch]] = {}
        self._known: dict[tuple[int, int, int, RolloutPolicy | None], Floats] = {}

    def rollout(self, config: int) -> Rollout:
        """The rollout of a configuration over all batches."""
        problem = self._space.problem
        policy = self._space.policy_of(config)
        if self._ends_alone:
            ends = [
                max(float(self._finish_s(queue, group, batch, policy).max(initial=0.0)) for queue, group in parts)
                for parts in [self._space.queues_of(config)]
                for batch in range(len(problem.batches))
            ]
            return Rollout(np.array(ends), np.zeros((0, 0)), np.zeros((0, 0)))
        if problem.partial:
            return partial_rollout(problem, self._space.groups_of(config)[0])
        fusion = self._space.fusion_of(config)
        if fusion is not None:
            return self._fused(config, fusion)
        late = self._space.late_of(config)
        if late is not None:
            return self._late(config, late)
        finish_s = [self._batch_finish_s(config, batch) for batch in range(len(problem.batches))]
        return rollout_of(problem.batches, finish_s, problem.minibatches, problem.trained_samples)

    def _late(self, config: int, late: LateReplicas) -> Rollout:
        """Never ends where the samples left do not fit the late replicas."""
        problem, group = self._space.problem, int(self._space.first_C[config])
        if group not in self._late_batches:
            chosen = self._space.groups[group]
            self._late_batches[group] = [LateBatch(batch, chosen, problem.dispatch) for batch in problem.batches]
        found = [batch.done_s(late, problem.late_change_s) for batch in self._late_batches[group]]
        whole = all(one is not None for one in found)
        done_s = [np.zeros(b.size) if one is None else one for one, b in zip(found, problem.batches, strict=True)]
        rollout = rollout_of(problem.batches, done_s, problem.minibatches, problem.trained_samples)
        return rollout if whole else replace(rollout, possible=False)

    def _fused(self, config: int, fusion: Fusion) -> Rollout:
        """Ends with the scoring of the last sample; never where the samples left do not fit on the replicas kept."""
        problem, group = self._space.problem, int(self._space.first_C[config])
        if group not in self._fused_batches:
            chosen = self._space.groups[group]
            scoring = problem.scoring[chosen.option.pool]
            self._fused_batches[group] = [
                FusedBatch(batch, chosen, problem.dispatch, scoring) for batch in problem.batches
            ]
        found = [batch.times(fusion) for batch in self._fused_batches[group]]
        done_s = [
            one.done_s_N if one is not None else np.zeros(b.size) for one, b in zip(found, problem.batches, strict=True)
        ]
        rollout = rollout_of(problem.batches, done_s, problem.minibatches, problem.trained_samples)
        return replace(rollout, generation_s_B=np.array([one.end_s if one is not None else np.inf for one in found]))

    def _batch_finish_s(self, config: int, batch: int) -> Floats:
        done_s_N = np.zeros(self._space.problem.batches[batch].size)
        policy = self._space.policy_of(config)
        for queue, group in self._space.queues_of(config):
            done_s_N[self._space.queues_QB[queue][batch]] = self._finish_s(queue, group, batch, policy)
        return done_s_N

    def _finish_s(self, queue: int, group: int, batch: int, policy: RolloutPolicy | None) -> Floats:
        key = (queue, group, batch, policy)
        if key in self._known:
            return self._known[key]
        space, chosen = self._space, self._space.groups[group]
        queue_Q = space.queues_QB[queue][batch]
        finish_s = finish_times(space.problem.batches[batch], queue_Q, chosen.option.curve, chosen.replicas, policy)
        if queue != 0:  # one group of all samples belongs to one configuration
            self._known[key] = finish_s.max(initial=0.0, keepdims=True) if self._ends_alone else finish_s
        return finish_s

"""Exact search of RL plans: generation configurations by lower bound, each simulated once for all trainings.

Array suffixes: N samples, B batches, C configurations, T training choices, M modes.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Generic, Literal, TypeVar

import numpy as np

from planner.arrays import Floats, Ints
from planner.rl.curves import GenerationOption
from planner.rl.evaluate import evaluate
from planner.rl.generation import CutRollouts, cut_rollouts, finish_times
from planner.rl.in_flight import flows
from planner.rl.partial import partial_rollout
from planner.rl.plan import Fusion, LateReplicas, RlEvaluation, RlPlan
from planner.rl.problem import RlProblem, validate
from planner.rl.rollouts.rollout import RolloutPolicy
from planner.rl.search.best_first import ConfigurationSearch
from planner.rl.search.enumeration import build_space
from planner.rl.search.pricing import pricing_of
from planner.rl.search.space import RlSpace
from planner.rl.training import Rollout, fused_rollout_of, rollout_of
from planner.solvers.best_first import search_all
from planner.solvers.result import Status, relative_gap

Plan = TypeVar("Plan")


End = Literal["bound of its generation", "bound over its trainings", "rollout"]
ENDS: tuple[End, ...] = ("bound of its generation", "bound over its trainings", "rollout")


@dataclass(frozen=True, slots=True)
class PlanGroup:
    """Configurations whose first replicas are alike and which ended alike, in the order of `ENDS`.

    `least` is no more than what any of their plans takes, infinite where none is feasible; `priced` were exactly.
    """

    first: GenerationOption
    end: End
    configurations: int
    plans: int
    priced: int
    least: float


@dataclass(frozen=True, slots=True)
class RlSolution(Generic[Plan]):
    """The best plan, what was proven of it, and what of the space was seen (priced exactly) or pruned by a bound.

    `nearest_iteration_s` is given when no plan meets `max_iteration_s`: the shortest iteration there is. `unproven`
    counts configurations whose rollout is a heuristic's, so that a better one may exist.
    """

    status: Status
    stop_reason: str  # "finished" or "time_limit"
    plan: Plan | None
    evaluation: RlEvaluation | None
    bound: float | None
    seen: int
    pruned: int
    solve_s: float = field(compare=False)
    nearest_iteration_s: float | None = None
    unproven: int = 0
    groups: tuple[PlanGroup, ...] = field(default=(), compare=False)

    @property
    def objective(self) -> float | None:
        return self.evaluation.objective if self.evaluation is not None else None

    @property
    def gap(self) -> float | None:
        """`relative_gap` of the objective; None without a plan or a bound."""
        return relative_gap(self.objective, self.bound)


def proven_status(objective: float, bound: float, gap: float) -> Status:
    """OPTIMAL where the bound is within a share `gap` of the objective, or but a rounding error below it."""
    return Status.OPTIMAL if objective - bound <= max(gap, 1e-9) * abs(objective) else Status.FEASIBLE


def solve(problem: RlProblem, *, time_limit_s: float | None = None, gap: float = 0.0) -> RlSolution[RlPlan]:
    """The best plan of `problem`; exact but for a time limit or a `gap` above 0. Raises PlannerError for bad input.

    The same problem gives the same plan: ties go to the first mode, the shortest rollout and the fewest GPUs among the
    plans that were simulated (`ConfigurationSearch.settle`), and nothing is drawn at random.
    """
    validate(problem)
    started = time.perf_counter()
    space = build_space(problem)
    pricing = pricing_of(space)
    search = ConfigurationSearch(pricing, Simulations(space).rollout)
    reason = search_all([search], gap, started + time_limit_s if time_limit_s is not None else np.inf)
    if reason == "finished":
        search.settle(space.gpus_T)
    plan = _plan(space, search.best_at)
    seen, pruned, took = search.seen, pricing.total - search.seen, time.perf_counter() - started
    if plan is None and reason == "time_limit":
        return RlSolution(Status.UNKNOWN, reason, None, None, None, seen, pruned, took)
    if plan is None:
        nearest = _nearest_s(problem, time_limit_s)
        return RlSolution(Status.INFEASIBLE, reason, None, None, None, seen, pruned, took, nearest)
    evaluation = evaluate(problem, plan)
    bound = min(search.bound, evaluation.objective)
    status = proven_status(evaluation.objective, bound, gap)
    groups = tuple(plan_groups(space, search, pricing.plans_C))
    return RlSolution(status, reason, plan, evaluation, bound, seen, pruned, took, groups=groups)


def plan_groups(space: RlSpace, search: ConfigurationSearch, plans_C: Ints) -> Iterator[PlanGroup]:
    """What became of all plans."""
    options = list(dict.fromkeys(group.option for group in space.groups))
    place_of = {option: place for place, option in enumerate(options)}
    option_G = np.array([place_of[group.option] for group in space.groups], np.int64)
    kinds, kind_C = np.unique(np.stack([option_G[space.first_C], search.end_C]), axis=1, return_inverse=True)
    for kind, (option, end) in enumerate(kinds.T.tolist()):
        own = kind_C.ravel() == kind
        plans, priced = int(plans_C[own].sum()), int(search.seen_C[own].sum())
        yield PlanGroup(options[option], ENDS[end], int(own.sum()), plans, priced, float(search.least_C[own].min()))


def _nearest_s(problem: RlProblem, time_limit_s: float | None) -> float | None:
    """The shortest iteration of any plan, where a cap on it is what no plan meets."""
    if problem.max_iteration_s is None:
        return None
    free = replace(problem, max_iteration_s=None, objective="iteration_time")
    evaluation = solve(free, time_limit_s=time_limit_s).evaluation
    return evaluation.iteration_s if evaluation is not None else None


def _plan(space: RlSpace, best: tuple[int, int, int]) -> RlPlan | None:
    config, mode, choice = best
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
        space.services_of(config),
    )


class Simulations:
    """Rollouts of configurations; what two configurations share is simulated once."""

    def __init__(self, space: RlSpace) -> None:
        self._space = space
        problem = space.problem
        self._ends_alone = not problem.training and problem.samples is None  # then only the last completion matters
        self._shared = len(space.service_sets) > 1  # configurations differ in their services alone
        self._cuts: dict[int, list[CutRollouts]] = {}
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
            return partial_rollout(problem, self._space.groups_of(config)[0], self._space.services_of(config))
        fusion = self._space.fusion_of(config)
        if fusion is not None:
            return self._fused(config, fusion)
        late = self._space.late_of(config)
        if late is not None:
            return self._late(config, late)
        finish_s = [self._batch_finish_s(config, batch) for batch in range(len(problem.batches))]
        services = self._space.services_of(config)
        rollout = rollout_of(problem.batches, finish_s, problem.minibatches, problem.trained_samples, services)
        return replace(rollout, flows=flows(problem, self._space.groups_of(config), problem.modes, services))

    def _late(self, config: int, late: LateReplicas) -> Rollout:
        """Never ends where the samples left do not fit the late replicas."""
        problem = self._space.problem
        done_s = [rollouts.late_done_s(late, problem.late_change_s) for rollouts in self._cut_rollouts(config)]
        services = self._space.services_of(config)
        return rollout_of(problem.batches, done_s, problem.minibatches, problem.trained_samples, services)

    def _fused(self, config: int, fusion: Fusion) -> Rollout:
        """Ends with the scoring of the last sample; never where the samples left do not fit on the replicas kept."""
        problem = self._space.problem
        services = self._space.services_of(config)
        scoring = problem.scoring_on(self._space.groups_of(config)[0].option.pool, services)
        assert scoring is not None  # of configurations that some training goes with
        fused = [rollouts.fused(fusion, scoring) for rollouts in self._cut_rollouts(config)]
        return fused_rollout_of(problem.batches, fused, problem.minibatches, problem.trained_samples, services)

    def _cut_rollouts(self, config: int) -> list[CutRollouts]:
        group = int(self._space.first_C[config])
        if group not in self._cuts:
            self._cuts[group] = cut_rollouts(self._space.problem, self._space.groups[group])
        return self._cuts[group]

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
        if queue != 0 or self._shared:  # one group of all samples belongs to one configuration
            self._known[key] = finish_s.max(initial=0.0, keepdims=True) if self._ends_alone else finish_s
        return finish_s

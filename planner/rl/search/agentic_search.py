"""Exact search of agentic RL plans: workers x dispatch x priority x migration x training x staleness.

Array suffixes: N trajectories, T turns, B batches, C configurations, P pools.
"""

import time
from dataclasses import dataclass, replace
from itertools import combinations, product

import numpy as np

from planner.rl.agentic import (
    AgenticDispatch,
    AgenticPlan,
    AgenticProblem,
    Priority,
    check_agentic,
    evaluate_agentic,
    policy_of,
    predicted_N,
    queues_for,
    token_parts,
)
from planner.rl.curves import DecodeCurve
from planner.rl.plan import GenerationGroup
from planner.rl.rollouts.assignment import Assigned, Assignments
from planner.rl.rollouts.rollout import RolloutWorker, simulate
from planner.rl.search.best_first import ConfigurationSearch
from planner.rl.search.bounds import SLACK
from planner.rl.search.pricing import FullPricing
from planner.rl.search.search import RlSolution, plan_groups, proven_status
from planner.rl.search.space import NO_GROUP, RlSpace
from planner.rl.search.trainings import training_choices
from planner.rl.search.verify import Derived, derived
from planner.rl.training import Rollout, TrainingTable
from planner.rl.trajectories import Trajectories
from planner.solvers.best_first import search_all
from planner.solvers.result import Status


@dataclass(frozen=True, slots=True)
class _Config:
    groups: tuple[GenerationGroup, ...]
    dispatch: AgenticDispatch
    priority: Priority
    move_threshold: float

    @property
    def curves(self) -> tuple[DecodeCurve, ...]:
        return tuple(group.option.curve for group in self.groups for _ in range(group.replicas))


def solve_agentic(
    problem: AgenticProblem, *, max_kinds: int = 2, time_limit_s: float | None = None, gap: float = 0.0
) -> RlSolution[AgenticPlan]:
    """The best plan of `problem` with at most `max_kinds` kinds of workers. Raises PlannerError for bad input.

    Exact where assignments are (`planner.rl.rollouts.assignment`), or not asked for; else the bound says how far it
    may be.
    """
    check_agentic(problem)
    started = time.perf_counter()
    configs = _configurations(problem, max_kinds)
    space = _space(problem, configs)
    rollouts = _Rollouts(problem, configs)
    pricing = FullPricing(space)
    search = ConfigurationSearch(pricing, rollouts.rollout)
    reason = search_all([search], gap, started + time_limit_s if time_limit_s is not None else np.inf)
    if reason == "finished":
        search.settle(space.gpus_T)
    loose = [float(pricing.bound_MT(config).min(initial=np.inf)) for config in rollouts.unproven]
    bound = min([search.bound, *loose])
    seen, pruned = search.seen, pricing.total - search.seen
    config, mode, choice = search.best_at
    if config < 0:
        status = Status.INFEASIBLE if reason == "finished" and not loose else Status.UNKNOWN
        took = time.perf_counter() - started
        nearest_s = _nearest_s(problem, max_kinds, time_limit_s) if reason == "finished" else None
        return RlSolution(status, reason, None, None, None, seen, pruned, took, nearest_s, unproven=len(loose))
    chosen = configs[config]
    plan = AgenticPlan(
        problem.curves.modes[mode],
        chosen.groups,
        space.table.choices[choice],
        chosen.dispatch,
        chosen.priority,
        chosen.move_threshold,
        rollouts.assignment(config),
    )
    evaluation = evaluate_agentic(problem, plan)
    bound = min(bound, evaluation.objective)
    search.least_C[rollouts.unproven], search.end_C[rollouts.unproven] = loose, 1
    groups = tuple(plan_groups(space, search, pricing.plans_C))
    status, took = proven_status(evaluation.objective, bound, gap), time.perf_counter() - started
    return RlSolution(status, reason, plan, evaluation, bound, seen, pruned, took, unproven=len(loose), groups=groups)


def derive_agentic_bound(problem: AgenticProblem, bound: float, tolerance: float, max_kinds: int = 2) -> Derived:
    """Whether no plan of `problem` is below `bound`, as `planner.rl.search.verify.derive_bound` says it.

    Mixes whose assignment is a heuristic's are worth their bound, whatever their rollout takes.
    """
    check_agentic(problem)
    configs = _configurations(problem, max_kinds)
    rollouts, pricing = _Rollouts(problem, configs), FullPricing(_space(problem, configs))

    def least(config: int) -> float:
        exact = float(pricing.exact_MT(config, rollouts.rollout(config)).min(initial=np.inf))
        loose = config in rollouts.unproven
        return float(pricing.bound_MT(config).min(initial=np.inf)) if loose else exact

    return derived(pricing, least, bound, tolerance)


def _nearest_s(problem: AgenticProblem, max_kinds: int, time_limit_s: float | None) -> float | None:
    """The shortest iteration of any plan, where a cap on it is what no plan meets."""
    if problem.curves.max_iteration_s is None:
        return None
    free = replace(problem, curves=replace(problem.curves, max_iteration_s=None, objective="iteration_time"))
    evaluation = solve_agentic(free, max_kinds=max_kinds, time_limit_s=time_limit_s).evaluation
    return evaluation.iteration_s if evaluation is not None else None


def _configurations(problem: AgenticProblem, max_kinds: int) -> list[_Config]:
    """Mixes of at most `max_kinds` kinds that fit the pools and hold every trajectory, with all policies."""
    curves = problem.curves
    largest = max(int(batch.final_context_N.max()) for batch in problem.batches)
    options = [option for option in curves.generation if option.gpus <= curves.pool_of[option.pool].gpus]
    configurations = []
    policies = list(product(problem.dispatches, problem.priorities, problem.move_thresholds))
    for number in range(1, max_kinds + 1):
        for kinds in combinations(options, number):
            counts = [range(1, curves.pool_of[kind.pool].gpus // kind.gpus + 1) for kind in kinds]
            for replicas in product(*counts):
                groups = tuple(GenerationGroup(kind, count) for kind, count in zip(kinds, replicas, strict=True))
                if not _fits(problem, groups):
                    continue
                smallest = min(kind.curve.kv_tokens for kind in kinds)
                enough = max(kind.curve.kv_tokens for kind in kinds) >= largest
                configurations += [
                    _Config(groups, *policy)
                    for policy in policies
                    if (enough if policy[0] == "assigned" else smallest >= largest)
                ]
    return configurations


def _fits(problem: AgenticProblem, groups: tuple[GenerationGroup, ...]) -> bool:
    used: dict[str, int] = {}
    for group in groups:
        used[group.option.pool] = used.get(group.option.pool, 0) + group.gpus
    return all(count <= problem.curves.pool_of[name].gpus for name, count in used.items())


def _space(problem: AgenticProblem, configs: list[_Config]) -> RlSpace:
    """The configurations in the form that `FullPricing` reads; of their groups it has the first alone."""
    curves = problem.curves
    pools = [pool.name for pool in curves.pools]
    gpus_CP = np.zeros((len(configs), len(pools)), np.int64)
    bound_CB = np.zeros((len(configs), len(problem.batches)))
    known: dict[tuple[GenerationGroup, ...], list[float]] = {}
    for index, config in enumerate(configs):
        for group in config.groups:
            gpus_CP[index, pools.index(group.option.pool)] += group.gpus
        if config.groups not in known:
            known[config.groups] = [mixed_bound_s(batch, config.groups) for batch in problem.batches]
        bound_CB[index] = known[config.groups]
    none = np.zeros(0, np.int64)
    table = TrainingTable.of(training_choices(curves), pools)
    size_P = np.array([pool.gpus for pool in curves.pools], np.int64)
    usd_P = np.array([pool.usd_per_gpu_hour for pool in curves.pools], float)
    place_of = {group: place for place, group in enumerate(dict.fromkeys(config.groups[0] for config in configs))}
    first = np.array([place_of[config.groups[0]] for config in configs], np.int64)
    alone = np.full(len(configs), NO_GROUP)
    return RlSpace(
        curves,
        groups=tuple(place_of),
        queues_QB=[],
        first_C=first,
        second_C=none,
        fraction_C=none,
        threshold_C=alone,
        kept_C=none,
        late_C=alone,
        policy_C=alone,
        serving_C=np.zeros(len(configs), np.int64),
        gpus_CP=gpus_CP,
        generation_bound_CB=bound_CB,
        table=table,
        size_P=size_P,
        usd_P=usd_P,
        service_sets=((),),
        mixes_C=[config.groups for config in configs],
    )


def mixed_bound_s(batch: Trajectories, groups: tuple[GenerationGroup, ...]) -> float:
    """No rollout on these workers, with or without moves, ends before this, seconds.

    (1) A trajectory takes the sum of its turns, each alone on the worker that is fastest for it, and its tool calls.
    (2) For weights y_w >= 0 of the workers with sum 1, the end is at least sum_w y_w busy_w, hence at least the sum
    over turns of min_w y_w c_w, c_w what a turn adds to worker w with its steps shared by max_running sequences.
    """
    turn_of_T = np.repeat(np.arange(batch.size), np.diff(batch.first_N))
    before_T = np.cumsum(batch.output_T + batch.observation_T) - batch.output_T - batch.observation_T
    start_T = batch.prompt_N[turn_of_T] + before_T - before_T[batch.first_N[:-1]][turn_of_T]
    output = batch.output_T.astype(float)
    is_last_T = np.zeros(len(output), bool)
    is_last_T[batch.first_N[1:] - 1] = True
    is_first_T = np.zeros(len(output), bool)
    is_first_T[batch.first_N[:-1]] = True
    fresh_T = np.where(is_first_T, batch.prompt_N[turn_of_T], np.append(0, batch.observation_T[:-1]))
    context_T = output * start_T + output * (output - 1) / 2
    alone, shared = [], []
    for group in groups:
        curve = group.option.curve
        own = fresh_T / curve.prefill_tokens_per_s + output * curve.sequence_s + curve.token_s * context_T
        alone.append(own + output * curve.step_s)
        shared.append(own + output * curve.step_s / curve.max_running)
    tools_T = np.where(is_last_T, 0.0, batch.tool_s_T)
    longest = np.bincount(turn_of_T, np.min(alone, axis=0) + tools_T).max()
    speed = np.array([1 / busy_s.sum() for busy_s in shared])
    weight = speed / sum(group.replicas * rate for group, rate in zip(groups, speed, strict=True))
    busy = np.min([share * busy_s for share, busy_s in zip(weight, shared, strict=True)], axis=0).sum()
    return float(max(longest, busy)) * SLACK


class _Rollouts:
    """Rollouts of configurations, and the assignments found on the way."""

    def __init__(self, problem: AgenticProblem, configs: list[_Config]) -> None:
        self._problem, self._configs = problem, configs
        self._tokens_BK = token_parts(problem)
        self._assignments: dict[tuple[int, Priority, float], Assignments] = {}
        self._found: dict[int, list[Assigned]] = {}
        self.unproven: list[int] = []

    def rollout(self, index: int) -> Rollout:
        """The rollout of a configuration over all batches."""
        config = self._configs[index]
        ends = [self._end_s(index, config, batch) for batch in range(len(self._problem.batches))]
        return Rollout(np.array(ends), self._tokens_BK, np.zeros((0, 0)))

    def assignment(self, index: int) -> tuple[tuple[int, ...], ...]:
        """Workers by batch and trajectory of a configuration that was simulated; empty where it has a shared queue."""
        return tuple(assigned.worker_N for assigned in self._found.get(index, []))

    def _end_s(self, index: int, config: _Config, batch_index: int) -> float:
        batch = self._problem.batches[batch_index]
        policy = policy_of(self._problem, config.priority, config.move_threshold)
        if config.dispatch == "assigned":
            key = (batch_index, config.priority, config.move_threshold)
            if key not in self._assignments:
                self._assignments[key] = Assignments(batch, predicted_N(batch), policy)
            assigned = self._assignments[key].best(config.curves)
            self._found.setdefault(index, []).append(assigned)
            if not assigned.proven and index not in self.unproven:
                self.unproven.append(index)
            return assigned.end_s
        of_worker, queues = queues_for(config.dispatch, batch, len(config.curves), ())
        workers = tuple(RolloutWorker(curve, queue) for curve, queue in zip(config.curves, of_worker, strict=True))
        return simulate(workers, batch, queues, policy).end_s

"""Prices all plans of one generation configuration at once: lower bounds before its rollout, exact values after.

Array suffixes: B batches, C configurations, M modes, T training choices. A price row [M, T] holds the objective, and
infinity where a plan is not feasible.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from planner.arrays import Bools, Floats, Ints
from planner.rl.evaluate import SECONDS_PER_HOUR
from planner.rl.plan import RlMode
from planner.rl.problem import RlProblem
from planner.rl.search.bounds import SLACK, work_bound_s
from planner.rl.search.space import NO_GROUP, RlSpace
from planner.rl.services import learner_of
from planner.rl.training import Rollout, TrainingTable, iteration_s, minibatch_s


class Pricing(Protocol):
    """What the search asks; `quick_C` is a bound on all plans of each configuration, from arrays alone."""

    quick_C: Floats
    generation_C: Floats  # what no mean rollout is shorter than, seconds
    total: int  # plans in the space

    def bound_MT(self, config: int) -> Floats:
        """A lower bound on every plan of a configuration."""

    def exact_MT(self, config: int, rollout: Rollout) -> Floats:
        """Every plan of a configuration."""


class GenerationPricing:
    """Only generation is planned: one mode, no training, [1, 1] rows."""

    def __init__(self, space: RlSpace) -> None:
        problem = space.problem
        self._cap = _cap(space)
        self._priced = problem.objective == "cost_per_iter"
        self._usd_C = space.gpus_CP @ space.usd_P / SECONDS_PER_HOUR
        self.total = len(space.first_C)
        self.plans_C: Ints = np.ones(self.total, np.int64)
        self.generation_C: Floats = space.generation_bound_CB.mean(axis=1)
        mean_C = self.generation_C
        possible_C = (mean_C <= self._cap) & space.alone_C
        self.quick_C: Floats = np.where(possible_C, self._objective(mean_C, self._usd_C), np.inf)

    def _objective(self, time_s: Floats, usd_per_s: Floats) -> Floats:
        return time_s * usd_per_s if self._priced else time_s

    def bound_MT(self, config: int) -> Floats:
        return np.array([[self.quick_C[config]]])

    def exact_MT(self, config: int, rollout: Rollout) -> Floats:
        time_s = np.array([[rollout.generation_s_B.mean()]])
        return np.where(time_s <= self._cap, self._objective(time_s, self._usd_C[config : config + 1]), np.inf)


class FullPricing:
    """Generation, training and how they overlap."""

    def __init__(self, space: RlSpace) -> None:
        self._space = space
        self._problem = problem = space.problem
        self._cap = _cap(space)
        self._scored = _Trainings.of(space.table, problem)
        self._unscored = _Trainings.of(space.table.unscored(), problem) if len(problem.scoring) else self._scored
        self._learners = _learners(space)
        self._fused_C = space.fused_C
        self._usable: dict[tuple[int, RlMode], Bools] = {}
        asleep_C = space.asleep.bytes_C if any(mode.keeps for mode in problem.modes) else np.zeros(len(space.first_C))
        steady_C = np.zeros(len(space.first_C), bool)  # those for whom no weights come in flight
        if any(mode.in_flight for mode in problem.modes):
            steady_C = (space.second_C != NO_GROUP) | (space.threshold_C != NO_GROUP)
        alike = [space.gpus_CP, self._fused_C, space.serving_C, np.asarray(asleep_C, np.int64), steady_C]
        if space.node_P.any():
            alike.append(space.broken_CP)
        if space.layouts.straddles:
            alike.append(space.layouts.kind_C)
        alike_C = np.column_stack(alike)
        _, config_K, kind_C = np.unique(alike_C, axis=0, return_index=True, return_inverse=True)
        self._kind_C: Ints = kind_C.ravel()
        plans_K = [
            sum(int(self._usable_T(config, mode).sum()) for mode in problem.modes) for config in config_K.tolist()
        ]
        self.plans_C: Ints = np.array(plans_K, np.int64)[self._kind_C]
        self.total = int(self.plans_C.sum())
        self.generation_C: Floats = space.generation_bound_CB.mean(axis=1)
        self.quick_C: Floats = np.min([self._quick_C(mode) for mode in problem.modes], axis=0)

    def _usable_T(self, config: int, mode: RlMode) -> Bools:
        key = (int(self._kind_C[config]), mode)
        if key not in self._usable:
            self._usable[key] = self._space.usable_T(config, mode)
        return self._usable[key]

    def _quick_C(self, mode: RlMode) -> Floats:
        """The cheapest training of all and the cheapest handover, whether or not they fit beside a configuration."""
        space, problem = self._space, self._problem
        if not len(space.table.choices):
            return np.full(len(space.first_C), np.inf)
        least = self._scored.whole_TB.mean(axis=1).min(), self._unscored.whole_TB.mean(axis=1).min()
        learned_S = np.array([least_TB.mean() for least_TB, _ in self._learners])
        training = np.maximum(np.where(self._fused_C, least[1], least[0]), learned_S[space.serving_C])
        training = training + space.handed_s_SB.mean(axis=1)[space.serving_C]
        turns = problem.switch_s + space.table.offload_s_T.min()
        sync = min(problem.weight_sync_s.values(), default=0.0)
        handover = {"colocated": turns, "disaggregated": sync, "hybrid": turns + sync}[mode.placement]
        mean_C = space.busy_s_C if mode.in_flight else space.generation_bound_CB.mean(axis=1)
        if mode.sync == "sync":
            time_C = space.scored_bound_CB.mean(axis=1) + training + handover
        else:
            hidden = problem.weight_sync_overlapped or mode.sync == "k_step_async"
            time_C = np.maximum(mean_C, training) + (0.0 if hidden else handover)
            serving_s_S = space.flowing_s_S if mode.in_flight else space.serving_s_S
            time_C = np.maximum(time_C, serving_s_S[space.serving_C])
        usd_C = space.gpus_CP @ space.usd_P + space.serving_usd_S[space.serving_C]
        if mode.placement == "disaggregated":
            usd_C = usd_C + (space.table.gpus_T * space.usd_P[space.table.pool_T]).min()
        priced_C = time_C * usd_C / SECONDS_PER_HOUR if problem.objective == "cost_per_iter" else time_C
        return np.where(time_C <= self._cap, priced_C * SLACK, np.inf)

    def bound_MT(self, config: int) -> Floats:
        generation_B = self._space.generation_bound_CB[config]
        return self._rows(config, lambda mode: self._bound_s_T(config, mode, generation_B))

    def exact_MT(self, config: int, rollout: Rollout) -> Floats:
        learner = learner_of(self._space.services_of(config))
        work = minibatch_s(self._trainings(config).table, rollout.tokens_BK, learner)
        overlapped = self._problem.weight_sync_overlapped

        def time_s_T(mode: RlMode) -> Floats:
            most = self._problem.max_staleness
            if not rollout.possible or (most is not None and mode.staleness + rollout.oldest > most):
                return np.full(len(self._space.table.choices), np.inf)
            return iteration_s(mode, rollout, work, self._space.handover_s_T(config, mode), overlapped=overlapped)

        return self._rows(config, time_s_T)

    def _rows(self, config: int, time_s_T: Callable[[RlMode], Floats]) -> Floats:
        """Times by mode turned into the objective [M, T]; modes that go with no training are not asked for."""
        none = np.full(len(self._space.table.choices), np.inf)
        return np.stack(
            [
                self._row(config, mode, time_s_T(mode)) if self._usable_T(config, mode).any() else none
                for mode in self._problem.modes
            ]
        )

    def _trainings(self, config: int) -> "_Trainings":
        return self._unscored if self._fused_C[config] else self._scored

    def _bound_s_T(self, config: int, mode: RlMode, generation_B: Floats) -> Floats:
        handover, trainings = self._space.handover_s_T(config, mode), self._trainings(config)
        scored_B, serving = self._space.scored_bound_CB[config], int(self._space.serving_C[config])
        handed_B = self._space.handed_s_SB[serving]
        learned = self._learners[serving]
        whole_TB, part_TB = np.maximum(trainings.whole_TB, learned[0]), np.maximum(trainings.part_TB, learned[1])
        if mode.sync == "stream_sync":
            ended_TB = np.maximum(whole_TB, scored_B + part_TB) + handed_B
            return np.asarray(ended_TB.mean(axis=1) + handover)
        overlapped = self._problem.weight_sync_overlapped
        if mode.in_flight:
            exposed = np.zeros_like(handover) if overlapped else handover
            trained = (whole_TB + handed_B).mean(axis=1)
            least_T = np.maximum(self._space.busy_s_C[config], trained) + exposed
            return np.asarray(np.maximum(least_T, self._space.flowing_s_S[serving]) * SLACK)
        none, serving_s = np.zeros((0, 0)), float(self._space.serving_s_S[serving])
        least = Rollout(generation_B, none, none, scored_s_B=scored_B, serving_s=serving_s, handed_s_B=handed_B)
        return iteration_s(mode, least, whole_TB[:, :, None], handover, overlapped=overlapped) * SLACK

    def _row(self, config: int, mode: RlMode, time_T: Floats) -> Floats:
        ok = self._usable_T(config, mode) & (time_T <= self._cap)
        priced = self._problem.objective == "cost_per_iter"
        return np.where(ok, time_T * self._space.usd_per_s_T(config, mode) if priced else time_T, np.inf)


@dataclass(frozen=True, slots=True, eq=False)
class _Trainings:
    """Training choices, and what no rollout can make them undercut: the whole of an iteration, its last minibatch."""

    table: TrainingTable
    whole_TB: Floats
    part_TB: Floats

    @classmethod
    def of(cls, table: TrainingTable, problem: RlProblem) -> "_Trainings":
        samples, parts = problem.trained_samples, problem.minibatches
        works = [work_bound_s(table, [batch], samples, parts) for batch in problem.batches]
        if problem.partial:
            works = [work_bound_s(table, problem.batches, samples, parts)] * len(problem.batches)
        return cls(
            table, np.stack([whole for whole, _ in works], axis=1), np.stack([part for _, part in works], axis=1)
        )


def _learners(space: RlSpace) -> list[tuple[Floats, Floats]]:
    """What a critic on GPUs of its own undercuts in no iteration, and no last minibatch [1, B], by set of services."""
    none = np.zeros((1, len(space.problem.batches)))
    bounds = []
    for services in space.service_sets:
        learner = learner_of(services)
        least = None if learner is None else _Trainings.of(TrainingTable.of_learner(learner), space.problem)
        bounds.append((none, none) if least is None else (least.whole_TB, least.part_TB))
    return bounds


def _cap(space: RlSpace) -> float:
    return space.problem.max_iteration_s if space.problem.max_iteration_s is not None else np.inf


def pricing_of(space: RlSpace) -> FullPricing | GenerationPricing:
    """How plans of the problem of `space` are priced."""
    return FullPricing(space) if space.problem.training else GenerationPricing(space)

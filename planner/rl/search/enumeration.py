"""Every configuration of an RL problem: groups, tails, fusion, late replicas, policies and services.

Array suffixes: G groups (a replica kind and a count), C configurations (one group or two), P pools, B batches, S sets
of services, Q queues.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from planner.arrays import Bools, Floats, Ints
from planner.rl.generation import group_queues, queue_order
from planner.rl.plan import GenerationGroup
from planner.rl.problem import RlProblem
from planner.rl.search.rollout_bounds import pair_bound_s, queue_bounds_s
from planner.rl.search.space import NO_GROUP, RlSpace
from planner.rl.search.trainings import training_choices
from planner.rl.services import (
    Services,
    service_sets,
)
from planner.rl.training import TrainingTable


class Columns(NamedTuple):
    """Configurations, an array [C] a field; as in `RlSpace`."""

    first: Ints
    second: Ints
    fraction: Ints
    threshold: Ints
    kept: Ints
    ending: Ints
    policy: Ints

    @classmethod
    def of(
        cls,
        first: Ints,
        second: int | Ints = NO_GROUP,
        fraction: int | Ints = NO_GROUP,
        threshold: int | Ints = NO_GROUP,
        kept: int | Ints = NO_GROUP,
        ending: int | Ints = NO_GROUP,
    ) -> "Columns":
        """Those of groups `first` with what else they have, and no policy."""
        columns = np.broadcast_arrays(first, second, fraction, threshold, kept, ending, NO_GROUP)
        return cls(*(np.asarray(column, np.int64) for column in columns))

    @property
    def fuses(self) -> Bools:
        """Those that score beside their last samples."""
        return np.asarray((self.threshold != NO_GROUP) & (self.ending == NO_GROUP))

    def times(self, number: int) -> "Columns":
        """All of them over and over, so many times."""
        return Columns(*(np.tile(column, number) for column in self))

    def with_policies(self, number: int) -> "Columns":
        """Each configuration under each of so many policies; as they are where there are none."""
        if not number:
            return self
        return self.times(number)._replace(policy=np.repeat(np.arange(number), len(self.first)))


def build_space(problem: RlProblem) -> RlSpace:
    """The space of `problem`; groups whose replicas cannot hold their longest sample are left out."""
    pools = [pool.name for pool in problem.pools]
    size_P = np.array([pool.gpus for pool in problem.pools], np.int64)
    groups = tuple(
        GenerationGroup(option, count)
        for option in problem.generation
        for count in range(1, problem.pool_of[option.pool].gpus // option.gpus + 1)
        if problem.pool_of[option.pool].may_hold(count * option.gpus, option.gpus)
    )
    gpus_GP = np.zeros((len(groups), len(pools)), np.int64)
    for index, group in enumerate(groups):
        gpus_GP[index, pools.index(group.option.pool)] = group.gpus
    queues = _queues(problem)
    bound_QGB = np.stack([queue_bounds_s(problem, groups, queues_B) for queues_B in queues])
    sets = service_sets(problem.services, problem.training)
    plain = _configurations(problem, gpus_GP, size_P, bound_QGB).with_policies(len(problem.policies))
    fused, fused_bound_SGB = _fusions(problem, groups, queues[0], sets)
    late, late_bound_CB = _lates(problem, groups, queues[0])
    columns = Columns(*(np.concatenate(parts) for parts in zip(plain, fused, late, strict=True)))
    bound_CB = _bounds(columns, bound_QGB)
    bound_CB[columns.ending != NO_GROUP] = late_bound_CB
    bound_SCB = np.repeat(bound_CB[None], len(sets), axis=0)
    bound_SCB[:, columns.fuses] = fused_bound_SGB[:, columns.first[columns.fuses]]
    none_P = np.zeros((1, len(pools)), np.int64)  # the last is no group
    gpus_CP = gpus_GP[columns.first] + np.concatenate([gpus_GP, none_P])[columns.second]
    every = columns.times(len(sets))
    return RlSpace(
        problem,
        groups,
        queues,
        every.first,
        every.second,
        every.fraction,
        every.threshold,
        every.kept,
        every.ending,
        every.policy,
        serving_C=np.repeat(np.arange(len(sets)), len(columns.first)),
        gpus_CP=np.tile(gpus_CP, (len(sets), 1)),
        generation_bound_CB=bound_SCB.reshape(-1, bound_CB.shape[1]),
        table=TrainingTable.of(training_choices(problem), pools, problem.bubbles),
        size_P=size_P,
        usd_P=np.array([pool.usd_per_gpu_hour for pool in problem.pools], float),
        service_sets=sets,
    )


def _queues(problem: RlProblem) -> list[list[Ints]]:
    queues = [[queue_order(batch, problem.dispatch) for batch in problem.batches]]
    if problem.max_groups > 1:
        for fraction in problem.tail_fractions:
            parts = [group_queues(batch, problem.dispatch, fraction) for batch in problem.batches]
            queues += [[main for main, _ in parts], [tail for _, tail in parts]]
    return queues


def _bounds(columns: Columns, bound_QGB: Floats) -> Floats:
    """Seconds [C, B] of one group with the whole queue, and of two with their parts of it."""
    bound_CB = bound_QGB[0, columns.first]
    both = columns.second != NO_GROUP
    main, tail, fraction = columns.first[both], columns.second[both], columns.fraction[both]
    bound_CB[both] = np.maximum(bound_QGB[1 + 2 * fraction, main], bound_QGB[2 + 2 * fraction, tail])
    return np.asarray(bound_CB)


def _lates(problem: RlProblem, groups: tuple[GenerationGroup, ...], queues_B: list[Ints]) -> tuple[Columns, Floats]:
    """Pairs of groups of the same GPUs, one after the other, with every threshold; and their bounds [C, B].

    Whatever is generated by which, no rollout is shorter than with the better of both in every respect.
    """
    rows, bounds = [], []
    pairs = [
        (early, late)
        for early, group in enumerate(groups)
        for late, other in enumerate(groups)
        if early != late and (group.option.pool, group.gpus) == (other.option.pool, other.gpus)
    ]
    for early, late in pairs if problem.late_thresholds and problem.samples is None else ():
        bound_B = pair_bound_s(problem, groups[early], groups[late], queues_B)
        if not np.isfinite(bound_B).all():
            continue
        for threshold in range(len(problem.late_thresholds)):
            rows.append((early, threshold, late))
            bounds.append(bound_B)
    early_C, threshold_C, late_C = np.array(rows, np.int64).reshape(-1, 3).T
    return Columns.of(early_C, threshold=threshold_C, ending=late_C), np.array(bounds).reshape(-1, len(queues_B))


def _fusions(
    problem: RlProblem, groups: tuple[GenerationGroup, ...], queues_B: list[Ints], sets: Sequence[Services]
) -> tuple[Columns, Floats]:
    """One group each, with every threshold and every number of replicas kept; and the bounds of groups [S, G, B]."""
    takes_turns = any(mode.placement != "disaggregated" for mode in problem.modes)
    if not problem.fusion_thresholds or not takes_turns or problem.samples is not None or not sets:
        return Columns.of(np.zeros(0, np.int64)), np.full((len(sets), len(groups), len(queues_B)), np.inf)
    bound_SGB = np.stack([queue_bounds_s(problem, groups, queues_B, services) for services in sets])
    rows = [
        (group, threshold, kept)
        for group in np.flatnonzero(np.isfinite(bound_SGB).all(axis=2).any(axis=0)).tolist()
        for threshold in range(len(problem.fusion_thresholds))
        for kept in range(1, groups[group].replicas)
    ]
    group_C, threshold_C, kept_C = np.array(rows, np.int64).reshape(-1, 3).T
    return Columns.of(group_C, threshold=threshold_C, kept=kept_C), bound_SGB


def _configurations(problem: RlProblem, gpus_GP: Ints, size_P: Ints, bound_QGB: Floats) -> Columns:
    """One group each; and two groups that leave less than one largest replica idle in the pools they use."""
    fits = np.flatnonzero(np.isfinite(bound_QGB[0]).all(axis=1))
    first, second, fraction = [fits], [np.full(len(fits), NO_GROUP)], [np.full(len(fits), NO_GROUP)]
    if problem.max_groups > 1:
        largest = max(option.gpus for option in problem.generation)
        idle = size_P - (gpus_GP[:, None] + gpus_GP[None])
        untouched = (gpus_GP[:, None] + gpus_GP[None]) == 0
        full = (idle >= 0).all(axis=2) & ((idle < largest) | untouched).all(axis=2)
        for index in range(len(problem.tail_fractions)):
            main, tail = (np.isfinite(bound_QGB[side + 2 * index]).all(axis=1) for side in (1, 2))
            main_group, tail_group = np.nonzero(full & main[:, None] & tail[None])
            first.append(main_group)
            second.append(tail_group)
            fraction.append(np.full(len(main_group), index))
    return Columns.of(np.concatenate(first), np.concatenate(second), np.concatenate(fraction))

"""The RL search space as columns: generation configurations, training choices, and combinations allowed.

Array suffixes: G groups (a replica kind and a count), C configurations (one group or two), P pools, B batches, T
training choices, Q queues.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from planner.arrays import Bools, Floats, Ints
from planner.rl.curves import GenerationOption
from planner.rl.evaluate import SECONDS_PER_HOUR, hourly_usd, weight_sync_s
from planner.rl.in_flight import mean_busy_s
from planner.rl.layout.roles import role_shapes
from planner.rl.layout.trainings import Layouts, TrainingShapes, straddles_somewhere
from planner.rl.plan import Fusion, GenerationGroup, LateReplicas, RlMode
from planner.rl.problem import RlProblem
from planner.rl.rollouts.rollout import RolloutPolicy
from planner.rl.services import (
    Services,
    apart,
    bound_s,
    busy_s,
    carried_bound_s,
    charged_gpus,
    flowing_busy_s,
    gpus_of_services,
    handed_bound_s,
    service_roles,
)
from planner.rl.training import TrainingTable

NO_GROUP = -1


@dataclass(frozen=True, slots=True, eq=False)
class Asleep:
    """Weights of engines that are on the host while training is in turn: both moves, and bytes there for a GPU."""

    moved_s_C: Floats
    bytes_C: Floats


@dataclass(frozen=True, eq=False)
class RlSpace:
    """`queues_QB` are samples in order; queue 0 is all of them, queues 1 + 2 f and 2 + 2 f those of fraction f."""

    problem: RlProblem
    groups: tuple[GenerationGroup, ...]
    queues_QB: list[list[Ints]]
    first_C: Ints
    second_C: Ints
    fraction_C: Ints  # index, NO_GROUP with one group
    threshold_C: Ints  # index of a threshold of fusion, or of other replicas late; NO_GROUP without
    kept_C: Ints
    late_C: Ints  # group that ends the rollout, NO_GROUP without
    policy_C: Ints  # index, NO_GROUP where there are none
    serving_C: Ints  # index of a set of services
    gpus_CP: Ints  # that generate
    generation_bound_CB: Floats
    table: TrainingTable
    size_P: Ints
    usd_P: Floats
    service_sets: tuple[Services, ...]
    mixes_C: Sequence[tuple[GenerationGroup, ...]] = ()  # groups of each, where `first_C` has but the first of them
    known_sync_s_P: dict[bytes, Floats] = field(default_factory=dict)

    @cached_property
    def busy_s_C(self) -> Floats:
        """No iteration of a configuration whose samples flow is shorter: its first replicas are busy for so long."""
        busy_s_O: dict[GenerationOption, float] = {}
        for group in self.groups:
            if group.option not in busy_s_O:
                busy_s_O[group.option] = mean_busy_s(self.problem.batches, group.option.curve)
        return np.array([busy_s_O[group.option] / group.replicas for group in self.groups])[self.first_C]

    @cached_property
    def host_bytes_P(self) -> Floats:
        """Host memory of each pool for each of its GPUs."""
        return np.array([pool.host_bytes for pool in self.problem.pools], float)

    @cached_property
    def node_P(self) -> Ints:
        """GPUs of a node of each pool where roles take whole nodes, 0 where they may take any number."""
        return np.array([pool.whole_node_gpus for pool in self.problem.pools], np.int64)

    @cached_property
    def broken_CP(self) -> Bools:
        """Pools in which a group of a configuration does not fill its nodes."""
        if self.mixes_C:
            of_mix = {mix: self._broken_P(map(_role, mix)) for mix in dict.fromkeys(self.mixes_C)}
            return np.array([of_mix[mix] for mix in self.mixes_C], bool)
        roles = [*([_role(group)] for group in self.groups), []]  # the last is no group
        broken_GP = np.array([self._broken_P(role) for role in roles], bool)
        return np.asarray(broken_GP[self.first_C] | broken_GP[self.second_C])

    @property
    def alone_C(self) -> Bools:
        """Configurations that may stand alone: groups fill their nodes or lie on one, and straddle no domain."""
        whole_C = np.asarray((~self.broken_CP | (self.gpus_CP <= self.node_P)).all(axis=1))
        return whole_C & self.layouts.alone_C if self.layouts.straddles else whole_C

    @cached_property
    def layouts(self) -> Layouts:
        """Where roles lie, for the rule on tensor-parallel groups."""
        straddles, table = straddles_somewhere(self.problem), self.table
        configs = range(len(self.first_C)) if straddles else ()
        shapes_C = [role_shapes(self.groups_of(config), self.late_of(config)) for config in configs]
        width_T = np.array([choice.option.tp for choice in table.choices], np.int64)
        beside_T = np.array([choice.option.widest for choice in table.choices], np.int64)
        shapes = TrainingShapes(table.pool_T, table.gpus_T, width_T, np.maximum(width_T, beside_T))
        return Layouts(self.problem, straddles, shapes_C, shapes)

    @cached_property
    def broken_SP(self) -> Bools:
        """Pools in which a service of each set does not fill its nodes."""
        return np.array([self._broken_P(service_roles(chosen)) for chosen in self.service_sets], bool)

    @cached_property
    def broken_TP(self) -> Bools:
        """Pools in which each training does not fill its nodes."""
        return np.array([self._broken_P([(choice.option.pool, choice.gpus, choice.option.tp)])
                         for choice in self.table.choices], bool)  # fmt: skip

    def _broken_P(self, roles: Iterable[tuple[str, int, int]]) -> list[bool]:
        pools = self.problem.pool_of
        broken = {name for name, gpus, replica in roles if not pools[name].fills_nodes(gpus, replica)}
        return [name in broken for name in pools]

    @cached_property
    def serving_gpus_SP(self) -> Ints:
        """GPUs that each set of services takes."""
        return np.array([[gpus_of_services(chosen).get(pool.name, 0) for pool in self.problem.pools]
                         for chosen in self.service_sets], np.int64)  # fmt: skip

    @cached_property
    def serving_usd_S(self) -> Floats:
        """Dollars an hour of each set of services."""
        return np.array([hourly_usd(self.problem, charged_gpus(chosen)) for chosen in self.service_sets])

    @cached_property
    def serving_s_S(self) -> Floats:
        """Seconds of the busiest servers of each set for a mean batch; none where rollouts end with their scores."""
        batches = self.problem.batches
        if self.problem.partial:
            return np.zeros(len(self.service_sets))
        return np.array([sum(busy_s(chosen, batch.tokens_N) for batch in batches) / len(batches)
                         for chosen in self.service_sets])  # fmt: skip

    @cached_property
    def flowing_s_S(self) -> Floats:
        """The same where samples flow."""
        return np.array([flowing_busy_s(chosen, self.problem.batches) for chosen in self.service_sets])

    @cached_property
    def handed_s_SB(self) -> Floats:
        """Seconds for which training waits for each set of services before it takes up a batch, at least."""
        needed, count = self.problem.trained_samples, len(self.problem.batches)
        tokens = [batch.tokens_N for batch in self.problem.batches]
        if self.problem.partial:
            joint = np.concatenate(tokens)
            mean_s = [handed_bound_s(chosen, joint, needed, count) for chosen in self.service_sets]
            return np.repeat(np.array(mean_s)[:, None], count, axis=1)
        return np.array([[handed_bound_s(chosen, tokens_N, needed) for tokens_N in tokens]
                         for chosen in self.service_sets])  # fmt: skip

    @cached_property
    def apart_ST(self) -> Bools:
        """Trainings that leave to others what each set of services scores."""
        names = [choice.option.apart for choice in self.table.choices]
        return np.array([[apart(chosen) == name for name in names] for chosen in self.service_sets], bool)

    @cached_property
    def scored_bound_CB(self) -> Floats:
        """No batch of a configuration is scored by its services sooner."""
        bound_CB, fused_C = self.generation_bound_CB.copy(), self.fused_C
        for index, chosen in enumerate(self.service_sets):
            own_C = self.serving_C == index
            if self.problem.partial:
                least_s = carried_bound_s(chosen, self.problem.batches, self.problem.trained_samples)
                bound_CB[own_C] = np.maximum(bound_CB[own_C], least_s)
                continue
            for column, batch in enumerate(self.problem.batches):
                needed, plain_C = self.problem.trained_samples, own_C & ~fused_C
                bound_CB[plain_C, column] = bound_s(chosen, batch, needed, bound_CB[plain_C, column])
                least_s = busy_s(chosen, np.sort(batch.tokens_N)[:needed])  # while others score on free replicas
                bound_CB[own_C, column] = np.maximum(bound_CB[own_C, column], least_s)
        return bound_CB

    @cached_property
    def asleep(self) -> "Asleep":
        """Engines of each configuration that sleep with their weights on the host."""
        seconds_G = np.array([0.0, *(group.option.sleep_s for group in self.groups)])
        bytes_G = np.array([0.0, *(group.option.host_bytes for group in self.groups)])
        early = np.maximum(seconds_G[self.first_C + 1], seconds_G[self.second_C + 1])
        held = np.maximum(bytes_G[self.first_C + 1], bytes_G[self.second_C + 1])
        return Asleep(np.maximum(early, seconds_G[self.late_C + 1]), held)

    def services_of(self, config: int) -> Services:
        """Services that score the samples of a configuration."""
        return self.service_sets[int(self.serving_C[config])]

    def queues_of(self, config: int) -> list[tuple[int, int]]:
        """(queue, group) of a configuration."""
        first, second, fraction = (int(column[config]) for column in (self.first_C, self.second_C, self.fraction_C))
        return [(0, first)] if second == NO_GROUP else [(1 + 2 * fraction, first), (2 + 2 * fraction, second)]

    def fusion_of(self, config: int) -> Fusion | None:
        """How a configuration scores beside its last samples."""
        if self.threshold_C[config] == NO_GROUP or self.late_C[config] != NO_GROUP:
            return None
        return Fusion(self.problem.fusion_thresholds[int(self.threshold_C[config])], int(self.kept_C[config]))

    def late_of(self, config: int) -> LateReplicas | None:
        """Which replicas end the rollout of a configuration, and from when on."""
        if self.late_C[config] == NO_GROUP:
            return None
        threshold = self.problem.late_thresholds[int(self.threshold_C[config])]
        return LateReplicas(threshold, self.groups[int(self.late_C[config])])

    def policy_of(self, config: int) -> RolloutPolicy | None:
        """How samples of a configuration wait and move."""
        policy = int(self.policy_C[config])
        return self.problem.policies[policy] if policy != NO_GROUP else None

    @property
    def fused_C(self) -> Bools:
        """Configurations that score beside their last samples."""
        return np.asarray((self.threshold_C != NO_GROUP) & (self.late_C == NO_GROUP))

    def groups_of(self, config: int) -> tuple[GenerationGroup, ...]:
        """Groups that a configuration begins a rollout with."""
        if self.mixes_C:
            return self.mixes_C[config]
        return tuple(self.groups[group] for _, group in self.queues_of(config))

    def usable_T(self, config: int, mode: RlMode) -> Bools:
        """Training choices that have the GPUs and the network to go with a configuration in a mode."""
        used, table, serving = self.gpus_CP[config], self.table, int(self.serving_C[config])
        left_P, suits_T = self.size_P - self.serving_gpus_SP[serving], self.apart_ST[serving]
        suits_T = suits_T & self._on_nodes_T(config, mode)
        if self.layouts.straddles:
            suits_T = suits_T & self.layouts.whole_T(config, self.services_of(config), mode)
        scores = np.isfinite(self.generation_bound_CB[config]).all() and mode.placement != "disaggregated"
        if (self.fusion_of(config) is not None and not scores) or (used > left_P).any():
            return np.zeros(len(table.choices), bool)
        if mode.in_flight and (self.second_C[config] != NO_GROUP or self.threshold_C[config] != NO_GROUP):
            return np.zeros(len(table.choices), bool)
        if mode.placement != "disaggregated":
            asleep_bytes = self.asleep.bytes_C[config] if mode.keeps else 0.0
            suits_T = suits_T & (table.host_bytes_T + asleep_bytes <= self.host_bytes_P[table.pool_T])
        if mode.placement == "colocated":
            pools = np.flatnonzero(used)
            same = (table.pool_T == pools[0]) & (table.gpus_T == used[pools[0]])
            return np.asarray(same & suits_T & (len(pools) == 1))
        if mode.placement == "disaggregated":
            fits = used[table.pool_T] + table.gpus_T <= left_P[table.pool_T]
        else:
            fits = table.gpus_T <= left_P[table.pool_T]
        return np.asarray(fits & suits_T & np.isfinite(self._sync_s_P(config))[table.pool_T])

    def _on_nodes_T(self, config: int, mode: RlMode) -> Bools:
        """Trainings with which, pool by pool, every role has whole nodes, or all lie on one."""
        table, serving = self.table, int(self.serving_C[config])
        if not self.node_P.any():
            return np.ones(len(table.choices), bool)
        trains_TP = np.zeros((len(table.choices), len(self.node_P)), np.int64)
        trains_TP[np.arange(len(table.choices)), table.pool_T] = table.gpus_T
        beside = np.add if mode.placement == "disaggregated" else np.maximum
        taken_TP = beside(self.gpus_CP[config], trains_TP) + self.serving_gpus_SP[serving]
        broken_TP = self.broken_TP | self.broken_CP[config] | self.broken_SP[serving]
        return np.asarray((~broken_TP | (taken_TP <= self.node_P)).all(axis=1))

    def _sync_s_P(self, config: int) -> Floats:
        """Seconds of sending weights from each training pool; infinite without a network. Kept by generating pools."""
        key = (self.gpus_CP[config] > 0).tobytes()
        if key not in self.known_sync_s_P:
            names = [pool.name for pool in self.problem.pools]
            generating = {names[used] for used in np.flatnonzero(self.gpus_CP[config])}
            sync_s = [weight_sync_s(self.problem, generating, name) for name in names]
            self.known_sync_s_P[key] = np.array([np.inf if seconds is None else seconds for seconds in sync_s])
        return self.known_sync_s_P[key]

    def handover_s_T(self, config: int, mode: RlMode) -> Floats:
        """Seconds between training and the next generation, as `evaluate.handover_s`."""
        turns = self.problem.switch_s + self.table.offload_s_T
        turns = turns + self.asleep.moved_s_C[config] if mode.keeps else turns
        if mode.placement == "colocated":
            return turns
        sync_P = self._sync_s_P(config)
        sync_T = np.where(np.isfinite(sync_P), sync_P, 0.0)[self.table.pool_T]
        return np.asarray(sync_T + (turns if mode.placement == "hybrid" else 0.0))

    def gpus_T(self, config: int, mode: int) -> Ints:
        """GPUs that plans take, those that roles share counted once; of the only plan where nothing trains. [T]"""
        used_P, trains_T = self.gpus_CP[config], self.table.gpus_T
        beside = int(used_P.sum() + self.serving_gpus_SP[self.serving_C[config]].sum())
        if not len(trains_T):
            return np.array([beside])
        if self.problem.modes[mode].placement != "disaggregated":
            trains_T = np.maximum(0, trains_T - used_P[self.table.pool_T])
        return np.asarray(beside + trains_T)

    def usd_per_s_T(self, config: int, mode: RlMode) -> Floats:
        """Dollars a second of all GPUs that a plan takes."""
        used, table = self.gpus_CP[config], self.table
        training = table.gpus_T
        if mode.placement != "disaggregated":
            training = np.maximum(0, table.gpus_T - used[table.pool_T])
        serving = self.serving_usd_S[self.serving_C[config]]
        return np.asarray((used @ self.usd_P + serving + training * self.usd_P[table.pool_T]) / SECONDS_PER_HOUR)


def _role(group: GenerationGroup) -> tuple[str, int, int]:
    """Pool, GPUs, and those of a replica."""
    return group.option.pool, group.gpus, group.option.gpus

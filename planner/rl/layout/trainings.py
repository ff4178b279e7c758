"""Which trainings lie beside the other roles of a plan so that no tensor-parallel group straddles scale-up domains.

The arrangement of `roles`, for all trainings at once. Array suffixes: C configurations, P pools, T training choices.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from planner.arrays import Bools, Ints
from planner.rl.curves import CurvePool
from planner.rl.layout.domains import may_straddle, whole_groups
from planner.rl.plan import GenerationGroup, LateReplicas, RlMode
from planner.rl.problem import RlProblem
from planner.rl.services import Services, service_roles


@dataclass(frozen=True, slots=True)
class RoleShape:
    """What its place depends on, of a role that generates or is served."""

    pool: str
    gpus: int
    widths: tuple[int, ...]
    served: bool = False


def role_shapes(groups: Sequence[GenerationGroup], late: LateReplicas | None) -> tuple[RoleShape, ...]:
    """Of groups of replicas, in their order."""
    changed = () if late is None else (late.group.option.tp,)
    return tuple(RoleShape(group.option.pool, group.gpus, (group.option.tp, *changed)) for group in groups)


def straddles_somewhere(problem: RlProblem) -> bool:
    """Whether some plan of a problem could have a group that straddles domains."""
    served = set(service_roles(problem.services))
    in_turn = any(mode.placement != "disaggregated" for mode in problem.modes)
    for pool in problem.pools:
        widths = {option.tp for option in problem.generation if option.pool == pool.name}
        widths |= {option.tp for option in problem.training if option.pool == pool.name}
        servers = {gpus for name, _, gpus in served if name == pool.name}
        if may_straddle(pool, widths if in_turn else widths | servers, servers if in_turn else ()):
            return True
    return False


@dataclass(frozen=True, slots=True, eq=False)
class TrainingShapes:
    """What the place of each training depends on; one without GPUs stands for none."""

    pool_T: Ints
    gpus_T: Ints
    width_T: Ints


@dataclass(frozen=True, eq=False)
class Layouts:
    """Of configurations beside trainings; `shapes_C` are there only where `straddles`."""

    problem: RlProblem
    straddles: bool  # some plan could have a group that straddles domains
    shapes_C: Sequence[tuple[RoleShape, ...]]
    trainings: TrainingShapes

    @cached_property
    def kinds(self) -> dict[tuple[RoleShape, ...], int]:
        """Number of each unlike configuration."""
        return {shapes: kind for kind, shapes in enumerate(dict.fromkeys(self.shapes_C))}

    @cached_property
    def kind_C(self) -> Ints:
        return np.array([self.kinds[shapes] for shapes in self.shapes_C], np.int64)

    @property
    def alone_C(self) -> Bools:
        """Configurations no group of which straddles domains with nothing beside them."""
        nothing, apart = TrainingShapes(*np.array([[0], [0], [1]], np.int64)), RlMode("disaggregated", "sync")
        whole_K = [lies_whole_T(self.problem.pools, shapes, nothing, apart)[0] for shapes in self.kinds]
        return np.array(whole_K, bool)[self.kind_C]

    def whole_T(self, config: int, services: Services, mode: RlMode) -> Bools:
        """Trainings with which no group of a role straddles domains."""
        served = [RoleShape(pool, gpus, (width,), served=True) for pool, gpus, width in service_roles(services)]
        return lies_whole_T(self.problem.pools, [*self.shapes_C[config], *served], self.trainings, mode)


def lies_whole_T(
    pools: Sequence[CurvePool], roles: Sequence[RoleShape], trainings: TrainingShapes, mode: RlMode
) -> Bools:
    """Trainings with which no group of any role straddles domains of its pool."""
    generating = {role.pool for role in roles if not role.served}
    shared_P = np.array([pool.name in generating and mode.placement != "disaggregated" for pool in pools], bool)
    turns_T = shared_P[trainings.pool_T]
    whole_T = np.ones(len(turns_T), bool)
    for place, pool in enumerate(pools):
        own = [role for role in roles if role.pool == pool.name]
        here_T = trainings.pool_T == place
        gpus_T, width_T = np.where(here_T, trainings.gpus_T, 0), np.where(here_T, trainings.width_T, 1)
        for turns in set(turns_T.tolist()) if pool.domains else ():
            beside = _in_turn_T if turns else _apart_T
            whole_T &= (turns_T != turns) | beside(pool, own, gpus_T, width_T)
    return whole_T


def _in_turn_T(pool: CurvePool, roles: Sequence[RoleShape], gpus_T: Ints, width_T: Ints) -> Bools:
    """Training on the first GPUs of the pool, servers after it and all that generate."""
    whole_T, first_T = _trained_T(pool, np.zeros_like(gpus_T), gpus_T, width_T), np.zeros_like(gpus_T)
    for role in sorted(roles, key=lambda role: (role.served, -max(role.widths))):
        first_T = np.maximum(first_T, gpus_T) if role.served else first_T
        whole_T &= _role_T(pool, role, first_T)
        first_T = first_T + role.gpus
    return whole_T


def _apart_T(pool: CurvePool, roles: Sequence[RoleShape], gpus_T: Ints, width_T: Ints) -> Bools:
    """Training among the others by its width: after generators of the same one, before servers of it."""
    whole_T, before, training_first_T = np.ones(len(gpus_T), bool), 0, np.zeros_like(gpus_T)
    for role in sorted(roles, key=lambda role: -max(role.widths)):
        widest = max(role.widths)
        after_training_T = (width_T > widest) | (role.served & (width_T == widest))
        whole_T &= _role_T(pool, role, before + np.where(after_training_T, gpus_T, 0))
        training_first_T = training_first_T + np.where(after_training_T, 0, role.gpus)
        before += role.gpus
    return whole_T & _trained_T(pool, training_first_T, gpus_T, width_T)


def _role_T(pool: CurvePool, role: RoleShape, first_T: Ints) -> Bools:
    gpus_T = np.full_like(first_T, role.gpus)
    return np.asarray(np.all([_whole_T(pool, width, first_T, gpus_T) for width in role.widths], axis=0))


def _trained_T(pool: CurvePool, first_T: Ints, gpus_T: Ints, width_T: Ints) -> Bools:
    whole_T = np.ones(len(gpus_T), bool)
    for width in np.unique(width_T).tolist():
        whole_T &= (width_T != width) | _whole_T(pool, width, first_T, gpus_T)
    return whole_T


def _whole_T(pool: CurvePool, width: int, first_T: Ints, gpus_T: Ints) -> Bools:
    """Whether groups of one width straddle nothing from their first GPUs on; beyond the pool none lies."""
    groups = whole_groups(pool, width)
    return np.asarray(groups[np.minimum(first_T, len(groups) - 1)] * width >= gpus_T)

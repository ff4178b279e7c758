"""Which trainings lie beside the other roles of a plan so that no tensor-parallel group straddles scale-up domains.

Array suffixes: C configurations, P pools, T training choices.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from planner.arrays import Bools, Ints
from planner.rl.curves import CurvePool
from planner.rl.layout.domains import may_straddle, whole_groups
from planner.rl.layout.roles import RoleShape, arranged_T, served_shapes
from planner.rl.plan import RlMode
from planner.rl.problem import RlProblem
from planner.rl.services import Services, service_roles


def straddles_somewhere(problem: RlProblem) -> bool:
    """Whether some plan of a problem could have a group that straddles domains."""
    served = set(service_roles(problem.services))
    in_turn = any(mode.placement != "disaggregated" for mode in problem.modes)
    for pool in problem.pools:
        widths = {option.tp for option in problem.generation if option.pool == pool.name}
        trained = [option for option in problem.training if option.pool == pool.name]
        widths |= {width for option in trained for width in (option.tp, option.widest)}
        servers = {gpus for name, _, gpus in served if name == pool.name}
        if may_straddle(pool, widths if in_turn else widths | servers, servers if in_turn else ()):
            return True
    return False


@dataclass(frozen=True, slots=True, eq=False)
class TrainingShapes:
    """What the place of each training depends on; one without GPUs stands for none.

    Its own tensor-parallel groups are of `width_T` GPUs, and the widest on its GPUs of `widest_T`.
    """

    pool_T: Ints
    gpus_T: Ints
    width_T: Ints
    widest_T: Ints


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
        nothing, apart = TrainingShapes(*np.array([[0], [0], [1], [1]], np.int64)), RlMode("disaggregated", "sync")
        whole_K = [lies_whole_T(self.problem.pools, shapes, nothing, apart)[0] for shapes in self.kinds]
        return np.array(whole_K, bool)[self.kind_C]

    def whole_T(self, config: int, services: Services, mode: RlMode) -> Bools:
        """Trainings with which no group of a role straddles domains."""
        roles = [*self.shapes_C[config], *served_shapes(services)]
        return lies_whole_T(self.problem.pools, roles, self.trainings, mode)


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
        gpus_T = np.where(here_T, trainings.gpus_T, 0)
        width_T, widest_T = (np.where(here_T, of_T, 1) for of_T in (trainings.width_T, trainings.widest_T))
        for turns in set(turns_T.tolist()) if pool.domains else ():
            firsts, training_T = arranged_T(own, gpus_T, widest_T, in_turn=turns)
            lies_T = _trained_T(pool, training_T, gpus_T, width_T) & _trained_T(pool, training_T, gpus_T, widest_T)
            for role, first_T in zip(own, firsts, strict=True):
                lies_T &= _role_T(pool, role, first_T)
            whole_T &= (turns_T != turns) | lies_T
    return whole_T


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

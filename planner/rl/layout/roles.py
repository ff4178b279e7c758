"""Where the roles of a plan lie in its pools.

In each pool roles stand on successive GPUs, those with the widest tensor-parallel groups first, with no GPU free
between them. Training that takes turns stands on the first GPUs of the pool, where generators are too; servers then
come last. Array suffix: T training choices.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from planner.arrays import Ints
from planner.rl.plan import GenerationGroup, LateReplicas, RlPlan, TrainingChoice
from planner.rl.services import Services, service_roles


@dataclass(frozen=True, slots=True)
class RoleShape:
    """What its place depends on, of a role on GPUs; `widths` are those of its tensor-parallel groups, early and late
    or of all models on them."""

    pool: str
    gpus: int
    widths: tuple[int, ...]
    served: bool = False


@dataclass(frozen=True, slots=True)
class LaidRole:
    """The `index`-th of the parts of a plan, on the GPUs of its pool from `first` on; `widths` are those of its
    tensor-parallel groups."""

    index: int
    pool: str
    gpus: int
    widths: tuple[int, ...]
    first: int


def arranged_T(roles: Sequence[RoleShape], gpus_T: Ints, widest_T: Ints, *, in_turn: bool) -> tuple[list[Ints], Ints]:
    """First GPUs of the roles of one pool, and of the training among them, for each training [T]; 0 GPUs for none."""
    first_T, firsts = np.zeros_like(gpus_T), [np.zeros_like(gpus_T)] * len(roles)
    order = sorted(range(len(roles)), key=lambda place: -max(roles[place].widths))
    if in_turn:
        for place in sorted(order, key=lambda place: roles[place].served):
            first_T = np.maximum(first_T, gpus_T) if roles[place].served else first_T
            firsts[place] = first_T
            first_T = first_T + roles[place].gpus
        return firsts, np.zeros_like(gpus_T)
    before = 0
    for place in order:
        role, widest = roles[place], max(roles[place].widths)
        behind_T = (widest_T > widest) | (role.served & (widest_T == widest))  # generators of its width come first
        firsts[place] = before + np.where(behind_T, gpus_T, 0)
        first_T = first_T + np.where(behind_T, 0, role.gpus)
        before += role.gpus
    return firsts, first_T


def role_shapes(groups: Sequence[GenerationGroup], late: LateReplicas | None) -> tuple[RoleShape, ...]:
    """Of groups of replicas, in their order; late ones stand where the early ones do."""
    changed = () if late is None else (late.group.option.tp,)
    return tuple(RoleShape(group.option.pool, group.gpus, (group.option.tp, *changed)) for group in groups)


def served_shapes(services: Services) -> tuple[RoleShape, ...]:
    """Of services that stand on GPUs."""
    return tuple(RoleShape(pool, gpus, (width,), served=True) for pool, gpus, width in service_roles(services))


def takes_turns(plan: RlPlan) -> bool:
    """Whether some GPUs both generate and train; a hybrid mode whose groups lie in other pools shares none."""
    if plan.training is None or plan.mode.placement == "disaggregated":
        return False
    return plan.training.option.pool in {group.option.pool for group in plan.groups}


def laid_roles(plan: RlPlan) -> Iterator[LaidRole]:
    """Groups of replicas, training and services of a plan, counted in this order, in that in which they lie."""
    training, turns, generating = plan.training, takes_turns(plan), role_shapes(plan.groups, plan.late)
    trained = [] if training is None else [_training_shape(training)]
    shapes = [*generating, *trained, *served_shapes(plan.services)]
    firsts: dict[int, int] = {}
    for pool in {shape.pool for shape in shapes}:
        own = [index for index, shape in enumerate(shapes) if shape.pool == pool]
        others = [index for index in own if training is None or index != len(generating)]
        gpus, widest = (trained[0].gpus, max(trained[0].widths)) if len(others) < len(own) else (0, 1)
        first_T, training_T = arranged_T(
            [shapes[index] for index in others], np.array([gpus]), np.array([widest]), in_turn=turns
        )
        firsts |= {index: int(training_T[0]) for index in own}
        firsts |= {index: int(first[0]) for index, first in zip(others, first_T, strict=True)}
    for index in sorted(firsts, key=lambda index: (turns and shapes[index].served, -max(shapes[index].widths), index)):
        shape = shapes[index]
        yield LaidRole(index, shape.pool, shape.gpus, shape.widths, firsts[index])


def _training_shape(training: TrainingChoice) -> RoleShape:
    """Models beside the actor stand where it does."""
    return RoleShape(training.option.pool, training.gpus, (training.option.tp, training.option.widest))

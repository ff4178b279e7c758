"""Where the roles of a plan lie in its pools.

In each pool roles stand on successive GPUs, those with the widest tensor-parallel groups first, with no GPU free
between them. Training that takes turns stands on the first GPUs of the pool, where generators are too; servers then
come last.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from planner.rl.curves import Learner, Service
from planner.rl.plan import GenerationGroup, RlPlan, TrainingChoice

Part = GenerationGroup | TrainingChoice | Service | Learner


@dataclass(frozen=True, slots=True)
class LaidRole:
    """The `index`-th of the parts of a plan, on the GPUs of its pool from `first` on; `widths` are those of its
    tensor-parallel groups, early and late."""

    index: int
    pool: str
    gpus: int
    widths: tuple[int, ...]
    first: int


def parts_of(plan: RlPlan) -> list[Part]:
    """What stands on GPUs: groups of replicas, training, and services that have some."""
    training = [plan.training] if plan.training is not None else []
    return [*plan.groups, *training, *(service for service in plan.services if service.gpus)]


def takes_turns(plan: RlPlan) -> bool:
    """Whether some GPUs both generate and train; a hybrid mode whose groups lie in other pools shares none."""
    if plan.training is None or plan.mode.placement == "disaggregated":
        return False
    return plan.training.option.pool in {group.option.pool for group in plan.groups}


def laid_roles(plan: RlPlan) -> Iterator[LaidRole]:
    """The parts of a plan in the order in which they lie."""
    parts, turns = parts_of(plan), takes_turns(plan)
    widths = [_widths(plan, part) for part in parts]
    served = [isinstance(part, Service | Learner) for part in parts]
    taken: dict[str, int] = {}
    trained: dict[str, int] = {}
    for index in sorted(range(len(parts)), key=lambda index: (turns and served[index], -max(widths[index]))):
        pool, gpus = _pool_and_gpus(parts[index])
        shares = turns and isinstance(parts[index], TrainingChoice)
        first = 0 if shares else taken.get(pool, 0)
        if served[index]:
            first = max(first, trained.get(pool, 0))
        yield LaidRole(index, pool, gpus, widths[index], first)
        (trained if shares else taken)[pool] = first + gpus


def _pool_and_gpus(part: Part) -> tuple[str, int]:
    if isinstance(part, Service | Learner):
        return part.pool, part.gpus * part.servers
    return part.option.pool, part.gpus


def _widths(plan: RlPlan, part: Part) -> tuple[int, ...]:
    """GPUs of the tensor-parallel groups of a part; late replicas stand where the early ones do."""
    if isinstance(part, Service | Learner):
        return (part.width,)
    if isinstance(part, GenerationGroup) and plan.late is not None:
        return (part.option.tp, plan.late.group.option.tp)
    return (part.option.tp,)

"""Where the roles of an RL plan stand: blocks of devices, and how their ranks are numbered."""

from collections.abc import Iterator

from planner.kinds.rl.curves.training import Helper
from planner.kinds.rl.names import LATE
from planner.kinds.rl.plan.roles import actor_shape, learner_shape
from planner.kinds.rl.plan.solved import Solved
from planner.plan.blocks import block_on
from planner.plan.schema import Axis, Block, Parallelism
from planner.rl.curves import Learner, Service
from planner.rl.layout.roles import laid_roles
from planner.rl.plan import GenerationGroup


def placement(solved: Solved) -> Iterator[Block]:
    """Roles where `planner.rl.layout` has them; late replicas stand where the early ones do, and models that take turns
    with the actor where it does."""
    plan, late, names = solved.plan, solved.plan.late, solved.rollout_names
    blocks = [(name, _rollout_axes(group)) for name, group in zip(names, plan.groups, strict=True)]
    blocks += [("actor", _actor_axes(solved))] if plan.training is not None else []
    blocks += [(part.part, _axes_apart(solved, part)) for part in plan.services if part.gpus]
    for role in laid_roles(plan):
        name, axes = blocks[role.index]
        devices = solved.pool(role.pool).job_devices[role.first : role.first + role.gpus].tolist()
        yield block_on(devices, name, role.pool, axes)
        if name in names and late is not None:
            yield block_on(devices, LATE, role.pool, _rollout_axes(late.group))
        if name == "actor":
            for helper in solved.trainer.helpers:
                yield block_on(devices, helper.part, role.pool, _helper_axes(solved, helper))


def _axes_apart(solved: Solved, part: Service | Learner) -> tuple[Axis, ...]:
    """Of engines that score, and of a critic on GPUs of its own."""
    if isinstance(part, Learner):
        return _ranks(learner_shape(solved, part))
    return _axes((("replica", part.servers, part.gpus), ("tp", part.gpus, 1)))


def _helper_axes(solved: Solved, helper: Helper) -> tuple[Axis, ...]:
    """Replicas one after the other; of a critic that trains at the same time, over blocks of the actor's stages. Models
    that are cut as the actor stand on its ranks."""
    if helper.with_actor:
        return _actor_axes(solved)
    count, inner = solved.training.gpus // helper.gpus, helper.tp * helper.cp
    within = (("cp", helper.cp, helper.tp), ("tp", helper.tp, 1))
    if solved.fused_training is None or helper.part != "critic":
        outer = "dp" if helper.part == "critic" else "replica"
        return _axes(((outer, count, helper.gpus), ("pp", helper.pp, inner), *within))
    stage = solved.training.gpus // solved.training.option.pp
    blocks = solved.training.option.pp // helper.pp
    return _axes((("dp", blocks, helper.pp * stage), ("pp", helper.pp, stage), ("dp", stage // inner, inner), *within))


def _axes(sizes: tuple[tuple[str, int, int], ...]) -> tuple[Axis, ...]:
    return tuple(Axis(name=name, size=size, stride=stride) for name, size, stride in sizes if size > 1)


def _rollout_axes(group: GenerationGroup) -> tuple[Axis, ...]:
    option = group.option
    return _axes((("replica", group.replicas, option.gpus), ("pp", option.pp, option.tp), ("tp", option.tp, 1)))


def _actor_axes(solved: Solved) -> tuple[Axis, ...]:
    return _ranks(actor_shape(solved))


def _ranks(shape: Parallelism) -> tuple[Axis, ...]:
    """As Megatron-LM places ranks: tp innermost, then cp, dp, and pp outermost."""
    inner = shape.tp * shape.cp
    sizes = (
        ("pp", shape.pp, inner * shape.dp),
        ("dp", shape.dp, inner),
        ("cp", shape.cp, shape.tp),
        ("tp", shape.tp, 1),
    )
    return _axes(sizes)

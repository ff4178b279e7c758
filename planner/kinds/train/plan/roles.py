"""Roles, placement and process groups of a training plan: one role on one pool, or one for each pool."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from planner.kinds.train.decision import RankGroup
from planner.kinds.train.evaluation.choice import PlanChoice, PoolShare
from planner.kinds.train.evaluation.evaluation import Evaluation
from planner.kinds.train.search_options import PoolUse
from planner.plan.blocks import block_on
from planner.plan.schema import Axis, Block, Engine, Memory, Parallelism, Role

ROLE = "job"
BETWEEN_POOLS = "pools"
"""The level of groups whose ranks lie in several pools."""
_SPANNING: dict[PoolUse, tuple[str, ...]] = {"one": (), "stages": ("pp",), "replicas": ("dp", "expert_dp", "zero")}


def pool_use(best: Evaluation) -> PoolUse:
    """What several pools are used for."""
    if not best.across:
        return "one"
    return "stages" if best.across[0].choice.dp == best.choice.dp else "replicas"


def role_name(best: Evaluation, part: PoolShare) -> str:
    """Roles are called by their pools where there are several."""
    return part.choice.table.job.pool.name if best.across else ROLE


def own_choice(part: PoolShare) -> PlanChoice:
    """The part of the job that lies on this pool."""
    return replace(part.choice, pp=len(part.rows))


def roles(best: Evaluation, memories: tuple[Memory, ...]) -> Iterator[Role]:
    """One role a pool; `memories` of every rank of the evaluation."""
    for part in best.parts:
        own = own_choice(part)
        shape = own.table.shape
        yield Role(
            name=role_name(best, part),
            function="train",
            model=own.table.job.key,
            engine=Engine(name=own.table.job.engine.name),
            pool=own.table.job.pool.name,
            replicas=1,
            parallelism=Parallelism(
                tp=shape.tp, pp=own.pp, dp=own.dp, cp=shape.cp, moe_tp=shape.etp, ep=shape.ep, vpp=own.vpp
            ),
            memory=max((memories[row] for row in part.rows), key=lambda memory: memory.used_bytes),
        )


def placement(best: Evaluation) -> Iterator[Block]:
    """All ranks of a role in one block of devices in service."""
    for part in best.parts:
        own = own_choice(part)
        job, shape = own.table.job, own.table.shape
        axes, stride = [], own.num_gpus
        for name, size in (("pp", own.pp), ("dp", own.dp), ("cp", shape.cp), ("tp", shape.tp)):
            stride //= size
            if size > 1:
                axes.append(Axis(name=name, size=size, stride=stride))
        yield block_on(job.devices[: own.num_gpus].tolist(), role_name(best, part), job.pool.name, tuple(axes))


def groups(best: Evaluation) -> Iterator[RankGroup]:
    """Ranks that talk to each other along every dimension; those across pools count stage by stage through them."""
    dimensions = _groups_of_mix(best) if best.strategies else _groups_of_all(best.choice)
    for name, size, stride in dimensions:
        if size > 1:
            level = _level_of(best, name, size, stride)
            yield RankGroup(name=name, size=size, stride=stride, level=level)  # type: ignore[arg-type]  # one of its names


def _groups_of_mix(best: Evaluation) -> list[tuple[str, int, int]]:
    """(name, size, stride) of the groups of every strategy, each once."""
    pp, cp = best.choice.pp, best.choice.table.shape.cp
    groups = {("pp", pp, best.choice.num_gpus // pp)}
    for strategy in best.strategies:
        groups |= {("tp", strategy.tp, 1), ("cp", cp, strategy.tp), ("dp", strategy.dp, strategy.tp * cp)}
        if strategy.zero_stage:
            groups.add(("zero", strategy.dp * cp, strategy.tp))
    return sorted(groups)


def _groups_of_all(choice: PlanChoice) -> list[tuple[str, int, int]]:
    """(name, size, stride) of the groups of every dimension."""
    shape = choice.table.shape
    stage = choice.num_gpus // choice.pp
    dimensions = [
        ("tp", shape.tp, 1),
        ("cp", shape.cp, shape.tp),
        ("dp", choice.dp, shape.tp * shape.cp),
        ("pp", choice.pp, stage),
        ("moe_tp", shape.etp, 1),
        ("ep", shape.ep, shape.etp),
    ]
    if choice.table.job.num_experts:
        dimensions.append(("expert_dp", stage // (shape.ep * shape.etp), shape.ep * shape.etp))
    if choice.zero_stage:
        dimensions.append(("zero", choice.shards or choice.dp * shape.cp, shape.tp))
    return dimensions


def _level_of(best: Evaluation, name: str, size: int, stride: int) -> str:
    """The smallest domain that holds every group of this dimension, on the pool where it is the largest."""
    if name in _SPANNING[pool_use(best)]:
        return BETWEEN_POOLS
    if not best.across:
        return _level(best.choice, size, stride)[1]
    owns = [own_choice(part) for part in best.across]
    sizes = [next(row[1:] for row in _groups_of_all(own) if row[0] == name) for own in owns]
    return max(_level(own, *each) for own, each in zip(owns, sizes, strict=True))[1]


def _level(choice: PlanChoice, size: int, stride: int) -> tuple[int, str]:
    """The index and the name of the smallest level of the pool's topology that holds every such group."""
    job = choice.table.job
    topology = job.pool.topology()
    starts = np.arange(choice.num_gpus)
    starts = starts[starts // stride % size == 0]
    devices_GR = job.devices[starts[:, None] + stride * np.arange(size)[None, :]]
    index = int(topology.spanning_level(devices_GR).max())
    return index, topology.levels[index].name

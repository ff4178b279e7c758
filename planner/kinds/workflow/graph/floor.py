"""Where serving plans of stages stand together: each as it was laid out alone, moved on behind those before it."""

from collections.abc import Sequence

from planner.errors import PlannerError
from planner.kinds.workflow.graph.candidates import Candidate
from planner.kinds.workflow.graph.serving import Served
from planner.kinds.workflow.graph.setting import GraphSetting
from planner.kinds.workflow.nested import role_name
from planner.plan.blocks import block_on
from planner.plan.placement import devices
from planner.plan.schema import Block


def laid(setting: GraphSetting, rows: Sequence[Candidate]) -> tuple[Block, ...]:
    """Blocks of all roles, plans with large instances first so that none lies across nodes; in the order of stages.

    Raises PlannerError where what is left of a node is too little for an instance.
    """
    served = [(stage, row.served) for stage, row in enumerate(rows) if row.served is not None]
    blocks: dict[int, tuple[Block, ...]] = {}
    for pool in range(len(setting.resolved.pools)):
        behind = 0
        own = [(stage, plan) for stage, plan in served if plan.pool == pool]
        for stage, plan in sorted(own, key=lambda each: (-_size(each[1]), each[0])):
            behind = -(-behind // _size(plan)) * _size(plan)
            blocks[stage] = _moved(setting, stage, plan, behind)
            behind += plan.gpus
    return tuple(block for stage in sorted(blocks) for block in blocks[stage])


def _moved(setting: GraphSetting, stage: int, plan: Served, behind: int) -> tuple[Block, ...]:
    """The blocks of a plan behind so many devices of its pool."""
    known, name = setting.resolved.pools[plan.pool], setting.stages[stage].name
    job = known.job_devices.tolist()
    if behind + plan.gpus > len(job):
        what = f"stages leave too little of a node for an instance of `{name}`"
        raise PlannerError(what, where=setting.where(stage), hint=f"give pool `{known.name}` a node more")
    place = {device: index for index, device in enumerate(job)}
    return tuple(
        block_on(
            [job[place[device] + behind] for device in sorted(devices(block))],
            role_name(name, block.role),
            block.pool,
            block.axes,
        )
        for block in plan.decision.placement
    )


def _size(plan: Served) -> int:
    """Devices of the largest instance."""
    return max(role.parallelism.devices for role in plan.decision.roles)

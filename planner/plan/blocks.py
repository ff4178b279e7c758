"""Blocks of ranks laid over devices in order, around those that are left out."""

from collections.abc import Sequence

from planner.plan.placement import gaps
from planner.plan.schema import Axis, Block, Skipped


def block_on(devices: Sequence[int], role: str, pool: str, axes: tuple[Axis, ...]) -> Block:
    """The block whose axes count through `devices`, which ascend, around what lies between them."""
    skipped = tuple(Skipped(first_device=first, devices=size) for first, size in gaps(devices))
    return Block(role=role, pool=pool, first_device=devices[0], axes=axes, skipped=skipped)

"""Places chosen instances on GPUs: bin packing on nodes, and blocks of ranks, around nodes out of service."""

from collections.abc import Sequence

from planner.errors import PlannerError
from planner.hardware.cluster import Pool
from planner.kinds.serve.steady.shapes import InstanceShape, group_devices
from planner.plan.blocks import block_on
from planner.plan.schema import Axis, Block
from planner.solvers.layouts.packing import Bundle, pack


class Unplaceable(PlannerError):
    """Instances whose groups of ranks do not fit into the nodes together; `role` is the largest one's."""

    def __init__(self, what: str, *, hint: str, role: str) -> None:
        super().__init__(what, hint=hint)
        self.role = role


def placement_blocks(
    pool: Pool, wanted: Sequence[tuple[Sequence[tuple[str, InstanceShape]], int]], *, apart: bool = False
) -> list[Block]:
    """Blocks for (parts, replicas) on one pool, in that order; parts are (role, shape) that stand together.

    With `apart`, replicas are spread over the nodes, so that one that fails takes as few of each as can be.

    Raises Unplaceable where groups of ranks, each inside a node, do not fit though there are as many devices; a solved
    mix has room.
    """
    free = pool.free_domains
    sizes = [sum(shape.devices for _, shape in parts) for parts, _ in wanted]
    groups_of = [
        min(size // max(shape.pieces for _, shape in parts), group_devices(pool))
        for size, (parts, _) in zip(sizes, wanted, strict=True)
    ]
    instances = [
        Bundle(size // group, group)
        for size, group, (_, replicas) in zip(sizes, groups_of, wanted, strict=True)
        for _ in range(replicas)
    ]
    kinds = [kind for kind, (_, replicas) in enumerate(wanted) for _ in range(replicas)]
    packed = pack(free, instances, apart=kinds if apart else ())
    if packed is None:
        role = max(zip(sizes, (parts[0][0] for parts, _ in wanted), strict=True))[1]
        raise Unplaceable(
            f"the instances of role `{role}` and of others do not fit into the nodes together",
            hint="search fewer shapes, such as `options.pp: [1]`",
            role=role,
        )
    blocks: list[Block] = []
    groups = iter(packed)
    for parts, replicas in wanted:
        placed = sorted(sorted(device for group in next(groups) for device in group.slots) for _ in range(replicas))
        first = 0
        for role, shape in parts:
            blocks += _blocks(pool, role, shape, [devices[first : first + shape.devices] for devices in placed])
            first += shape.devices
    return blocks


def _blocks(pool: Pool, role: str, shape: InstanceShape, placed: list[list[int]]) -> list[Block]:
    """As few blocks as runs of replicas with one stride and one inner pattern need; one for each without a pattern."""
    blocks: list[Block] = []
    rest = placed
    while rest:
        first, inner = rest[0][0], _inner_axes(shape, rest[0])
        if inner is None:  # ranks count through the devices, around what lies between them
            within = _inner_axes(shape, list(range(shape.devices)))
            assert within is not None
            blocks.append(block_on(rest[0], role, pool.name, tuple(within)))
            rest = rest[1:]
            continue
        run = _regular_run(rest)
        stride = rest[1][0] - first if run > 1 else 0
        outer = [Axis(name="replica", size=run, stride=stride)] if run > 1 else []
        blocks.append(Block(role=role, pool=pool.name, first_device=first, axes=(*outer, *inner)))
        rest = rest[run:]
    return blocks


def _regular_run(placed: list[list[int]]) -> int:
    """How many of the first instances are shifts of the first one by multiples of one stride."""
    if len(placed) == 1:
        return 1
    stride = placed[1][0] - placed[0][0]
    run = 1
    while run < len(placed) and placed[run] == [device + run * stride for device in placed[0]]:
        run += 1
    return run


def _inner_axes(shape: InstanceShape, devices: list[int]) -> list[Axis] | None:
    """Stages outermost, then attention-data-parallel ranks, then tensor-parallel ones; None where strides vary."""
    axes: list[Axis] = []
    rest = devices
    for name, size in (("pp", shape.pp), ("dp", shape.dp), ("tp", shape.tp)):
        step = len(rest) // size
        regular = _axis(name, rest[::step], size)
        if regular is None:
            return None
        axes += regular
        rest = rest[:step]
    return axes if _covers(axes, devices) else None


def _covers(axes: Sequence[Axis], devices: list[int]) -> bool:
    """Whether the axes count through all devices: every group along an inner axis has the pattern of the first."""
    offsets = [0]
    for axis in axes:
        offsets = [offset + step * axis.stride for offset in offsets for step in range(axis.size)]
    return [devices[0] + offset for offset in offsets] == devices


def _axis(name: str, starts: list[int], size: int) -> list[Axis] | None:
    """One axis, or two of the same name where nodes out of service break the stride regularly; None where none is."""
    if size == 1:
        return []
    for outer in (divisor for divisor in range(1, size + 1) if size % divisor == 0):
        inner = size // outer
        stride = starts[1] - starts[0] if inner > 1 else 0
        hop = starts[inner] - starts[0] if outer > 1 else 0
        if starts == [starts[0] + a * hop + b * stride for a in range(outer) for b in range(inner)]:
            pair = [Axis(name=name, size=outer, stride=hop), Axis(name=name, size=inner, stride=stride)]
            return [axis for axis in pair if axis.size > 1]
    return None

"""Device of each rank by a plan's placement: blocks with strides expanded lazily, in plain Python.

Ranks of a block count with its first axis outermost; ranks of a role count on from block to block.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import pairwise, product, repeat
from math import prod

from planner.errors import PlannerError
from planner.plan.records import Axis, Block, Role

GPU_SHARE = "gpu_share"  # among the limits of a role: the share of a device that a replica takes beside others
MOST_DEVICES = 1 << 24  # of a pool: more than any cluster has


def num_ranks(block: Block) -> int:
    """How many ranks the block holds."""
    return prod(axis.size for axis in block.axes)


def gpus_in_use(roles: Iterable[Role], blocks: Iterable[Block]) -> int:
    """Devices in use, those that roles share in turn counted once where the plan says where its roles stand."""
    laid = tuple(blocks)
    ranks = sum(role.replicas * role.parallelism.devices for role in roles)
    placed = sum(map(num_ranks, laid))
    return sum(devices_used(laid).values()) if placed == ranks and placed <= MOST_DEVICES else ranks


def last_device(block: Block) -> int:
    """The highest device of the block."""
    return stepper(block)(block.first_device + sum((axis.size - 1) * axis.stride for axis in block.axes))


def stepper(block: Block) -> Callable[[int], int]:
    """The device that a count from the block's first device comes to, around what the block skips."""
    behind = sorted((gap.first_device, gap.devices) for gap in block.skipped if gap.first_device >= block.first_device)
    return partial(_around, behind) if behind else int


def _around(gaps: list[tuple[int, int]], number: int) -> int:
    """`number` moved on by every gap, in ascending order, that begins no later than where it stands by then."""
    for first, size in gaps:
        if first > number:
            break
        number += size
    return number


def require_countable(blocks: Iterable[Block]) -> None:
    """Refuses, as PlannerError, a placement with more ranks or devices than could be looked at one by one."""
    for block in blocks:
        if max(num_ranks(block), last_device(block)) > MOST_DEVICES:
            raise PlannerError(
                f"places {num_ranks(block)} ranks up to device {last_device(block)}; at most {MOST_DEVICES} are read",
                where=f"placement of `{block.role}`",
                hint="run `planner check` on the plan: no pool is as large",
            )


def devices(block: Block) -> Iterator[int]:
    """The device of every rank of the block, in rank order."""
    numbers = _along(block.first_device, tuple(block.axes))
    return map(stepper(block), numbers) if block.skipped else numbers


def role_devices(blocks: Iterable[Block], role: str) -> Iterator[tuple[str, int]]:
    """(pool, device) of every rank of a role, in rank order."""
    for block in blocks:
        if block.role == role:
            yield from ((block.pool, device) for device in devices(block))


def device_runs(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Successive devices that count up by one, as (first, last), in the order given."""
    first = last = None
    for number in numbers:
        if last is not None and number == last + 1:
            last = number
            continue
        if first is not None and last is not None:
            yield first, last
        first = last = number
    if first is not None and last is not None:
        yield first, last


def gaps(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """What ascending devices leave out between the first and the last, as (first, how many)."""
    return ((last + 1, first - last - 1) for (_, last), (first, _) in pairwise(device_runs(numbers)))


def devices_used(blocks: Iterable[Block]) -> dict[str, int]:
    """How many devices of each pool the blocks stand on; those that several roles share count once."""
    used: dict[str, set[int]] = {}
    for block in blocks:
        used.setdefault(block.pool, set()).update(devices(block))
    return {pool: len(stood_on) for pool, stood_on in used.items()}


def degree(block: Block, axis_name: str) -> int:
    """Ranks along an axis, all axes of that name together; 1 where there is none."""
    return prod(axis.size for axis in block.axes if axis.name == axis_name)


def groups(block: Block, axis_name: str) -> Iterator[tuple[int, ...]]:
    """The devices of each group of ranks that differ only along `axis_name`, in order of the other axes."""
    along = tuple(axis for axis in block.axes if axis.name == axis_name)
    across = tuple(axis for axis in block.axes if axis.name != axis_name)
    device_of = stepper(block)
    return (tuple(map(device_of, _along(first, along))) for first in _along(block.first_device, across))


def _along(first: int, axes: tuple[Axis, ...]) -> Iterator[int]:
    """first + every combination of steps along `axes`, the innermost axis as one range."""
    if not axes:
        yield first
        return
    inner = axes[-1]
    for steps in product(*(_steps(axis) for axis in axes[:-1])):
        start = first + sum(steps)
        yield from _steps(inner, start)


def _steps(axis: Axis, start: int = 0) -> Iterable[int]:
    return range(start, start + axis.size * axis.stride, axis.stride) if axis.stride else repeat(start, axis.size)

"""Blocks expanded to devices, against the definition."""

from dataclasses import replace
from itertools import product

import pytest
from counted_calls import calls_in
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.plan import placement, schema
from planner.plan.blocks import block_on
from planner.plan.records import Axis, Block, Skipped

NAMES = ("replica", "pp", "dp", "cp", "tp")
AXES = st.builds(Axis, st.sampled_from(NAMES), st.integers(1, 4), st.integers(0, 9))
BLOCKS = st.builds(
    lambda first, axes: Block("job", "pool", first, tuple(axes)), st.integers(0, 50), st.lists(AXES, max_size=4)
)


def indices(block: Block) -> list[tuple[int, ...]]:
    return list(product(*(range(axis.size) for axis in block.axes)))


@given(BLOCKS)
def test_devices_are_first_plus_index_times_stride_with_the_first_axis_outermost(block: Block) -> None:
    wanted = [
        block.first_device + sum(index * axis.stride for index, axis in zip(step, block.axes, strict=True))
        for step in indices(block)
    ]
    assert list(placement.devices(block)) == wanted
    assert placement.num_ranks(block) == len(wanted)
    assert placement.last_device(block) == max(wanted)


@given(BLOCKS, st.sampled_from(NAMES))
def test_groups_partition_the_ranks_by_the_other_axes(block: Block, name: str) -> None:
    devices = list(placement.devices(block))
    fixed = [tuple(i for i, axis in zip(step, block.axes, strict=True) if axis.name != name) for step in indices(block)]
    wanted = [[rank for rank, key in enumerate(fixed) if key == other] for other in dict.fromkeys(fixed)]
    assert [list(group) for group in placement.groups(block, name)] == [[devices[r] for r in ranks] for ranks in wanted]
    assert placement.degree(block, name) * len(wanted) == len(devices)


@given(BLOCKS, st.lists(st.builds(Skipped, st.integers(0, 90), st.integers(1, 9)), max_size=4))
def test_what_a_block_skips_is_stepped_over(block: Block, skipped: list[Skipped]) -> None:
    apart = [gap for gap in skipped if gap.first_device >= block.first_device]
    apart = [gap for index, gap in enumerate(apart) if not _touches(gap, apart[:index])]
    gone = {device for gap in apart for device in range(gap.first_device, gap.first_device + gap.devices)}
    left = [device for device in range(block.first_device, 300) if device not in gone]
    around = replace(block, skipped=tuple(apart))
    assert list(placement.devices(around)) == [left[device - block.first_device] for device in placement.devices(block)]
    assert placement.last_device(around) == max(placement.devices(around))
    members = sorted(device for group in placement.groups(around, "tp") for device in group)
    assert members == sorted(placement.devices(around))


def _touches(gap: Skipped, others: list[Skipped]) -> bool:
    return any(
        gap.first_device < other.first_device + other.devices and other.first_device < gap.first_device + gap.devices
        for other in others
    )


@given(st.sets(st.integers(0, 60), min_size=1))
def test_a_block_on_devices_stands_on_these(numbers: set[int]) -> None:
    block = block_on(sorted(numbers), "job", "pool", (schema.Axis(name="dp", size=len(numbers), stride=1),))
    assert list(placement.devices(block)) == sorted(numbers)


def test_ranks_of_a_role_count_on_from_block_to_block() -> None:
    blocks = [
        Block("decode", "b", 8, (Axis("tp", 2, 1),)),
        Block("prefill", "a", 0, (Axis("tp", 2, 1),)),
        Block("decode", "a", 4, (Axis("tp", 2, 1),)),
    ]
    assert list(placement.role_devices(blocks, "decode")) == [("b", 8), ("b", 9), ("a", 4), ("a", 5)]
    assert placement.devices_used(blocks) == {"b": 2, "a": 4}


def test_devices_that_two_roles_share_count_once() -> None:
    axes = (Axis("replica", 4, 2), Axis("tp", 2, 1))
    blocks = [Block("rollout", "a", 0, axes), Block("actor", "a", 0, (Axis("tp", 8, 1),))]
    assert placement.devices_used(blocks) == {"a": 8}


def test_a_placement_beyond_any_cluster_is_refused() -> None:
    most = placement.MOST_DEVICES
    for block in (Block("job", "a", most), Block("job", "a", 0, (Axis("dp", most, 0),))):
        placement.require_countable([block])
    for block in (Block("job", "a", most + 1), Block("job", "a", 0, (Axis("dp", most + 1, 0),))):
        with pytest.raises(PlannerError, match="at most"):
            placement.require_countable([block])


def test_16384_ranks_expand_with_little_work_for_each() -> None:
    block = Block("job", "a", 0, (Axis("pp", 16, 1024), Axis("dp", 128, 8), Axis("tp", 8, 1)))
    by_definition = {
        sum(index * axis.stride for index, axis in zip(step, block.axes, strict=True)) for step in indices(block)
    }
    assert set(placement.devices(block)) == by_definition
    assert len(by_definition) == 16_384
    assert calls_in(lambda: set(placement.devices(block))) < 2 * 16_384

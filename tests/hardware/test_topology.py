"""Groups of devices in nested domains, against counting by hand."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.hardware.cluster import Pool
from planner.hardware.library import find_node
from planner.hardware.topology import Level, Topology


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    size, levels = 1, []
    for name in ("nvlink", "rack", "fabric")[: draw(st.integers(1, 3))]:
        size *= draw(st.integers(1, 6))
        levels.append(Level(name, size, 1e9, 1e-6))
    return Topology(tuple(levels))


@st.composite
def topologies_with_groups(draw: st.DrawFn) -> tuple[Topology, list[list[int]]]:
    topology = draw(topologies())
    num_ranks = draw(st.integers(1, 8))
    device = st.integers(0, topology.levels[-1].size - 1)
    group = st.lists(device, min_size=num_ranks, max_size=num_ranks)
    return topology, draw(st.lists(group, min_size=1, max_size=4))


@given(topologies_with_groups())
def test_the_level_that_spans_a_group_is_the_first_that_counts_it_whole(
    case: tuple[Topology, list[list[int]]],
) -> None:
    topology, groups = case
    spanning = topology.spanning_level(groups)
    for index, group in enumerate(groups):
        counts = [Counter(device // level.size for device in group) for level in topology.levels]
        assert spanning[index] == min(t for t, count in enumerate(counts) if len(count) == 1)


@given(topologies(), st.data())
def test_aligned_groups_have_the_same_share_as_their_device_lists(topology: Topology, data: st.DataObject) -> None:
    total = topology.levels[-1].size
    spans = [
        span for span in range(1, total + 1) if all(max(span, s.size) % min(span, s.size) == 0 for s in topology.levels)
    ]
    span = data.draw(st.sampled_from(spans))
    stride = data.draw(st.sampled_from([step for step in range(1, span + 1) if span % step == 0]))
    if any(max(stride, level.size) % min(stride, level.size) for level in topology.levels):
        return
    size = span // stride
    first = span * data.draw(st.integers(0, max(total // span - 1, 0)))
    devices = first + stride * np.arange(size)
    aligned = [int(members) for members in topology.members_per_domain(np.array(size), np.array(stride))]
    counts = [Counter(int(device) // level.size for device in devices) for level in topology.levels]
    assert [max(count.values()) for count in counts] == aligned


def test_one_group_gives_numbers_without_a_group_axis() -> None:
    topology = Topology((Level("nvlink", 8, 1e9, 1e-6), Level("fabric", 32, 1e9, 1e-6)))
    assert topology.spanning_level([6, 7]).item() == 0
    assert topology.spanning_level([7, 8]).item() == 1


@pytest.mark.parametrize("device", [-1, 32])
def test_a_device_outside_the_topology_is_an_error(device: int) -> None:
    topology = Topology((Level("nvlink", 8, 1e9, 1e-6), Level("fabric", 32, 1e9, 1e-6)))
    with pytest.raises(IndexError, match="outside"):
        topology.spanning_level([0, device])


def test_a_pool_of_racks_spans_whole_racks_and_keeps_the_levels_nested() -> None:
    pool = Pool("gb200", find_node("gb200"), num_nodes=20)  # 80 GPUs: one rack and a bit
    inside, fabric = pool.topology().levels
    assert (inside.size, fabric.size) == (72, 144)
    assert pool.topology().spanning_level([71, 72]).item() == 1


def test_half_a_rack_is_one_domain() -> None:
    (only,) = Pool("gb200", find_node("gb200"), num_nodes=9).topology().levels
    assert only.name == "nvlink"


def test_a_server_without_nvlink_says_so() -> None:
    inside, _ = Pool("l40s", find_node("l40s"), num_nodes=2).topology().levels
    assert (inside.name, inside.size) == ("pcie", 8)


@given(st.integers(1, 12), st.sets(st.integers(0, 11)))
def test_a_job_is_laid_over_all_nodes_in_service(nodes: int, gone: set[int]) -> None:
    lost = tuple(sorted(node for node in gone if node < nodes))
    pool = Pool("h100", find_node("h100"), num_nodes=nodes, out_of_service=lost)
    assert pool.job_devices.tolist() == [device for device in range(8 * nodes) if device // 8 not in lost]


@given(st.integers(1, 60), st.sets(st.integers(0, 59), max_size=12))
def test_domains_that_span_nodes_give_a_job_equal_shares(nodes: int, gone: set[int]) -> None:
    lost = tuple(sorted(node for node in gone if node < nodes))
    devices = Pool("gb200", find_node("gb200"), num_nodes=nodes, out_of_service=lost).job_devices.tolist()
    assert not {device // 4 for device in devices} & set(lost)
    racks = [sum(node not in lost for node in range(rack, min(rack + 18, nodes))) for rack in range(0, nodes, 18)]
    stretches = "".join("x" if node in lost else "." for node in range(nodes)).split("x")
    longest, shared = max(map(len, stretches)), 16 * sum(healthy >= 16 for healthy in racks)
    assert len(devices) == 4 * (nodes if not lost else max(longest, shared))
    if lost and shared >= longest:
        assert {devices.count(device) for device in devices} <= {1}
        assert all(len({device // 72 for device in devices[first : first + 64]}) == 1 for first in range(0, shared, 64))

"""Ranks of expert layouts on racks and around nodes that are out: where they stand, and the links that are priced."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from planner.hardware.cluster import Pool
from planner.hardware.library import find_node
from planner.hardware.topology import Wiring
from planner.kinds.experts.stands import devices_of, pool_of

UPLINK = 8e9


def pool_on(racks: Sequence[int], out: tuple[int, ...] = ()) -> Pool:
    pool = Pool("p", find_node("h100_sxm"), sum(racks), out_of_service=out)
    return replace(pool, wiring=Wiring(tuple(racks), UPLINK))


@pytest.mark.parametrize(
    ("racks", "out", "nodes", "counts"),
    [
        ([2, 4, 6], (), 4, [0, 0, 4]),  # one rack holds all
        ([4, 4, 2], (), 6, [4, 0, 2]),  # 8 leave the busiest; 9 of three and three
        ([2, 2, 2], (2,), 4, [2, 0, 2]),
    ],
)
def test_ranks_stand_where_least_leaves_the_busiest_rack(
    racks: list[int], out: tuple[int, ...], nodes: int, counts: list[int]
) -> None:
    pool = pool_on(racks, out)
    devices = devices_of(pool, 8 * nodes)
    stood = np.unique(devices // 8)
    assert not set(stood.tolist()) & set(out)
    nodes_of_rack = np.bincount(pool.rack_of_node[stood], minlength=len(racks)).tolist()
    share = [n * (nodes - n) for n in nodes_of_rack]
    assert max(share) == max(n * (nodes - n) for n in counts)


def test_inside_one_rack_no_uplink_is_priced_and_between_racks_its_share() -> None:
    pool = pool_on([2, 4])
    inside = pool_of(pool, devices_of(pool, 32)).topology()
    assert inside.levels[-1].bandwidth_bytes_per_s == pool.node.nic_bandwidth_bytes_per_s
    across = pool_of(pool, devices_of(pool, 40)).topology()
    assert across.levels[-1].bandwidth_bytes_per_s == UPLINK / (4 * 8)

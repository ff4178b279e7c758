"""A placement of 16,384 ranks around nodes that are out: few blocks, and every rank where it should be."""

import numpy as np

from planner.hardware.cluster import Pool
from planner.hardware.library import find_node
from planner.plan.blocks import block_on
from planner.plan.placement import devices, groups
from planner.plan.schema import Axis


def test_sixteen_thousand_ranks_around_forty_nodes_out_are_one_short_block() -> None:
    out = tuple(sorted(np.random.default_rng(0).choice(2088, 40, replace=False).tolist()))
    pool = Pool("p", find_node("h100_sxm"), 2088, out_of_service=out)
    wanted = pool.job_devices.tolist()
    axes = (
        Axis(name="pp", size=16, stride=1024),
        Axis(name="dp", size=128, stride=8),
        Axis(name="tp", size=8, stride=1),
    )
    block = block_on(wanted, "job", "p", axes)
    assert list(devices(block)) == wanted
    assert len(wanted) == 16_384
    assert len(block.model_dump_json()) < 2_500
    assert all(len({device // 8 for device in group}) == 1 for group in groups(block, "tp"))

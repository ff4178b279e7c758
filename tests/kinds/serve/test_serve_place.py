"""Chosen instances onto devices, where their number alone would let them stand."""

import pytest

from planner.hardware.cluster import Pool
from planner.hardware.library import find_node
from planner.kinds.serve.plan.place import Unplaceable, placement_blocks
from planner.kinds.serve.steady.shapes import InstanceShape


def test_groups_of_ranks_that_leave_devices_of_every_node_over_are_refused_by_role() -> None:
    pool, three = Pool("h100", find_node("h100"), 2), InstanceShape(1, 3, 1, 1, 1)
    assert len(placement_blocks(pool, [([("colocated", three)], 4)])) > 0
    with pytest.raises(Unplaceable, match="do not fit into the nodes together") as caught:
        placement_blocks(pool, [([("colocated", three)], 5)])
    assert caught.value.role == "colocated"

"""One group on racks against all ways to place it, and bad input."""

import random
from itertools import product

import pytest

from planner.errors import PlannerError
from planner.solvers.topology.compact import busiest, compact


@pytest.mark.parametrize("seed", range(100))
def test_a_compact_group_sends_no_more_over_an_uplink_than_any_other(seed: int) -> None:
    draw = random.Random(seed)
    free = [draw.randint(0, 5) for _ in range(draw.randint(1, 4))]
    if not sum(free):
        free[0] = 1
    nodes = draw.randint(1, sum(free))
    every = [c for c in product(*(range(f + 1) for f in free)) if sum(c) == nodes]
    ours = compact(free, nodes)
    assert ours in every
    assert busiest(ours) == min(map(busiest, every))


@pytest.mark.parametrize("nodes", [0, 5])
def test_groups_that_no_racks_hold_are_refused(nodes: int) -> None:
    with pytest.raises(PlannerError, match="4 are free"):
        compact([1, 3], nodes)

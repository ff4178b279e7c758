"""Groups on nodes and racks against every way to lay them, and what placements keep."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest

from planner.errors import PlannerError
from planner.solvers.placement.floor import Devices, Floor, FloorNode, Kind, lay, spread
from planner.solvers.result import Status


def random_floor(seed: int) -> tuple[Floor, list[Kind], dict[int, int]]:
    draws = np.random.default_rng(seed)
    domain, domains = (2, 2) if draws.random() < 0.5 else (4, 1)
    nodes = []
    for n in range(int(draws.integers(2, 4))):
        own = [tuple(range(n * 4 + d * domain, n * 4 + (d + 1) * domain)) for d in range(domains)]
        left = [tuple(device for device in each if draws.random() < 0.8) for each in own]
        nodes.append(FloorNode(tuple(left), left == own, n if draws.random() < 0.6 else 0))
    groups = [
        (
            int(draws.choice([1, 2, 4])),
            tuple(sorted(draws.choice(3, int(draws.integers(1, 3)), replace=False).tolist())),
        )
        for _ in range(int(draws.integers(1, 5)))
    ]
    units = {m: int(draws.integers(1, 3)) for m in {m for _, models in groups for m in models} if draws.random() < 0.5}
    return Floor(tuple(nodes), domain), groups, units


def kept(floor: Floor, groups: Sequence[Kind], places: Sequence[Devices], units: dict[int, int]) -> bool:
    """Whether groups lie apart from each other, in one domain or on whole ones of one node, and models on units."""
    devices = [device for place in places for device in place]
    if len(set(devices)) < len(devices):
        return False
    for (size, _), place in zip(groups, places, strict=True):
        within = [[d for d in node.domains if set(place) & set(d)] for node in floor.nodes]
        touched = [domains for domains in within if domains]
        if len(place) != size or len(touched) != 1:
            return False
        whole = {device for d in touched[0] for device in d} == set(place)
        if len(touched[0]) > 1 and (size <= floor.domain_devices or not whole):
            return False
        if size > floor.domain_devices and any(len(d) < floor.domain_devices for d in touched[0]):
            return False
    lives = spread(floor, groups, places)
    return all(lives.get(m, 0) >= least for m, least in units.items())


def cost(floor: Floor, places: Sequence[Devices]) -> float:
    used = {d for place in places for d in place}
    hit = [n for n in floor.nodes if used & {d for domain in n.domains for d in domain}]
    return sum(len(floor.nodes) + 1 if node.whole else 1 for node in hit)


def least_cost(floor: Floor, groups: Sequence[Kind], units: dict[int, int]) -> float:
    """Over every choice of devices for every group, those of a node alone."""
    ways = []
    for size, _ in groups:
        by_node = [[d for domain in node.domains for d in domain] for node in floor.nodes]
        ways.append([each for devices in by_node for each in itertools.combinations(devices, size)])
    best = math.inf
    for places in itertools.product(*ways):
        if kept(floor, groups, places, units):
            best = min(best, cost(floor, places))
    return best


@pytest.mark.parametrize("seed", range(100))
def test_no_way_to_lay_groups_breaks_fewer_nodes(seed: int) -> None:
    floor, groups, units = random_floor(seed)
    result, best = lay(floor, groups, units), least_cost(floor, groups, units)
    if result.status is Status.INFEASIBLE:
        assert math.isinf(best)
        return
    assert result.status is Status.OPTIMAL
    assert result.solution is not None
    assert kept(floor, groups, result.solution, units)
    assert result.objective == pytest.approx(cost(floor, result.solution)) == pytest.approx(best)


def test_sizes_that_do_not_divide_one_another_lie_on_nodes_of_one_domain_alone() -> None:
    floor = Floor((FloorNode((tuple(range(6)),), True, 0),), 6)
    result = lay(floor, [(3, (0,)), (2, (1,))], {})
    assert result.solution == ((0, 1, 2), (3, 4))
    torn = Floor((FloorNode(((0, 1, 2), (3, 4, 5)), True, 0),), 3)
    with pytest.raises(PlannerError, match=r"\[2, 3\] devices"):
        lay(torn, [(3, (0,)), (2, (1,))], {})

"""Groups on healthy nodes against packing every set of nodes that is a group by definition; bad input."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.solvers.topology.architectures import (
    Architecture,
    Cubes,
    FixedRings,
    KHopRing,
    Switch,
    groups_on,
    waste,
)


def is_group(architecture: Architecture, nodes: tuple[int, ...], total: int) -> bool:
    """Whether an ordered set of nodes is a group, by the words of each architecture."""
    m = len(nodes)
    match architecture:
        case KHopRing(hops):
            steps = itertools.pairwise(nodes)
            return all(min((b - a) % total, (a - b) % total) <= hops for a, b in steps)
        case Switch(unit):
            size = unit or total
            return len({node // size for node in nodes}) == 1 and (nodes[0] // size + 1) * size <= total
        case FixedRings():
            return sorted(nodes) == list(range(min(nodes), min(nodes) + m)) and min(nodes) % m == 0
        case Cubes(unit):
            first = min(nodes)
            aligned = (first % unit) % m == 0 and first // unit == max(nodes) // unit
            within = first % unit // m * m + m <= unit and (first // unit + 1) * unit <= total
            return aligned and within and sorted(nodes) == list(range(first, first + m))
    raise AssertionError(architecture)


def most_groups(architecture: Architecture, healthy: tuple[int, ...], total: int, m: int) -> int:
    """The most disjoint groups, by trying each group that holds the first node, and leaving that node out."""
    sets = {
        frozenset(chosen)
        for chosen in itertools.combinations(healthy, m)
        if any(is_group(architecture, order, total) for order in itertools.permutations(chosen))
    }

    def packed(free: frozenset[int]) -> int:
        if len(free) < m:
            return 0
        first = min(free)
        with_first = (1 + packed(free - group) for group in sets if first in group and group <= free)
        return max([packed(free - {first}), *with_first])

    return packed(frozenset(healthy))


def drawn(seed: int) -> tuple[Architecture, np.ndarray, int]:
    draws = np.random.default_rng(seed)
    total, m = int(draws.integers(3, 10)), int(draws.integers(1, 4))
    choices: list[Architecture] = [
        KHopRing(int(draws.integers(1, 4))),
        Switch(None if draws.random() < 0.3 else max(m, int(draws.integers(1, 5)))),
        FixedRings(),
        Cubes(max(m, int(draws.integers(2, 5)))),
    ]
    return choices[seed % 4], draws.random(total) < 0.7, min(m, total)


@pytest.mark.parametrize("seed", range(100))
def test_no_way_of_forming_groups_gives_more(seed: int) -> None:
    architecture, healthy, m = drawn(seed)
    groups = architecture.groups(healthy, m)
    nodes = groups.ravel().tolist()
    assert len(set(nodes)) == len(nodes)
    assert healthy[nodes].all()
    assert all(is_group(architecture, tuple(group), len(healthy)) for group in groups.tolist())
    most = most_groups(architecture, tuple(np.flatnonzero(healthy).tolist()), len(healthy), m)
    assert len(groups) == most
    assert architecture.count(healthy[None], m).tolist() == [most]


@given(st.lists(st.booleans(), min_size=4, max_size=40), st.integers(1, 4), st.integers(1, 4), st.data())
def test_one_more_node_out_never_gives_a_group_more(up: list[bool], m: int, size: int, data: st.DataObject) -> None:
    healthy = np.array(up)
    fewer = healthy.copy()
    fewer[data.draw(st.integers(0, len(up) - 1))] = False
    for architecture in (KHopRing(size), Switch(size), FixedRings(), Cubes(size)):
        assert architecture.count(fewer[None], m)[0] <= architecture.count(healthy[None], m)[0]


@given(st.lists(st.booleans(), min_size=4, max_size=40), st.integers(1, 4), st.integers(1, 4))
def test_one_switch_for_all_wastes_least_and_more_hops_waste_no_more(up: list[bool], m: int, hops: int) -> None:
    healthy = np.array(up)[None]
    least = waste(Switch(), healthy, m)[0]
    ring, wider = waste(KHopRing(hops), healthy, m)[0], waste(KHopRing(hops + 1), healthy, m)[0]
    assert least <= wider <= ring


def test_groups_larger_than_a_cube_take_whole_cubes() -> None:
    healthy = np.ones(12, np.bool_)
    assert groups_on(Cubes(4), healthy, 8).tolist() == [[0, 1, 2, 3, 4, 5, 6, 7]]
    healthy[1] = False
    assert groups_on(Cubes(4), healthy, 6).tolist() == [[4, 5, 6, 7, 8, 9]]
    assert Cubes(4).count(healthy[None], 6).tolist() == [1]


def test_groups_larger_than_any_unit_are_refused_with_what_would_work() -> None:
    with pytest.raises(PlannerError, match=r"groups of 5 nodes, and no more than 4 are joined\n.*at most 4"):
        groups_on(Switch(4), np.ones(12, np.bool_), 5)
    with pytest.raises(PlannerError, match="hops of a ring: 0"):
        KHopRing(0)


def test_a_ring_whose_gaps_are_all_above_its_hops_has_groups_of_one_alone() -> None:
    healthy = np.array([True, False, False] * 4)
    assert len(KHopRing(2).groups(healthy, 2)) == 0
    assert KHopRing(2).groups(healthy, 1).ravel().tolist() == [3, 6, 9, 0]

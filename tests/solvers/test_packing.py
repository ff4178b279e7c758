"""Packing against exhaustive search: it succeeds exactly when the slot inequalities hold."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mix_oracle import can_place

from planner.errors import PlannerError
from planner.solvers.layouts.packing import Bundle, pack


def fits(free_counts: list[int], instances: list[Bundle]) -> bool:
    """Whether, for every size s, groups of s or more take no more than the nodes have."""
    return all(
        sum(instance.groups * (instance.size // s) for instance in instances if instance.size >= s)
        <= sum(count // s for count in free_counts)
        for s in {instance.size for instance in instances}
    )


CHAINS = st.sampled_from([(1, 2, 4), (2, 4, 8), (1, 3, 6), (4,), (1, 8)])


@st.composite
def packings(draw: st.DrawFn) -> tuple[list[list[int]], list[Bundle]]:
    """Nodes with up to 9 free slots, some missing in between, and instances of one chain of sizes."""
    chain = draw(CHAINS)
    num_nodes = draw(st.integers(1, 4))
    nodes = [sorted(draw(st.sets(st.integers(0, 8), max_size=9))) for _ in range(num_nodes)]
    kinds = st.builds(Bundle, st.integers(1, 3), st.sampled_from(chain))
    return nodes, draw(st.lists(kinds, max_size=6))


@settings(max_examples=400, deadline=None)
@given(packings())
def test_packing_succeeds_exactly_when_search_does_and_when_the_inequalities_hold(
    case: tuple[list[list[int]], list[Bundle]],
) -> None:
    nodes, instances = case
    groups = sorted((i.size for i in instances for _ in range(i.groups)), reverse=True)
    free = [len(slots) for slots in nodes]
    placed = pack(nodes, instances)
    assert (placed is not None) == fits(free, instances) == (sum(groups) <= sum(free) and can_place(free, groups))


@settings(max_examples=200, deadline=None)
@given(packings())
def test_every_group_has_its_size_on_free_slots_of_one_node_and_none_is_shared(
    case: tuple[list[list[int]], list[Bundle]],
) -> None:
    nodes, instances = case
    placed = pack(nodes, instances)
    if placed is None:
        return
    taken = [(group.node, slot) for groups in placed for group in groups for slot in group.slots]
    assert len(taken) == len(set(taken))
    assert all(slot in nodes[node] for node, slot in taken)
    for instance, groups in zip(instances, placed, strict=True):
        assert [len(group.slots) for group in groups] == [instance.size] * instance.groups
        assert all(nodes[group.node].index(group.slots[0]) % instance.size == 0 for group in groups)


def test_small_instances_fill_the_fullest_node_and_leave_whole_nodes_free() -> None:
    nodes = [list(range(8)), list(range(8)), list(range(4))]
    placed = pack(nodes, [Bundle(1, 2), Bundle(1, 4), Bundle(1, 8)])
    assert placed is not None
    assert [groups[0].node for groups in placed] == [0, 2, 1] or [groups[0].node for groups in placed] == [1, 2, 0]


def test_an_instance_of_two_nodes_takes_consecutive_ones() -> None:
    nodes = [list(range(8)), list(range(6)), list(range(8)), list(range(8))]
    placed = pack(nodes, [Bundle(2, 8)])
    assert placed is not None
    assert [group.node for group in placed[0]] == [2, 3]


def test_an_instance_of_several_groups_stays_on_one_node_when_it_can() -> None:
    placed = pack([list(range(4)), list(range(4)), list(range(8))], [Bundle(2, 4)])
    assert placed is not None
    assert [(group.node, group.slots[0]) for group in placed[0]] == [(2, 0), (2, 4)]


def test_a_missing_slot_is_stepped_over() -> None:
    placed = pack([[0, 1, 2, 4, 5, 6, 7]], [Bundle(1, 4), Bundle(1, 2), Bundle(1, 1)])
    assert placed is not None
    assert [groups[0].slots for groups in placed] == [(0, 1, 2, 4), (5, 6), (7,)]


def test_sizes_that_do_not_divide_each_other_are_refused() -> None:
    with pytest.raises(PlannerError, match="2 and 3"):
        pack([[0, 1, 2, 3]], [Bundle(1, 2), Bundle(1, 3)])


@settings(max_examples=100, deadline=None)
@given(packings())
def test_an_instance_of_one_group_goes_where_it_leaves_least_room(case: tuple[list[list[int]], list[Bundle]]) -> None:
    nodes, kinds = case
    instances = sorted((Bundle(1, kind.size) for kind in kinds), key=lambda instance: -instance.size)
    placed, free = pack(nodes, instances), [len(slots) for slots in nodes]
    for instance, groups in zip(instances, placed or (), strict=False):
        able = [(free[node], node) for node in range(len(nodes)) if free[node] >= instance.size]
        assert groups[0].node == min(able)[1]
        free[groups[0].node] -= instance.size

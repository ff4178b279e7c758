"""Routing groups confined to nodes: few nodes a group, and balance that a second node buys back."""

import numpy as np
import pytest
from expert_loads import imbalance

from planner.errors import PlannerError
from planner.experts.confine import confine
from planner.experts.layout import plan_layout
from planner.experts.ranks import make_ranks

RANKS = make_ranks(16, 10, ranks_per_node=4)
LOAD = np.random.default_rng(0).lognormal(0, 0.4, (3, 128)) * np.repeat(
    np.random.default_rng(1).lognormal(0, 0.5, (3, 8)), 16, axis=1
)


def test_each_group_lies_on_as_many_nodes_as_asked() -> None:
    for nodes in (1, 2, 3):
        allowed = confine(LOAD[0], RANKS, 8, nodes)
        by_node = allowed.reshape(8, 16, 4, 4)
        assert (by_node == by_node[:, :1, :, :1]).all()
        assert (by_node[:, 0, :, 0].sum(axis=1) == nodes).all()


def test_a_second_node_a_group_buys_balance_back() -> None:
    reached = []
    for nodes in (1, 2, 4):
        allowed = np.array([confine(row, RANKS, 8, nodes) for row in LOAD])
        layout = plan_layout(LOAD, RANKS, allowed_ER=allowed)
        for layer in range(3):
            assert allowed[layer][layout.expert_LP[layer], RANKS.rank_P].all()
            ratio = imbalance(RANKS, layout.expert_LP[layer], LOAD[layer])
            assert ratio == pytest.approx(layout.imbalance_L[layer])
        assert (layout.bound_L <= layout.imbalance_L + 1e-9).all()
        reached.append(float(layout.imbalance_L.mean()))
    assert reached[0] > reached[1] > reached[2]
    assert reached[2] < 1.001


def test_groups_that_do_not_fit_are_refused() -> None:
    with pytest.raises(PlannerError, match="7 groups do not divide 128 experts"):
        confine(LOAD[0], RANKS, 7, 1)
    with pytest.raises(PlannerError, match="5 nodes for each group, there are 4"):
        confine(LOAD[0], RANKS, 8, 5)
    with pytest.raises(PlannerError, match="no node has 64 slots left"):
        confine(LOAD[0], make_ranks(16, 9, ranks_per_node=4), 2, 1)

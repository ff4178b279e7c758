"""Batches whose routing is known: homes between batches, copies inside nodes, and what both leave over."""

import numpy as np
import pytest

from planner.errors import PlannerError
from planner.experts.known_routing import plan_batch
from planner.experts.ranks import make_ranks

RANKS = make_ranks(16, 6, ranks_per_node=4)  # 4 nodes, 4 homes and 2 free slots a rank


def _batch(seed: int, micro_batches: int = 6, layers: int = 2, experts: int = 64) -> np.ndarray:
    """Micro-batches drawn from a few subjects, each with its own liking for experts."""
    rng = np.random.default_rng(seed)
    liking = np.random.default_rng(1).lognormal(0, 0.8, (4, layers, experts))
    mixes = rng.dirichlet(np.ones(4), micro_batches)
    chances = np.einsum("ms,sle->mle", mixes, liking)
    drawn: np.ndarray = rng.poisson(chances / chances.sum(axis=2, keepdims=True) * 2e5).astype(float)
    return drawn


def test_every_token_is_served_inside_the_node_of_its_expert() -> None:
    load = _batch(0)
    plan = plan_batch(load, RANKS)
    for m, layer in np.ndindex(load.shape[:2]):
        rank_of = {int(expert): slot // 4 for slot, expert in enumerate(plan.home_LE[layer])}
        carried = np.zeros(16)
        left = load[m, layer].copy()
        for rank, slot in np.ndindex(16, 2):
            expert = int(plan.copy_MLRJ[m, layer, rank, slot])
            if expert >= 0:
                assert rank_of[expert] // 4 == rank // 4
                assert rank_of[expert] != rank
                amount = plan.share_MLRJ[m, layer, rank, slot] * load[m, layer, expert]
                carried[rank] += amount
                left[expert] -= amount
        assert (left >= -1e-6).all()
        for expert, rank in rank_of.items():
            carried[rank] += left[expert]
        assert carried.max() / carried.mean() == pytest.approx(plan.imbalance_ML[m, layer])
        assert plan.imbalance_ML[m, layer] >= plan.node_imbalance_ML[m, layer] - 1e-9


def test_new_homes_balance_the_nodes_of_every_micro_batch() -> None:
    load = _batch(3)
    staying, moving = plan_batch(load, RANKS, least_gain=np.inf), plan_batch(load, RANKS)
    assert staying.moved_experts == 0
    assert moving.moved_experts > 0
    assert moving.node_imbalance_ML.mean() < staying.node_imbalance_ML.mean()
    assert moving.imbalance_ML.mean() < staying.imbalance_ML.mean()


def test_experts_that_keep_their_node_keep_their_slot_and_later_batches_move_fewer() -> None:
    first = plan_batch(_batch(3), RANKS)
    second = plan_batch(_batch(4), RANKS, home_LE=first.home_LE)
    assert second.moved_experts < first.moved_experts
    for layer in range(2):
        assert sorted(second.home_LE[layer].tolist()) == list(range(64))
        same = second.home_LE[layer] == first.home_LE[layer]
        assert (~same).sum() <= second.moved_experts


def test_homes_and_ranks_that_do_not_fit_are_refused() -> None:
    with pytest.raises(PlannerError, match="do not hold every one of 64 experts once"):
        plan_batch(_batch(0), RANKS, home_LE=np.zeros((2, 64)))
    with pytest.raises(PlannerError, match="64 experts on 12 ranks"):
        plan_batch(_batch(0), make_ranks(12, 8, ranks_per_node=4))
    with pytest.raises(PlannerError, match="not in order of their nodes"):
        plan_batch(_batch(0), make_ranks(4, 20, node_of_rank=[0, 1, 0, 1]))

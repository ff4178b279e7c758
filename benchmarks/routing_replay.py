"""RL training that replays routing known from its rollouts: homes between batches and copies inside nodes, against EPLB
planned on the very loads of the batch.

Routing is generated: 20 nodes of 8 ranks, micro-batches of 8,192 tokens a rank, drawn from a dozen subjects that differ
in the experts they like; rollouts of one prompt share a subject, so micro-batches differ from one another. Times come
from the cost model, forward and twice that backward. Ours pays for what it moves: weights, master weights and moments
of experts that change nodes over the network (14 bytes a parameter), weights and gradients of copies over NVLink, and
planning, none of it overlapped. EPLB pays for nothing.
"""

from dataclasses import dataclass

import eplb
import numpy as np

from planner.experts.known_routing import BatchPlan, plan_batch
from planner.experts.ranks import Ranks, make_ranks
from planner.experts.replay import PLAN_LAYER_S
from planner.experts.step_time import MoeCosts
from planner.hardware.cluster import Pool
from planner.hardware.library import find_node
from planner.models.library import find_model

NODES, RANKS_PER_NODE, TOKENS_PER_RANK = 20, 8, 8192
BATCHES, MICRO_BATCHES, LAYERS, SUBJECTS = 4, 16, 8, 12
FREE_SLOTS = 2
PASSES = 3.0  # forward, and gradients of inputs and weights
BYTES_PER_PARAMETER = 14.0  # bf16 weights, fp32 master weights and two moments (mixed-precision Adam)
COPY_TRIPS = 3.0  # weights out, fp32 gradients back


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of the time that perfect balance would take, and of EPLB's; `reordering` is a share of our step."""

    of_ideal: float
    over_eplb: float
    reordering: float
    imbalance: float
    eplb_imbalance: float


def generate(experts: int, replicas: int, top_k: int, ranks: int, seed: int) -> np.ndarray:
    """[batch, replica, micro-batch, layer, expert] tokens."""
    rng = np.random.default_rng(seed)
    base = rng.lognormal(0.0, 0.5, (LAYERS, experts))
    liking = rng.lognormal(0.0, 0.7, (SUBJECTS, LAYERS, experts))
    load = np.empty((BATCHES, replicas, MICRO_BATCHES, LAYERS, experts))
    for batch in range(BATCHES):
        prior = np.maximum(4.0 * rng.dirichlet(np.ones(SUBJECTS)), 1e-3)
        mixes = rng.dirichlet(prior, (replicas, MICRO_BATCHES))
        chances = base * np.einsum("gms,sle->gmle", mixes, liking)
        chances /= chances.sum(axis=3, keepdims=True)
        load[batch] = rng.poisson(chances * TOKENS_PER_RANK * ranks * top_k)
    return load


def measure(model_name: str, top_k: int, experts: int, ranks_per_replica: int, seed: int = 0) -> Outcome:
    """All batches replayed on replicas of one expert-parallel group; replicas meet at the end of every batch."""
    replicas = NODES * RANKS_PER_NODE // ranks_per_replica
    load = generate(experts, replicas, top_k, ranks_per_replica, seed)
    each = experts // ranks_per_replica
    ranks = make_ranks(ranks_per_replica, each + FREE_SLOTS, ranks_per_node=RANKS_PER_NODE)
    node = find_node("h800_sxm")
    pool = Pool("h800", node, ranks_per_replica // RANKS_PER_NODE)
    costs = MoeCosts(find_model(model_name), pool, ranks_per_replica, float(TOKENS_PER_RANK))
    ours_s = eplb_s = reorder_s = 0.0
    homes, plans, base = None, [], []
    for batch in load:
        plan = plan_batch(batch.reshape(-1, LAYERS, experts), ranks, home_LE=homes)
        homes = plan.home_LE
        moving_s = _reorder_s(costs, plan)
        imbalance = plan.imbalance_ML.reshape(replicas, MICRO_BATCHES, LAYERS)
        eplb_imbalance = _eplb(batch, ranks)
        reorder_s += moving_s
        ours_s += _batch_s(costs, imbalance, _copies_s(costs, plan)) + moving_s
        eplb_s += _batch_s(costs, eplb_imbalance, 0.0)
        plans.append(imbalance.mean())
        base.append(eplb_imbalance.mean())
    ideal_s = BATCHES * MICRO_BATCHES * PASSES * costs.step_s([1.0])
    return Outcome(ideal_s / ours_s, eplb_s / ours_s, reorder_s / ours_s, float(np.mean(plans)), float(np.mean(base)))


def _batch_s(costs: MoeCosts, imbalance_GML: np.ndarray, extra_s: float) -> float:
    """The slowest replica's micro-batches, each with `extra_s` for its copies and planning."""
    return max(sum(PASSES * costs.step_s(row) + extra_s for row in replica) for replica in imbalance_GML)


def _reorder_s(costs: MoeCosts, plan: BatchPlan) -> float:
    """Experts that changed node, over the network; the layers generated stand for all."""
    from planner.costs.operators.kernels import bytes_per

    parameters = costs.expert_bytes / bytes_per(costs.model.precisions.experts)
    moved = plan.moved_experts * costs.num_layers / LAYERS
    return costs.move_s(moved * parameters * BYTES_PER_PARAMETER)


def _copies_s(costs: MoeCosts, plan: BatchPlan) -> float:
    """One micro-batch's copies into the busiest rank of each layer, over NVLink, and planning them."""
    from planner.costs.operators.kernels import bytes_per

    parameters = costs.expert_bytes / bytes_per(costs.model.precisions.experts)
    inbound_bytes = plan.most_inbound * parameters * 2.0 * COPY_TRIPS
    sent_s = inbound_bytes / costs.pool.node.scale_up_bandwidth_bytes_per_s
    return costs.num_layers * (sent_s + PLAN_LAYER_S)


def _eplb(batch_GMLE: np.ndarray, ranks: Ranks) -> np.ndarray:
    """[replica, micro-batch, layer] imbalance of EPLB's global layout of the batch's own total loads."""
    replicas, micro_batches, layers, experts = batch_GMLE.shape
    ratios = np.empty((replicas, micro_batches, layers))
    for replica in range(replicas):
        for layer in range(layers):
            load_ME = batch_GMLE[replica, :, layer]
            layout_P = eplb.balance_globally(load_ME.sum(axis=0), ranks.num_slots, ranks.num_ranks)
            copies_E = np.bincount(layout_P, minlength=experts)
            load_MR = (load_ME / copies_E)[:, layout_P].reshape(micro_batches, ranks.num_ranks, -1).sum(axis=2)
            ratios[replica, :, layer] = load_MR.max(axis=1) / load_MR.mean(axis=1)
    return ratios

"""What copies in every micro-batch gain, net of planning them and of sending their weights.

Suffixes: W micro-batch, L layer, E expert, N layer of a micro-batch, R rank.
"""

from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats, Ints
from planner.costs.rates.calibration import load_calibration
from planner.experts.ranks import Ranks, linear_layout
from planner.experts.replay import served_imbalance
from planner.experts.step_time import MoeCosts
from planner.experts.steps import CopyRules, StepPlanner
from planner.hardware.cluster import Pool

PLAN_LAYER_S = 1.1e-4
"""Planning copies of one layer on its GPUs, 0.067 to 0.078 ms, and routing tokens anew, 0.04 ms, with 256 experts on 64
ranks (UltraEP, arXiv:2606.04101)."""


@dataclass(frozen=True, slots=True)
class CopiesWorth:
    """Seconds of a mean micro-batch, forward: with experts in order, with copies, and what these take besides."""

    in_order_s: float
    balanced_s: float
    planned_s: float
    sent_s: float

    @property
    def copied_s(self) -> float:
        """With copies, planned and sent before the experts run."""
        return self.balanced_s + self.planned_s + self.sent_s

    @property
    def net_gain(self) -> float:
        """Share of a micro-batch that copies save; negative where they cost more."""
        return 1.0 - self.copied_s / self.in_order_s


def copies_worth(load_WLE: Floats, ranks: Ranks, rules: CopyRules, costs: MoeCosts) -> CopiesWorth:
    """Of copies under these rules, planned from the exact loads of every micro-batch, in tokens."""
    batches, layers, experts = load_WLE.shape
    rows = StepPlanner(ranks, experts, rules=rules).plan_rows(load_WLE.reshape(-1, experts))
    start_LP = np.tile(linear_layout(ranks, experts), (layers, 1))
    in_order_WL = np.array([served_imbalance(ranks, start_LP, load_LE) for load_LE in load_WLE])
    received = _busiest(rows.expert_NP, ranks, experts // ranks.num_ranks).mean() * costs.num_layers
    return CopiesWorth(
        in_order_s=float(np.mean([costs.step_s(row) for row in in_order_WL])),
        balanced_s=float(np.mean([costs.step_s(row) for row in rows.imbalance_N.reshape(batches, layers)])),
        planned_s=PLAN_LAYER_S * costs.num_layers,
        sent_s=float(received) * costs.expert_bytes / _bytes_per_s(costs.pool, rules.domain or ranks.num_ranks),
    )


def in_micro_batches(load_WLE: Floats, tokens_per_rank: float, ranks: int, experts_per_token: float) -> Floats:
    """The loads as so many tokens on every rank, each to so many experts, whatever was recorded in a window."""
    whole = tokens_per_rank * ranks * experts_per_token
    return np.asarray(load_WLE * (whole / load_WLE.sum(axis=2, keepdims=True)))


def _busiest(expert_NP: Ints, ranks: Ranks, homes: int) -> Floats:
    """[N] copies that the busiest rank receives."""
    slot_P = np.arange(ranks.num_slots) - ranks.first_R[ranks.rank_P]
    copied_NP = (expert_NP >= 0) & (slot_P >= homes)
    return np.asarray(np.add.reduceat(copied_NP.astype(float), ranks.first_R[:-1], axis=1).max(axis=1))


def _bytes_per_s(pool: Pool, domain: int) -> float:
    """Of a rank to others of its domain: over the scale-up fabric where that reaches all of them."""
    node, known = pool.node, load_calibration().efficiencies
    if domain <= max(node.num_gpus, node.scale_up_size):
        return node.scale_up_bandwidth_bytes_per_s * known.collective_bandwidth
    slowest = pool.topology().levels[-1].bandwidth_bytes_per_s
    return min(node.nic_bandwidth_bytes_per_s, slowest) * known.fabric_bandwidth

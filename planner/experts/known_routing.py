"""Expert placements for known routing, as in RL training that replays the routing of its rollouts (ReLibra).

Between batches, experts change nodes so that the nodes are balanced in every micro-batch of the batch to come; inside a
batch, each micro-batch copies experts between the ranks of a node alone, around homes that stay. The split is that of
ReLibra (arXiv:2605.08639); the methods are our own: swaps that lower the sum of squared node loads over all
micro-batches, and exports with relays. Shape suffixes: M micro-batch, L layer, E expert, R rank, J free slot.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner.arrays import Floats, Ints
from planner.errors import PlannerError
from planner.experts.ranks import Ranks, require_loads
from planner.solvers.layouts.exports import ROUNDS, TOLERANCE

LEAST_GAIN = 3e-4
"""Mean fall, over micro-batches, of the sum of squared node loads (of mean 1) for which two experts change nodes."""


@dataclass(frozen=True, slots=True, eq=False)
class BatchPlan:
    """Homes for a batch, and the copies of every micro-batch.

    `home_LE` is the expert in each home slot, rank by rank; `copy_MLRJ` the expert in each free slot (-1: none), and
    `share_MLRJ` its share of that expert's tokens, the rest of which stays at home.
    """

    home_LE: Ints
    copy_MLRJ: Ints
    share_MLRJ: Floats
    imbalance_ML: Floats
    node_imbalance_ML: Floats  # of the busiest node: what copies inside nodes cannot go below
    moved_experts: int  # that changed node since the batch before, all layers together

    @property
    def most_inbound(self) -> float:
        """Copies that the busiest rank receives in one layer, mean over micro-batches and layers."""
        return float((self.copy_MLRJ >= 0).sum(axis=3).max(axis=2).mean())


def plan_batch(
    load_MLE: npt.ArrayLike,
    ranks: Ranks,
    *,
    home_LE: npt.ArrayLike | None = None,
    least_gain: float = LEAST_GAIN,
    tolerance: float = TOLERANCE,
) -> BatchPlan:
    """Homes and copies for the micro-batches of one batch, of all replicas of the group of ranks together.

    `home_LE` are the homes of the batch before; experts in order unless given. The homes are common to all replicas,
    so that gradients of an expert are reduced as before. Raises PlannerError for loads or homes that do not fit.
    """
    loads = np.ascontiguousarray(load_MLE, np.float64)
    require_loads(loads, "micro-batch,layer,expert")
    _, layers, experts = loads.shape
    each, uneven = divmod(experts, ranks.num_ranks)
    if uneven or (ranks.slots_R < each).any() or len(set(np.bincount(ranks.node_R).tolist())) > 1:
        raise PlannerError(
            f"{experts} experts on {ranks.num_ranks} ranks of {ranks.num_nodes} nodes",
            where="ranks",
            hint="use equal nodes whose ranks hold as many experts each",
        )
    if (np.diff(ranks.node_R) < 0).any():
        raise PlannerError("ranks are not in order of their nodes", where="ranks", hint="number them node by node")
    before = _homes(home_LE, layers, experts)
    after = np.array([_reorder(loads[:, layer], before[layer], ranks.num_nodes, least_gain) for layer in range(layers)])
    per_node = experts // ranks.num_nodes
    node_before, node_after = (_node_of(homes, per_node) for homes in (before, after))
    copy, share, imbalance = _copies(loads, after, ranks, each, tolerance)
    node_loads = (
        np.take_along_axis(loads, after[None], axis=2).reshape(*loads.shape[:2], ranks.num_nodes, -1).sum(axis=3)
    )
    return BatchPlan(
        home_LE=after,
        copy_MLRJ=copy,
        share_MLRJ=share,
        imbalance_ML=imbalance,
        node_imbalance_ML=node_loads.max(axis=2) / node_loads.mean(axis=2),
        moved_experts=int((node_before != node_after).sum()),
    )


def _homes(home_LE: npt.ArrayLike | None, layers: int, experts: int) -> Ints:
    if home_LE is None:
        return np.tile(np.arange(experts), (layers, 1))
    homes = np.asarray(home_LE, np.int64)
    if homes.shape != (layers, experts) or (np.sort(homes, axis=1) != np.arange(experts)).any():
        raise PlannerError(
            f"of shape {homes.shape} do not hold every one of {experts} experts once in {layers} layers",
            where="homes",
            hint="give the homes of the batch before",
        )
    return homes


def _node_of(home_LE: Ints, per_node: int) -> Ints:
    """[L, E] the node of each expert."""
    node_LE = np.empty_like(home_LE)
    np.put_along_axis(node_LE, home_LE, np.broadcast_to(np.arange(home_LE.shape[1]) // per_node, home_LE.shape), axis=1)
    return node_LE


def _reorder(load_ME: Floats, home_E: Ints, nodes: int, least_gain: float) -> Ints:
    """Homes of one layer after swaps between nodes; experts that stay on their node keep their slot."""
    from planner.solvers.compiled.scenarios import balance

    if nodes == 1:
        return home_E
    per_node = len(home_E) // nodes
    node_E = np.empty(len(home_E), np.int64)
    node_E[home_E] = np.arange(len(home_E)) // per_node
    balance(np.ascontiguousarray(load_ME), node_E, nodes, least_gain * len(load_ME), len(home_E))
    slot_node_E = np.arange(len(home_E)) // per_node
    after_E = np.where(node_E[home_E] == slot_node_E, home_E, -1)
    for node in range(nodes):
        empty = np.nonzero((after_E < 0) & (slot_node_E == node))[0]
        after_E[empty] = [
            expert for expert in np.nonzero(node_E == node)[0] if expert not in after_E[slot_node_E == node]
        ]
    return after_E


def _copies(loads: Floats, home_LE: Ints, ranks: Ranks, each: int, tolerance: float) -> tuple[Ints, Floats, Floats]:
    """(expert in each free slot, its share there, imbalance) by micro-batch and layer."""
    from planner.solvers.compiled.exports import export_rows

    batches, layers, experts = loads.shape
    ordered = np.ascontiguousarray(np.take_along_axis(loads, home_LE[None], axis=2)).reshape(-1, experts)
    free_R = ranks.slots_R - each
    shape = (len(ordered), ranks.num_ranks, max(1, int(free_R.max())))
    item, amount, ratio = np.full(shape, -1, np.int64), np.zeros(shape), np.empty(len(ordered))
    first_R = np.arange(ranks.num_ranks + 1, dtype=np.int64) * each
    first_G = np.searchsorted(ranks.node_R, np.arange(ranks.num_nodes + 1)).astype(np.int64)
    export_rows(
        ordered, first_R, ranks.speed_R, free_R, first_G, 0.0, ranks.num_ranks, tolerance, ROUNDS, item, amount, ratio
    )
    row = np.arange(len(ordered))[:, None, None]
    filled = item >= 0
    share = np.where(filled, amount / np.maximum(ordered[row, np.maximum(item, 0)], 1e-300), 0.0)
    expert = np.where(filled, np.tile(home_LE, (batches, 1))[row, np.maximum(item, 0)], -1)
    whole = (batches, layers, *shape[1:])
    return expert.reshape(whole), share.reshape(whole), ratio.reshape(batches, layers)

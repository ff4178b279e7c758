"""Co-activation-aware expert placement: experts chosen by the same tokens close together, and ranks in balance.

Shape suffixes: N token, L layer, K choice, P slot.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner.arrays import Floats, Ints
from planner.errors import PlannerError
from planner.experts.ranks import Ranks, require_slots
from planner.solvers.layouts.affinity import (
    PRICE,
    AffinityLayout,
    AffinityProblem,
    covariance,
    home_groups,
    judged,
    solve_affinity,
)


@dataclass(frozen=True, slots=True, eq=False)
class TokenLayout:
    """Experts by layer and slot; nodes that a token visits, and the slowest rank over the mean on the tokens planned on
    and, in the mean, on as many fresh ones."""

    expert_LP: Ints
    nodes_per_token_L: Floats
    imbalance_L: Floats
    fresh_imbalance_L: Floats


def plan_tokens(
    expert_NLK: npt.ArrayLike,
    ranks: Ranks,
    num_experts: int,
    *,
    imbalance_price: float = PRICE,
    fresh_tokens: int | None = None,
    seed: int = 0,
) -> TokenLayout:
    """The layout of every layer from the experts that tokens chose in it.

    `imbalance_price` is the nodes a token that the slowest rank's excess over the mean, as a share, is worth: with
    100, 1 % weighs one node. `fresh_tokens` is how many tokens come at a time; as many as are given unless told.
    Raises PlannerError for choices that name no expert.
    """
    chosen = np.asarray(expert_NLK)
    if chosen.ndim != 3 or chosen.size == 0 or not np.issubdtype(chosen.dtype, np.integer):
        raise PlannerError(
            f"must hold whole numbers with the axes [token, layer, choice], found {chosen.dtype} {chosen.shape}",
            where="topk_ids",
            hint="give the experts that each token chose in each layer",
        )
    if fresh_tokens is not None and fresh_tokens < 1:
        raise PlannerError(f"must be at least 1, found {fresh_tokens}", where="fresh tokens")
    require_slots(ranks.slots_R, num_experts)
    if ranks.num_nodes > 1:
        require_slots(ranks.slots_N, num_experts, "node")
    layouts = []
    for layer in range(chosen.shape[1]):
        expert_NK = np.ascontiguousarray(chosen[:, layer], np.int64)
        low, high = int(expert_NK.min()), int(expert_NK.max())
        if low < 0 or high >= num_experts:
            raise PlannerError(
                f"names expert {low if low < 0 else high} of {num_experts}",
                where=f"topk_ids, layer {layer}",
                hint="experts count from 0",
            )
        problem = AffinityProblem(
            expert_NK, num_experts, ranks.slots_R, ranks.node_R, imbalance_price, ranks.speed_R, fresh_tokens
        )
        solution = solve_affinity(problem, seed=seed).solution
        assert solution is not None
        layouts.append(solution)
    return _of_layers(layouts)


def judge_tokens(expert_NLK: Ints, ranks: Ranks, num_experts: int, expert_LP: Ints) -> TokenLayout:
    """A given layout with its figures, as `plan_tokens` states them of its own."""
    layouts = []
    for layer, item_P in enumerate(expert_LP):
        expert_NK = np.ascontiguousarray(expert_NLK[:, layer], np.int64)
        problem = AffinityProblem(expert_NK, num_experts, ranks.slots_R, ranks.node_R, speed_R=ranks.speed_R)
        layouts.append(judged(problem, item_P, covariance(problem, home_groups(problem)) * problem.noise))
    return _of_layers(layouts)


def _of_layers(layouts: list[AffinityLayout]) -> TokenLayout:
    return TokenLayout(
        np.array([layout.item_P for layout in layouts]),
        np.array([layout.groups_touched for layout in layouts]),
        np.array([layout.imbalance for layout in layouts]),
        np.array([layout.fresh_imbalance for layout in layouts]),
    )

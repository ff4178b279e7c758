"""Pareto frontier of expert placements: imbalance, traffic between nodes, copies moved, redundant slots.

Counts are the mean imbalance, the share of tokens that leave their node, the copies moved from the resident layout and
the redundant slots. Shape suffixes: L layer, E expert, K choice, N token, P slot.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from planner.arrays import Floats, Ints
from planner.experts.layout import Layout, at_slots, copies_moved, plan_layout
from planner.experts.ranks import Ranks
from planner.experts.replay import served_imbalance
from planner.experts.sizing import MoveValue, worth_moving
from planner.experts.step_time import MoeCosts
from planner.experts.tokens import TokenLayout, plan_tokens
from planner.experts.traffic import draw_near, leaving_share
from planner.solvers.pareto import non_dominated

SLACKS = (0.0005, 0.002, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32)
"""Above the bound of each layer, from nearly all that can be had to hardly anything."""
NEAR_SLACKS = (0.0, 0.01, 0.05)
"""Of the time of a layer's slowest rank, given up for tokens that stay on their node."""
PRICES = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
"""Of imbalance in nodes a token, from few nodes to good balance."""


@dataclass(frozen=True, slots=True, eq=False)
class Tradeoff:
    """One choice: the layout, its mean and worst imbalance, tokens that leave their node, copies sent, redundant slots
    of a layer; and whether it pays, where costs are known."""

    layout: Layout
    imbalance_mean: float
    imbalance_worst: float
    leaving_share: float
    moved_experts: int
    redundant_slots: int
    slots_per_rank: float  # mean
    verdict: MoveValue | None = None


def tradeoffs(
    load_LE: Floats,
    ranks: Ranks,
    resident_LP: npt.ArrayLike,
    *,
    slacks: Sequence[float] = SLACKS,
    more_slots: Sequence[int] = (0,),
    costs: MoeCosts | None = None,
    expert_bytes: float = 0.0,
    steps: int = 1,
    seed: int = 0,
) -> list[Tradeoff]:
    """Layouts of which none is as good as another on every count and better on one; fewest moves first.

    `more_slots` are numbers of slots a rank to add. With `costs`, each choice is weighed against staying: seconds saved
    in `steps` steps, and seconds that its moves take.
    """
    resident = np.asarray(resident_LP, np.int64)
    choices = []
    for more in more_slots:
        wider = ranks.with_more_slots(more)
        padded = _padded(resident, ranks, more)
        for layout in _layouts(load_LE, wider, padded, slacks, seed):
            choices.append(_choice(layout, load_LE, wider, padded))
    points = np.array(
        [[row.imbalance_mean, row.leaving_share, row.moved_experts, row.redundant_slots] for row in choices]
    )
    kept = [choices[index] for index in non_dominated(points.round(6), maximise=(False,) * 4)]
    if costs is not None:
        staying_L = served_imbalance(ranks, resident, load_LE)
        kept = [_weighed(row, costs, staying_L, expert_bytes or costs.expert_bytes, steps) for row in kept]
    return sorted(kept, key=lambda row: (row.moved_experts, row.redundant_slots, row.imbalance_mean))


def _layouts(load_LE: Floats, ranks: Ranks, resident_LP: Ints, slacks: Sequence[float], seed: int) -> Iterator[Layout]:
    """The resident layout, layouts near it for every slack, and the nearest to balance with tokens kept on nodes."""
    filled = plan_layout(load_LE, ranks, resident_LP=resident_LP, most_moves=0, seed=seed)
    yield replace(filled, expert_LP=resident_LP, imbalance_L=served_imbalance(ranks, resident_LP, load_LE))
    yield filled
    for slack in sorted(slacks):
        layout = plan_layout(load_LE, ranks, resident_LP=resident_LP, tolerance=slack, seed=seed)
        yield layout
        if ranks.num_nodes > 1 and slack == min(slacks):
            yield from (draw_near(load_LE, ranks, layout, slack=given_up) for given_up in NEAR_SLACKS)


def _choice(layout: Layout, load_LE: Floats, ranks: Ranks, resident_LP: Ints) -> Tradeoff:
    return Tradeoff(
        layout,
        float(layout.imbalance_L.mean()),
        float(layout.imbalance_L.max()),
        float(leaving_share(load_LE, ranks, layout.expert_LP).mean()),
        copies_moved(ranks, resident_LP, layout.expert_LP),
        ranks.num_slots - load_LE.shape[1],
        ranks.num_slots / ranks.num_ranks,
    )


def _weighed(row: Tradeoff, costs: MoeCosts, staying_L: Floats, expert_bytes: float, steps: int) -> Tradeoff:
    moved_bytes = row.moved_experts * expert_bytes
    return replace(row, verdict=worth_moving(costs, staying_L, row.layout.imbalance_L, moved_bytes, steps))


def _padded(resident_LP: Ints, ranks: Ranks, more: int) -> Ints:
    """The resident layout with `more` empty slots at the end of every rank."""
    if more == 0:
        return resident_LP
    wider = ranks.with_more_slots(more)
    padded_LP = np.full((len(resident_LP), wider.num_slots), -1, np.int64)
    padded_LP[:, at_slots(wider, ranks.slots_R)] = resident_LP
    return padded_LP


def token_tradeoffs(
    expert_NLK: npt.ArrayLike, ranks: Ranks, num_experts: int, *, prices: Sequence[float] = PRICES, seed: int = 0
) -> list[TokenLayout]:
    """Layouts of which none has both fewer nodes a token and better balance on fresh tokens; fewest nodes first."""
    layouts = [plan_tokens(expert_NLK, ranks, num_experts, imbalance_price=price, seed=seed) for price in prices]
    points = np.array([[row.nodes_per_token_L.mean(), row.fresh_imbalance_L.mean()] for row in layouts])
    kept = [layouts[index] for index in non_dominated(points, maximise=(False, False))]
    return sorted(kept, key=lambda row: float(row.nodes_per_token_L.mean()))

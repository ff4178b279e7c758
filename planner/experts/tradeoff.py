"""What each byte moved buys in balance: the non-dominated layouts between staying and starting over."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner.experts.layout import Layout, plan_layout
from planner.experts.ranks import Floats, Ranks
from planner.solvers.pareto import non_dominated

SLACKS = (0.0005, 0.002, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32)
"""Above the bound of each layer, from nearly all that can be had to hardly anything."""


@dataclass(frozen=True, slots=True, eq=False)
class Tradeoff:
    """One choice: the layout, its mean and worst imbalance, and the copies it sends."""

    layout: Layout
    imbalance_mean: float
    imbalance_worst: float
    moved_experts: int


def tradeoffs(
    load_LE: Floats, ranks: Ranks, resident_LP: npt.ArrayLike, *, slacks: Sequence[float] = SLACKS, seed: int = 0
) -> list[Tradeoff]:
    """Layouts of which none has both a lower mean imbalance and fewer moves than another; fewest moves first."""
    layouts = [
        plan_layout(load_LE, ranks, resident_LP=resident_LP, tolerance=slack, seed=seed) for slack in sorted(slacks)
    ]
    layouts.append(plan_layout(load_LE, ranks, resident_LP=resident_LP, most_moves=0, seed=seed))
    points = np.array([[layout.imbalance_L.mean(), layout.moved_experts] for layout in layouts], np.float64)
    kept = non_dominated(points, maximise=(False, False))
    found = [
        Tradeoff(
            layouts[at],
            float(layouts[at].imbalance_L.mean()),
            float(layouts[at].imbalance_L.max()),
            layouts[at].moved_experts or 0,
        )
        for at in kept
    ]
    return sorted(found, key=lambda choice: choice.moved_experts)

"""Best-first branch and bound over generation configurations, each priced with all trainings and modes.

Array suffixes: C configurations, M modes, T training choices.
"""

from collections.abc import Callable

import numpy as np

from planner.rl.search.pricing import Pricing
from planner.rl.training import Rollout
from planner.solvers.best_first import BestFirst

TIE = 1e-9
"""Share by which rounding may set equal plans apart: of those the first mode is taken, which runs ahead least.
Bounds are as much above some plan at most."""


class ConfigurationSearch(BestFirst[int]):
    """A configuration waits with its quick bound, then with one over its trainings, then its rollout is simulated.

    `best_at` is (configuration, mode, training choice) of the best plan met, -1 before there is one; `bound` is below
    every plan of the space. `seen_C` counts feasible plans of a configuration that were priced exactly; `least_C` is
    below all of its plans, by what `end_C` says: 0 the quick bound, 1 that over its trainings, 2 the rollout.
    """

    def __init__(self, pricing: Pricing, rollout: Callable[[int], Rollout]) -> None:
        super().__init__()
        self.pricing = pricing
        self._rollout = rollout
        self.best_at = (-1, -1, -1)
        configurations = len(pricing.quick_C)
        self.least_C = np.array(pricing.quick_C, float)
        self.end_C, self.seen_C = np.zeros(configurations, np.int64), np.zeros(configurations, np.int64)
        self.set_nodes(pricing.quick_C)

    @property
    def seen(self) -> int:
        """Feasible plans priced exactly."""
        return int(self.seen_C.sum())

    def open(self, node: int) -> None:
        bound = float(self.pricing.bound_MT(node).min(initial=np.inf))
        self.end_C[node], self.least_C[node] = 1, bound
        self.push(bound, node)

    def close(self, leaf: int) -> None:
        row_MT = self.pricing.exact_MT(leaf, self._rollout(leaf))
        self.end_C[leaf], self.least_C[leaf] = 2, row_MT.min(initial=np.inf)
        self.seen_C[leaf] = np.isfinite(row_MT).sum()
        if row_MT.size and row_MT.min() < self.value:
            ties = np.flatnonzero(row_MT <= row_MT.min() * (1 + TIE))
            mode, choice = np.unravel_index(int(ties[0]), row_MT.shape)
            self.value, self.best_at = float(row_MT[mode, choice]), (leaf, int(mode), int(choice))

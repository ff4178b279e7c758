"""Best-first search over configurations of generation, each priced with all its trainings and modes at once.

Array suffixes: C configurations, M modes, T training choices.
"""

import heapq
import time
from collections.abc import Callable

import numpy as np

from planner.rl.search.pricing import Pricing
from planner.rl.training import Rollout


class BestFirst:
    """A configuration waits with its quick bound, then with one over its trainings, then its rollout is simulated.

    `best_at` is (configuration, mode, training choice) of the best plan met, -1 before there is one; `bound` is below
    every plan of the space; `seen` counts feasible plans priced exactly.
    """

    def __init__(self, pricing: Pricing, rollout: Callable[[int], Rollout], gap: float) -> None:
        self.pricing, self.gap = pricing, gap
        self._rollout = rollout
        self.best, self.best_at = np.inf, (-1, -1, -1)
        self.bound = np.inf
        self.seen = 0

    def run(self, deadline: float) -> str:
        """Searches until nothing can be better, or until `deadline` of the clock; returns why it stopped."""
        quick_C = self.pricing.quick_C
        order_C = np.argsort(quick_C, kind="stable")
        refined: list[tuple[float, int]] = []
        at = 0
        while True:
            next_quick = float(quick_C[order_C[at]]) if at < len(order_C) else np.inf
            next_refined = refined[0][0] if refined else np.inf
            self.bound = min(next_quick, next_refined, self.best)
            if min(next_quick, next_refined) >= self.best * (1 - self.gap) or np.isinf(self.bound):
                return "finished"
            if time.perf_counter() > deadline:
                return "time_limit"
            if next_refined <= next_quick:
                self._simulate(heapq.heappop(refined)[1])
            else:
                config = int(order_C[at])
                at += 1
                heapq.heappush(refined, (float(self.pricing.bound_MT(config).min(initial=np.inf)), config))

    def _simulate(self, config: int) -> None:
        row_MT = self.pricing.exact_MT(config, self._rollout(config))
        self.seen += int(np.isfinite(row_MT).sum())
        if row_MT.size and row_MT.min() < self.best:
            mode, choice = np.unravel_index(int(row_MT.argmin()), row_MT.shape)
            self.best, self.best_at = float(row_MT.min()), (config, int(mode), int(choice))

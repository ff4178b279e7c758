"""Best-first branch and bound over generation configurations, each priced with all trainings and modes.

Array suffixes: C configurations, M modes, T training choices.
"""

from collections.abc import Callable
from heapq import nsmallest

import numpy as np

from planner.arrays import Floats, Ints
from planner.rl.search.pricing import Pricing
from planner.rl.training import Rollout
from planner.solvers.best_first import BestFirst

TIE = 1e-9
"""Share by which rounding may set equal plans apart. Bounds are as much above some plan at most."""
MOST_TIES = 16
"""Rollouts that are simulated beyond the search, of configurations whose bounds allow plans as good as the best."""

Rank = tuple[int, float, int]
"""Of plans that are equally good: mode (those that run ahead least come first), seconds of the rollout, GPUs."""


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
        self._ties: dict[int, tuple[Floats, float]] = {}  # rows and rollouts of those as good as the best at the time
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
        rollout = self._rollout(leaf)
        row_MT = self.pricing.exact_MT(leaf, rollout)
        least = float(row_MT.min(initial=np.inf))
        self.end_C[leaf], self.least_C[leaf] = 2, least
        self.seen_C[leaf] = np.isfinite(row_MT).sum()
        if np.isfinite(least) and least <= self.value * (1 + TIE):
            self._ties[leaf] = row_MT, float(rollout.generation_s_B.mean())
        if least < self.value:
            mode, choice = np.unravel_index(int(row_MT.argmin()), row_MT.shape)
            self.value, self.best_at = least, (leaf, int(mode), int(choice))

    def settle(self, gpus_T: Callable[[int, int], Ints]) -> None:
        """Of plans as good as the best the one of the least `Rank`, among the rollouts simulated and a few more.

        Of equal ranks the configuration of the best met comes first. `gpus_T` are those of plans of a configuration
        in a mode, by training choice.
        """
        if self.best_at[0] < 0:
            return
        first, best, most = self.best_at[0], self.value, self.value * (1 + TIE)
        for config in self._unsimulated(most):
            self.close(config)
        if self.value < best * (1 - TIE):  # of a search that ended within a gap
            first, most = self.best_at[0], self.value * (1 + TIE)
        else:
            self.value = best  # what rounding sets apart is no better
        ranked = [
            (self._rank(config, flat, gpus_T), config != first, config, flat)
            for config, (row_MT, _) in self._ties.items()
            for flat in np.flatnonzero(row_MT <= most).tolist()
        ]
        _, _, config, flat = min(ranked)
        mode, choice = divmod(flat, self._ties[config][0].shape[1])
        self.best_at = config, mode, choice

    def _rank(self, config: int, flat: int, gpus_T: Callable[[int, int], Ints]) -> Rank:
        row_MT, generation_s = self._ties[config]
        mode, choice = divmod(flat, row_MT.shape[1])
        return mode, float(f"{generation_s:.9g}"), int(gpus_T(config, mode)[choice])

    def _unsimulated(self, most: float) -> list[int]:
        """A few configurations with the least bounds on modes and rollouts whose plans may be no worse than `most`."""
        waiting = np.flatnonzero((self.end_C < 2) & (self.least_C <= most))
        shortest = waiting[np.argsort(self.pricing.generation_C[waiting], kind="stable")]
        modes: dict[int, int] = {}
        for config in shortest[: MOST_TIES**2].tolist():
            allowed_M = (self.pricing.bound_MT(config) <= most).any(axis=1)
            if allowed_M.any():
                modes[config] = int(allowed_M.argmax())
        return nsmallest(MOST_TIES, modes, key=modes.__getitem__)  # of a mode the shortest first

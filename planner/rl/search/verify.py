"""Verifies an RL bound: every generation configuration is pruned by its own bound, or priced exactly."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from planner.rl.problem import RlProblem, validate
from planner.rl.search.enumeration import build_space
from planner.rl.search.pricing import Pricing, pricing_of
from planner.rl.search.search import Simulations


@dataclass(frozen=True, slots=True)
class Derived:
    """`least` is below every plan of the space: the bound that was asked about, or the cheapest plan below it.

    Of the configurations of generation, a formula says of those `closed` that no plan is below, of the others their
    rollout, `simulated`.
    """

    least: float
    closed: int
    simulated: int


def derive_bound(problem: RlProblem, bound: float, tolerance: float) -> Derived:
    """Whether no plan of `problem` is below `bound` by more than a share `tolerance`, whatever found it.

    No order of search and no incumbent has a part in it. O(configurations), and one rollout for each that no formula
    closes. Raises PlannerError for a problem that `validate` refuses.
    """
    validate(problem)
    space = build_space(problem)
    pricing, simulations = pricing_of(space), Simulations(space)

    def least(config: int) -> float:
        return float(pricing.exact_MT(config, simulations.rollout(config)).min(initial=np.inf))

    return derived(pricing, least, bound, tolerance)


def derived(pricing: Pricing, least_of: Callable[[int], float], bound: float, tolerance: float) -> Derived:
    """Every configuration whose own bound is not above `bound` priced by `least_of`, whatever the order."""
    wanted = bound * (1 - tolerance)
    open_C = np.flatnonzero(pricing.quick_C < wanted)
    least, simulated = bound, 0
    for config in open_C.tolist():
        if pricing.bound_MT(config).min(initial=np.inf) >= wanted:
            continue
        simulated += 1
        least = min(least, least_of(config))
    return Derived(least, len(pricing.quick_C) - simulated, simulated)

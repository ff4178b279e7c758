"""80 % intervals of RL iterations, wider with the distance of the actor from models whose public runs are near.

Steps of public runs are longer than priced more often than shorter, and the larger the model, the more: what a launcher
does with every tensor, every node and every sample by itself is in no cost. The logarithm of published over priced lies
between low and high, both stretched by 1 + by_distance d, where d are the doublings of the actor's parameters beyond
NEAR. `fitted` takes low and high as the tenth and ninetieth percentile of stretched logarithms, each set-up counted
once, and the stretch with the best interval score (Gneiting and Raftery, JASA 102 (2007), section 6.2).
`benchmarks/rl_public.py` prints the fit to all set-ups, and how many runs intervals hold that the others gave.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log2

import numpy as np

from planner.arrays import Floats
from planner.models.architecture import Architecture
from planner.models.parameters import parameter_counts

NEAR = 33e9
"""Parameters of the largest dense model with public runs (Qwen3-32B)."""
MISSED = 0.2  # of all runs, outside their interval
STRETCHES = np.arange(0.0, 2.01, 0.05)


@dataclass(frozen=True, slots=True)
class Spread:
    """Logarithms of an iteration over its price at distance 0, and how much they grow by unit of distance."""

    low: float
    high: float
    by_distance: float


SHIPPED = Spread(low=0.0, high=0.254, by_distance=0.8)
"""Of the 30 priced runs of ../shared/data/rl/measured.csv, as `benchmarks/rl_public.py` prints it."""


def distance(arch: Architecture) -> float:
    """Doublings of the actor's parameters beyond those whose runs are near."""
    return max(0.0, log2(parameter_counts(arch).total / NEAR))


def interval_s(arch: Architecture, iteration_s: float, spread: Spread = SHIPPED) -> tuple[float, float]:
    """The 80 % interval of an iteration, its price included."""
    wider = 1.0 + spread.by_distance * distance(arch)
    return iteration_s * exp(wider * min(spread.low, 0.0)), iteration_s * exp(wider * max(spread.high, 0.0))


def fitted(log_N: Sequence[float], distance_N: Sequence[float], setup_N: Sequence[str]) -> Spread:
    """The spread of runs whose published step over price has these logarithms; set-ups weigh the same."""
    logs, far = np.asarray(log_N, float), np.asarray(distance_N, float)
    weight = np.array([1.0 / setup_N.count(setup) for setup in setup_N])
    tried = [_at(logs, far, weight, stretch) for stretch in STRETCHES]
    return min(tried, key=lambda spread: _score(logs, far, weight, spread))


def _at(log_N: Floats, distance_N: Floats, weight_N: Floats, stretch: float) -> Spread:
    scaled = log_N / (1.0 + stretch * distance_N)
    low, high = (_quantile(scaled, weight_N, share) for share in (MISSED / 2, 1.0 - MISSED / 2))
    return Spread(min(low, 0.0), max(high, 0.0), float(stretch))


def _quantile(value_N: Floats, weight_N: Floats, share: float) -> float:
    """Between the middles of the steps of the weighted distribution."""
    order = np.argsort(value_N, kind="stable")
    middle = np.cumsum(weight_N[order]) - weight_N[order] / 2.0
    return float(np.interp(share, middle / weight_N.sum(), value_N[order]))


def _score(log_N: Floats, distance_N: Floats, weight_N: Floats, spread: Spread) -> float:
    """Mean width, and what lies outside times 2 / MISSED: the least for the true quantiles."""
    wider = 1.0 + spread.by_distance * distance_N
    below, above = spread.low * wider - log_N, log_N - spread.high * wider
    outside = np.maximum(below, 0.0) + np.maximum(above, 0.0)
    return float(np.average((spread.high - spread.low) * wider + 2.0 / MISSED * outside, weights=weight_N))

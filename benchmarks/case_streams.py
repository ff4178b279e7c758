"""Streams of requests as the planning cases of pipelines define them: gamma gaps, clipped lognormal lengths."""

import math
from typing import Any

import numpy as np

from planner.arrays import Floats


def stream(case: dict[str, Any], rate_per_s: float | None = None) -> tuple[Floats, dict[str, Floats]]:
    """Arrivals [R] in seconds, and whole lengths [R] by name, from the seed of the case."""
    draws = np.random.default_rng(case["seed"])
    count, cv = case["requests"], case["arrival_cv"]
    gaps_R = draws.gamma(1 / cv**2, cv**2, count) / (rate_per_s or case["rate_per_s"])
    lengths = {}
    for name, law in case["lengths"].items():
        sigma = math.sqrt(math.log(1 + law["cv"] ** 2))
        drawn_R = draws.lognormal(math.log(law["mean"]) - sigma**2 / 2, sigma, count)
        lengths[name] = np.clip(np.rint(drawn_R), law["low"], law["high"])
    return np.cumsum(gaps_R), lengths

"""Imperfect length predictors: rankings that place a stated share (recall) of the longest samples first.

Source: StreamRL (arXiv 2504.15930) reports a ranker by its recall of the longest 20 %.
"""

import numpy as np

from planner.arrays import Floats


def recall(key_N: Floats, length_N: Floats, share: float) -> float:
    """The share of the longest `share` of samples that is among the largest `share` of keys."""
    count = max(1, round(share * len(length_N)))
    longest = np.argsort(-length_N, kind="stable")[:count]
    chosen = np.argsort(-key_N, kind="stable")[:count]
    return len(np.intersect1d(longest, chosen)) / count


def keys_of_recall(length_N: Floats, share: float, wanted: float, seed: int) -> Floats:
    """Keys whose recall of the longest `share` is `wanted`, to one sample; inside both parts the order is right.

    As many of the longest as `wanted` leaves out trade keys with samples drawn from the rest.
    """
    draw = np.random.default_rng(seed)
    order = np.argsort(-length_N, kind="stable")
    count = max(1, round(share * len(length_N)))
    swapped = min(round((1 - wanted) * count), len(order) - count)
    missed = draw.choice(order[:count], swapped, replace=False)
    taken = draw.choice(order[count:], swapped, replace=False)
    key_N = length_N.astype(float).copy()
    key_N[missed], key_N[taken] = length_N[taken], length_N[missed]
    # Ties would be broken by index: a hair keeps what was taken ahead of what was missed.
    key_N[taken] += 1e-6
    return key_N


def noisy_keys(length_N: Floats, sigma: float, seed: int) -> Floats:
    """Lengths times log-normal noise of standard deviation `sigma` in the logarithm."""
    return np.asarray(length_N * np.exp(np.random.default_rng(seed).normal(0.0, sigma, len(length_N))))

"""80 % prediction intervals: log of the bounds over the estimate, linear in a few features of the deployment.

The features say how far an estimate is from steady state: 1, q and q^2, with q the logarithm of the predicted time to
first token over that of an idle deployment. Where requests queue, small errors of rates become large ones of times.
"""

from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats

FEATURES = ("constant", "queue", "queue_squared")
MOST_QUEUE = 20.0  # times the idle one: longer queues say no more of how wide errors are
WIDEST = 4.0  # logarithm of a bound over its estimate


@dataclass(frozen=True, slots=True)
class ErrorSpread:
    """Coefficients of both bounds, one a feature; all zero where none were fitted."""

    low: tuple[float, ...] = (0.0, 0.0, 0.0)
    high: tuple[float, ...] = (0.0, 0.0, 0.0)

    def bounds(self, estimate: Floats, features_NF: Floats) -> tuple[Floats, Floats]:
        """Both bounds [N]; the estimate lies between them."""
        low = np.clip(np.sum(features_NF * np.array(self.low), axis=1), -WIDEST, 0.0)
        high = np.clip(np.sum(features_NF * np.array(self.high), axis=1), 0.0, WIDEST)
        return estimate * np.exp(low), estimate * np.exp(high)


def features_of(ttft_s: Floats, idle_ttft_s: Floats) -> Floats:
    """[N, F] from the predicted time to first token, and that of a request that finds the deployment idle."""
    queue = np.log(np.clip(ttft_s / np.maximum(idle_ttft_s, 1e-9), 1.0, MOST_QUEUE))
    return np.stack([np.ones_like(queue), queue, queue**2], axis=1)

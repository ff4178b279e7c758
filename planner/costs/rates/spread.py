"""80 % prediction intervals: log of the bounds over the estimate, linear in a few features of the deployment.

The features say how far an estimate is from steady state: 1, q and q^2, with q the logarithm of the predicted time to
first token over that of an idle deployment. Where requests queue, small errors of rates become large ones of times.

Runs of a group (model, formats, GPU and engine) err together. Of groups that a fit has seen little of that is left;
those of others may lie `between` groups too, beside what they differ by among themselves: w, the bound above, becomes
sqrt(w^2 + between^2).
"""

from dataclasses import dataclass, replace

import numpy as np

from planner.arrays import Floats
from planner.models.architecture import Architecture

FEATURES = ("constant", "queue", "queue_squared")
MOST_QUEUE = 20.0  # times the idle one: longer queues say no more of how wide errors are
WIDEST = 4.0  # logarithm of a bound over its estimate


@dataclass(frozen=True, slots=True)
class ErrorSpread:
    """Coefficients of both bounds, one a feature; all zero where none were fitted."""

    low: tuple[float, ...] = (0.0, 0.0, 0.0)
    high: tuple[float, ...] = (0.0, 0.0, 0.0)
    between: tuple[float, float] = (0.0, 0.0)  # below and above, of groups
    unseen: bool = False  # whether the group is one that the fit has not seen

    def elsewhere(self) -> "ErrorSpread":
        """That of a group which the fit has not seen."""
        return replace(self, unseen=True)

    @property
    def steady(self) -> float:
        """The logarithm of the upper bound over an estimate where nothing queues."""
        return float(np.hypot(max(self.high[0], 0.0), self._apart[1]))

    def bounds(self, estimate: Floats, features_NF: Floats) -> tuple[Floats, Floats]:
        """Both bounds [N]; the estimate lies between them."""
        low = np.clip(np.sum(features_NF * np.array(self.low), axis=1), -WIDEST, 0.0)
        high = np.clip(np.sum(features_NF * np.array(self.high), axis=1), 0.0, WIDEST)
        below, above = self._apart
        return estimate * np.exp(-np.hypot(low, below)), estimate * np.exp(np.hypot(high, above))

    @property
    def _apart(self) -> tuple[float, float]:
        return self.between if self.unseen else (0.0, 0.0)


def group_of_runs(arch: Architecture, accelerator: str, engine: str) -> str:
    """What runs err together in: sizes of the model, formats of its layers, GPU and engine."""
    formats = arch.precisions
    sizes = f"{arch.num_layers}x{arch.hidden_size}x{arch.vocab_size}"
    return f"{sizes} {formats.ffn}/{formats.experts} {accelerator} {engine}"


def features_of(ttft_s: Floats, idle_ttft_s: Floats) -> Floats:
    """[N, F] from the predicted time to first token, and that of a request that finds the deployment idle."""
    queue = np.log(np.clip(ttft_s / np.maximum(idle_ttft_s, 1e-9), 1.0, MOST_QUEUE))
    return np.stack([np.ones_like(queue), queue, queue**2], axis=1)

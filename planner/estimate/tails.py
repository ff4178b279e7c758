"""Percentiles of what a benchmark of a deployment measures, of its load replayed request by request.

TTFT, TPOT and latency are over requests, ITL over the gaps between tokens of all of them; with drafts a gap is that
between two steps, whose tokens come together. They are those of the replay (`estimate.closed_loop`), so of a closed
loop with its opening burst; the requests of an open load come by chance.
"""

import numpy as np

from planner.arrays import Floats
from planner.estimate.closed_loop import simulate_loops
from planner.estimate.frame import Added, Frame, Pace, loop_of

LEVELS = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
METRICS = ("ttft_s", "itl_s", "tpot_s", "latency_s")  # in the order of `LoopTimes.quantiles`
Percentiles = dict[str, dict[str, float | None]]
"""Seconds by metric and level; None of what no request has, such as gaps where answers are of one token."""


def tails_of(frame: Frame, pace: Pace, added: Added) -> list[Percentiles]:
    """Those of every deployment [N]; the replays of loads that cannot be served mean nothing."""
    quantiles = simulate_loops(loop_of(frame, pace, added), tuple(LEVELS.values())).quantiles
    quantiles[METRICS.index("tpot_s")] /= frame.yielded
    return [_percentiles(quantiles[:, :, run]) for run in range(quantiles.shape[2])]


def _percentiles(values_ML: Floats) -> Percentiles:
    return {
        metric: {
            level: float(value) if np.isfinite(value) else None
            for level, value in zip(LEVELS, values_L.tolist(), strict=True)
        }
        for metric, values_L in zip(METRICS, values_ML, strict=True)
    }

"""The largest load at which a plan keeps its limits in simulation, by bisection on the same streams."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from planner.simulate.judge.limits import Judgement

UP = (1.06, 1.15, 1.3, 1.6)  # loads tried above one that is kept
DOWN = (0.93, 0.85, 0.7, 0.5, 0.3, 0.1)  # and below one that is not
CLOSE_ENOUGH = 1.02  # of a load kept, the least that is not


@dataclass(frozen=True, slots=True)
class LoadKept:
    """The largest load that was kept, as a share of that of the plan, and the times whose limits end it."""

    scale: float  # 0 where none is
    binding: frozenset[str]  # ttft, tpot, latency, attainment; waits that grow are none


def keeps(judgement: Judgement) -> bool:
    """Whether times are stationary, and the value of every limit is on its right side, interval or not."""
    return not judgement.saturated and judgement.settled and all(limit.margin >= 0.0 for limit in judgement.limits)


def load_kept(judged: Callable[[float], Judgement], most: float = math.inf) -> LoadKept:
    """The largest load of a plan that keeps its limits, `judged` judging it at a share of its own load."""
    binding: frozenset[str] = frozenset()

    def tried(scale: float) -> bool:
        nonlocal binding
        judgement = judged(scale)
        kept = keeps(judgement)
        if not kept:
            binding = frozenset(limit.time for limit in judgement.limits if not limit.margin >= 0.0)
        return kept

    low, high = _bracket(tried, most)
    while low > 0.0 and math.isfinite(high) and high > low * CLOSE_ENOUGH:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if tried(middle) else (low, middle)
    return LoadKept(low, binding)


def _bracket(tried: Callable[[float], bool], most: float) -> tuple[float, float]:
    """A load that is kept and one that is not; 0 or inf where there is none."""
    first = min(1.0, most)
    if tried(first):
        low = first
        for scale in (*(step for step in UP if step < most), *([most] if 1.0 < most <= UP[-1] else [])):
            if not tried(scale):
                return low, scale
            low = scale
        return low, math.inf
    high = first
    for scale in DOWN:
        if tried(scale):
            return scale, high
        high = scale
    return 0.0, high

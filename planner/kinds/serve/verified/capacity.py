"""The largest load at which a plan keeps its limits in simulation, by bisection on the same streams."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from planner.simulate.judge.limits import Judgement

UP = (1.06, 1.15, 1.3, 1.6)  # loads tried above one that is kept
DOWN = (0.93, 0.85, 0.7, 0.5, 0.3, 0.1)  # and below one that is not
FAR = 2.0  # times its limit: a value beyond it leaves out the first steps down
LEAST_SHARE = 0.1  # of the requests of streams, of which a judgement is one
CLOSE_ENOUGH = 1.025  # of a load kept, the least that is not
ROUGHLY = 1.15  # where less will do


@dataclass(frozen=True, slots=True)
class LoadKept:
    """The largest load that was kept, as a share of that of the plan, and the times whose limits end it."""

    scale: float  # 0 where none is
    binding: frozenset[str]  # ttft, tpot, itl, latency, attainment; waits that grow are none
    refuted: bool = False  # the load that was needed is not kept, and less was not looked for
    missed: float = math.inf  # share by which the worst value is beyond its limit at the last load; below 0 within it


def keeps(judgement: Judgement) -> bool:
    """Whether the value of every limit is on its right side, and waits do not grow.

    Where answers take as long as streams last, next to nothing is judged, and nothing is kept.
    """
    if judgement.saturated or judgement.judged_share < LEAST_SHARE:
        return False
    return all(limit.margin >= 0.0 for limit in judgement.limits)


def missed_by(judgement: Judgement) -> float:
    """How far the worst value is beyond its limit, as a share of it: below 0 within it.

    Infinite where waits grow, or next to nothing is judged.
    """
    if judgement.saturated or judgement.judged_share < LEAST_SHARE:
        return math.inf
    return max((-limit.margin for limit in judgement.limits), default=-math.inf)


def load_kept(
    judged: Callable[[float], Judgement],
    most: float = math.inf,
    needed: float = 0.0,
    close_below: float = CLOSE_ENOUGH,
) -> LoadKept:
    """The largest load of a plan that keeps its limits, `judged` judging it at a share of its own load.

    Where the load `needed` is not kept, nothing below it is looked for: it stands for what is kept, which is less.
    """
    binding: frozenset[str] = frozenset()
    far, missed = False, math.inf

    def tried(scale: float) -> bool:
        nonlocal binding, far, missed
        judgement = judged(scale)
        missed = missed_by(judgement)
        kept = keeps(judgement)
        if not kept:
            binding = frozenset(limit.time for limit in judgement.limits if not limit.margin >= 0.0)
            far = judgement.saturated or any(limit.margin < 1.0 - FAR for limit in judgement.limits)
        return kept

    needed = min(needed, most)
    if needed > 0.0 and not tried(needed):
        return LoadKept(needed, binding, refuted=True, missed=missed)
    low, high = _above(tried, needed, most) if needed > 0.0 else _around(tried, most, lambda: far)
    close = CLOSE_ENOUGH if high > 1.0 else close_below
    while low > 0.0 and math.isfinite(high) and high > low * close:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if tried(middle) else (low, middle)
    return LoadKept(low, binding, missed=missed)


def _around(tried: Callable[[float], bool], most: float, far: Callable[[], bool]) -> tuple[float, float]:
    """A load that is kept and one that is not, near that of the plan; 0 or inf where there is none."""
    first = min(1.0, most)
    if tried(first):
        return _above(tried, first, most)
    high, steps = first, list(DOWN)
    while steps:
        if far() and len(steps) > 2:
            del steps[0]
        scale = steps.pop(0)
        if tried(scale):
            return scale, high
        high = scale
    return 0.0, high


def _above(tried: Callable[[float], bool], low: float, most: float) -> tuple[float, float]:
    """The last of growing loads that is kept, and the first that is not; inf where all are."""
    for step in (*(low * up for up in UP if low * up < most), *([most] if low < most <= low * UP[-1] else [])):
        if not tried(step):
            return low, step
        low = step
    return low, math.inf

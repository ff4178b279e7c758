"""Names of statistics: `mean`, or a percentile such as `p99` or `p99.9`."""

import re

from planner.errors import PlannerError

_PERCENTILE = re.compile(r"p(\d+(?:\.\d+)?)")


def quantile_of(name: str) -> float | None:
    """The quantile that a statistic names, None for the mean; raises PlannerError for any other name."""
    if name == "mean":
        return None
    match = _PERCENTILE.fullmatch(name)
    if match is None:
        raise PlannerError(f"`{name}` is no statistic", hint="write `mean`, or a percentile such as `p95` or `p99.9`")
    percent = float(match[1])
    if not 0.0 < percent < 100.0:
        raise PlannerError(
            f"a percentile lies above 0 and below 100, found `{name}`",
            hint="write for example `p99.9`, or `attainment: 100%` where every request is meant",
        )
    return round(percent / 100.0, 12)

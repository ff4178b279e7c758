"""Seconds of a step, read off tables the slow way."""

from bisect import bisect_right
from itertools import product

from planner.simulate.fleet.step_grid import StepGrid


def place(axis: list[float], point: float) -> int:
    """Where on an axis a point lies: after which value that has one behind it."""
    return min(max(bisect_right(axis, point) - 1, 0), max(len(axis) - 2, 0))


def decode_s(grid: StepGrid, sequences: int, context: float) -> float:
    axis, row = grid.contexts.tolist(), grid.decode_s[sequences].tolist()
    low = place(axis, context)
    slope = (row[low + 1] - row[low]) / (axis[low + 1] - axis[low]) if len(axis) > 1 else 0.0
    return float(row[low] + slope * (context - axis[low]))


def by_rank_tokens(grid: StepGrid, seconds: list[float], tokens: float) -> float:
    axis = grid.rank_tokens.tolist()
    low = place(axis, tokens)
    up = (tokens - axis[low]) / (axis[low + 1] - axis[low]) if len(axis) > 1 else 0.0
    return float(seconds[low] + up * (seconds[low + 1] - seconds[low])) if up else float(seconds[low])


def mixed_s(grid: StepGrid, point: tuple[float, float, float, float]) -> float:
    axes = [axis.tolist() for axis in (grid.batches, grid.contexts, grid.tokens, grid.attended)]
    lows = [place(axis, value) for axis, value in zip(axes, point, strict=True)]
    shares = [
        (value - axis[low]) / (axis[low + 1] - axis[low]) if len(axis) > 1 else 0.0
        for axis, value, low in zip(axes, point, lows, strict=True)
    ]
    seconds = 0.0
    for attended, tokens, context, batch in product((0, 1), repeat=4):
        corner = (batch, context, tokens, attended)
        weight = 1.0
        for up, share in zip(corner, shares, strict=True):
            weight *= share if up else 1.0 - share
        if weight != 0.0:
            seconds += weight * float(grid.mixed_s[tuple(low + up for low, up in zip(lows, corner, strict=True))])
    return seconds

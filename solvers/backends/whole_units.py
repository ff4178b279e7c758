"""Times that are decimals as whole numbers of one unit, for solvers of whole numbers."""

from collections.abc import Iterable
from fractions import Fraction
from math import lcm

MAX_DENOMINATOR = 10**9


def units_per_one(values: Iterable[float]) -> int | None:
    """The least number of units in 1 of which every value is a whole number; None where there is none below 1e9."""
    units = 1
    for value in values:
        units = lcm(units, Fraction(repr(float(value))).denominator)
        if units > MAX_DENOMINATOR:
            return None
    return units

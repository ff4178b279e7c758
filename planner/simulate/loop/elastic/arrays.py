"""The arrays of instances with a common cache, beside those of every run, as Python makes them."""

from typing import NamedTuple

from planner.arrays import Floats, Ints


class CommonArrays(NamedTuple):
    """Shapes: I instances, R requests; columns are named in `fields`."""

    common: Ints
    common_s: Floats
    waiting: Ints  # [R] by key, those from FRONT to BACK
    decoding: Ints  # [R] by number
    held: Ints  # [R, I] blocks kept for a request
    holders: Ints  # [R] set of the instances that keep them
    led: Ints  # [I, LED_FIELDS]

"""State of elastic sequence parallelism: instances that share one KV cache, beside the state of every run."""

from typing import NamedTuple

from planner.arrays import Floats, Ints


class Common(NamedTuple):
    """Shapes: I instances, R requests; columns are named in `elastic.fields`."""

    common: Ints
    common_s: Floats
    waiting: Ints  # [R] by key, those from FRONT to BACK
    decoding: Ints  # [R] by number
    kept: Ints  # [R, I] blocks kept for a request
    holders: Ints  # [R] set of the instances that keep them
    led: Ints  # [I, LED_FIELDS]

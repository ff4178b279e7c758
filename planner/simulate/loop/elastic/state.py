"""What instances with a common cache have beside the state of every run, as compiled code passes it."""

from pathlib import Path
from typing import Any

from numba import types
from numba.experimental import structref

from planner.arrays import Floats, Ints
from planner.simulate.loop.elastic.arrays import CommonArrays
from planner.simulate.loop.program import compiled
from planner.solvers.schedules import shared_batches

_structref: Any = structref
SOURCES = (*sorted(Path(__file__).parent.glob("*.py")), Path(str(shared_batches.__file__)))
"""Of the program, besides those that it shares with the other loop."""


@_structref.register
class _CommonType(types.StructRef):
    """The type of `Common` in compiled code."""


class Common:
    """`CommonArrays` of a run under way."""

    def __init__(self, *arrays: Ints | Floats) -> None:
        raise TypeError("made by compiled code alone")

    common: Ints
    common_s: Floats
    waiting: Ints
    decoding: Ints
    held: Ints
    holders: Ints
    led: Ints


_structref.define_constructor(Common, _CommonType, CommonArrays._fields)


@compiled
def common_of(a: CommonArrays) -> Common:
    """The same as compiled code passes it on."""
    return Common(a.common, a.common_s, a.waiting, a.decoding, a.held, a.holders, a.led)

"""Compilation of the elastic loop: the `Common` state as compiled code passes it on."""

from typing import Any

from numba.experimental import structref

from planner.simulate.loop.elastic.state import Common
from planner.simulate.loop.program import ByReference, by_reference

_structref: Any = structref


@_structref.register
class _CommonType(ByReference):
    """The type of `Common` in compiled code."""


common_of = by_reference(Common, _CommonType)

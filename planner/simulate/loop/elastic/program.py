"""Compilation of the elastic loop: the `Common` state as compiled code passes it on, and its sources."""

from pathlib import Path
from typing import Any

from numba.experimental import structref

from planner.simulate.loop.elastic.state import Common
from planner.simulate.loop.program import ByReference, by_reference
from planner.solvers.schedules import shared_batches

_structref: Any = structref
SOURCES = (*sorted(Path(__file__).parent.glob("*.py")), Path(str(shared_batches.__file__)))
"""Of the program, besides those that it shares with the other loop."""


@_structref.register
class _CommonType(ByReference):
    """The type of `Common` in compiled code."""


common_of = by_reference(Common, _CommonType)

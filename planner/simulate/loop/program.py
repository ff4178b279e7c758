"""Compilation of the loop by numba: shared state, a decorator, and a disk cache keyed by all sources.

numba's own cache looks at one file; the folder used here is named by the sources of all modules of the loop.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba import types
from numba.experimental import structref

from planner.arrays import Floats, Ints
from planner.hardware.profiles.cache import default_cache_dir
from planner.simulate.loop.parts import part_options
from planner.simulate.loop.state import RunState

_numba: Any = numba  # options of the jit and of its configuration that its stubs leave out
_structref: Any = structref
F = TypeVar("F", bound=Callable[..., object])
T = TypeVar("T")


@_structref.register
class _StateType(types.StructRef):
    """The type of a state in compiled code."""


def by_reference(arrays: type[T], passed_as: type) -> Callable[..., T]:
    """What makes, in compiled code, the same arrays passed by one pointer, since numba copies a tuple at every call."""

    def constructor(*fields: Ints | Floats) -> T:
        raise TypeError("made by compiled code alone")

    _structref.define_constructor(constructor, passed_as, cast(Any, arrays)._fields)
    return constructor


state_of = by_reference(RunState, _StateType)


def compiled(function: F) -> F:
    """A part of the program; the loop that calls it is compiled with it.

    numba compiles a function once more for every literal that it is called with: hand over variables.
    """
    options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, **part_options()}
    return cast(F, _numba.njit(error_model="numpy", **options)(function))


def entry(*more: Path) -> Callable[[F], F]:
    """A program of these sources and `more`, kept on disk once compiled."""

    def kept(function: F) -> F:
        given = _numba.config.CACHE_DIR
        _numba.config.CACHE_DIR = str(cache_folder(*more))
        try:
            return cast(F, _numba.njit(error_model="numpy", cache=True)(function))
        finally:
            _numba.config.CACHE_DIR = given

    return kept


def cache_folder(*more: Path) -> Path:
    """The folder of compiled programs of exactly these sources and `more`."""
    sources = b"".join(path.read_bytes() for path in (*sorted(Path(__file__).parent.glob("*.py")), *more))
    return default_cache_dir() / f"simulate-{hashlib.sha256(sources).hexdigest()[:16]}"

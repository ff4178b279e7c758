"""Compilation of the loop by numba: shared state and decorators."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba import types
from numba.experimental import structref

from planner.arrays import Floats, Ints
from planner.hardware.profiles.cache import default_cache_dir
from planner.simulate.loop.state import RunState
from planner.solvers.compilation.kept import kept
from planner.solvers.compilation.parts import part_options

_numba: Any = numba  # options of the jit and of its configuration that its stubs leave out
_structref: Any = structref
F = TypeVar("F", bound=Callable[..., object])
T = TypeVar("T")


class ByReference(types.StructRef):
    """The type of arrays passed by one pointer; names of compiled functions have its class, not all its fields."""

    @property
    def mangling_args(self) -> tuple[str, tuple[()]]:
        return type(self).__name__, ()


@_structref.register
class _StateType(ByReference):
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
    return _part(function, part_options())


def owning(function: F) -> F:
    """A part that makes arrays, or gets new ones from another, and frees them."""
    return _part(function, part_options(owning=True))


def _part(function: F, options: dict[str, Any]) -> F:
    unwrapped = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, **options}
    return cast(F, _numba.njit(error_model="numpy", **unwrapped)(function))


def entry(function: F) -> F:
    """A program, which a user compiles once for each processor, wherever its sources lie.

    Runs on states apart may go side by side.
    """
    return kept(cast(F, _numba.njit(error_model="numpy", nogil=True)(function)), default_cache_dir())

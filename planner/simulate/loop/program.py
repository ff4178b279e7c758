"""Compilation of the loop by numba: shared state, decorators, and a disk cache keyed by all sources.

numba's own cache looks at one file, where it lies, and when it was written. The folder used here is named by numba's
version and the sources of all modules of the loop, wherever they lie: a user compiles them once for each processor,
whose name and features are in the index that numba keeps there.
"""

import gc
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba import types
from numba.core import caching
from numba.experimental import structref

from planner.arrays import Floats, Ints
from planner.hardware.profiles.cache import default_cache_dir
from planner.simulate.loop.state import RunState
from planner.solvers.compilation import parts
from planner.solvers.compilation.parts import part_options

_numba: Any = numba  # options of the jit and of its configuration that its stubs leave out
_structref: Any = structref
_SOURCES = [
    path for folder in (".", "scheduler", "tiers") for path in sorted((Path(__file__).parent / folder).glob("*.py"))
]
_SOURCES.append(Path(parts.__file__))
_caching: Any = caching
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


def entry(*more: Path) -> Callable[[F], F]:
    """A program of these sources and `more`, kept on disk once compiled; runs on states apart may go side by side."""

    def kept(function: F) -> F:
        made = _numba.njit(error_model="numpy", nogil=True)(function)
        made._cache = _cache_in(cache_folder(*more))(function)
        made._compiler.compile = _without_collections(made._compiler.compile)
        return cast(F, made)

    return kept


def _without_collections(compile_program: Callable[..., T]) -> Callable[..., T]:
    """The same while no cycles are looked for: a compilation makes millions of objects and keeps most of them."""

    def compiled_at_once(*given: object) -> T:
        collects = gc.isenabled()
        gc.disable()
        try:
            return compile_program(*given)
        finally:
            if collects:
                gc.enable()

    return compiled_at_once


def _cache_in(folder: Path) -> Any:  # noqa: ANN401 - numba's
    """numba's cache of functions in a folder that is theirs alone; where that cannot be written, as numba chooses."""

    class Locator(_caching._CacheLocator):
        def get_cache_path(self) -> str:
            return str(folder)

        def get_source_stamp(self) -> str:
            return folder.name

        def get_disambiguator(self) -> str:
            return "program"

        @classmethod
        def from_function(cls, py_func: object, py_file: str) -> "Locator | None":
            try:
                cls().ensure_cache_path()
            except OSError:
                return None
            return cls()

    class Results(_caching.CompileResultCacheImpl):
        _locator_classes = (Locator, *_caching.CacheImpl._locator_classes)

    class Cache(_caching.FunctionCache):
        _impl_class = Results

    return Cache


def cache_folder(*more: Path) -> Path:
    """The folder of compiled programs of exactly these sources and `more`, by the numba that is installed."""
    sources = numba.__version__.encode() + b"".join(path.read_bytes() for path in (*_SOURCES, *more))
    return default_cache_dir() / f"simulate-{hashlib.sha256(sources).hexdigest()[:16]}"

"""Programs of numba kept on disk by all that goes into them: their own sources, and those of what they call.

numba's own cache looks at the file of a function alone, where it lies, and when it was written: what the function calls
from other files is in its machine code all the same, and would stay there however those change.
"""

import gc
import hashlib
import inspect
import sys
from collections.abc import Callable, Iterator
from functools import cache, cached_property, partial
from pathlib import Path
from types import CodeType
from typing import Any, TypeVar

import numba
import numpy as np
from numba.core import caching, dispatcher

from planner.solvers.compilation import parts

_numba: Any = numba  # versions and classes that its stubs leave out
_caching: Any = caching
_dispatcher: Any = dispatcher
F = TypeVar("F", bound=Callable[..., object])
T = TypeVar("T")
_FROZEN = (int, float, complex, str, bytes, tuple, np.dtype, np.generic)  # values that numba writes into the code


def kept(program: F, root: Path | None = None) -> F:
    """What `numba.njit` made, kept on disk where numba chooses, or below `root` for all copies of its sources."""
    if isinstance(program, _dispatcher.Dispatcher):  # with NUMBA_DISABLE_JIT a function
        made: Any = program
        made._cache = _WhenAsked(partial(_cache_of, made, root))
        made._compiler.compile = _without_collections(made._compiler.compile)
    return program


def is_kept(program: Callable[..., object]) -> bool:
    """Whether one that is kept below a root has been compiled for any types; true where numba compiles nothing."""
    made: Any = program
    if not isinstance(program, _dispatcher.Dispatcher):
        return True
    return any(Path(made._cache.cache_path).rglob("*.nbc"))


class _WhenAsked:
    """numba's cache of a program, made when its module is whole: it calls what is defined after it."""

    def __init__(self, make: Callable[[], object]) -> None:
        self._make = make

    @cached_property
    def _made(self) -> object:
        return self._make()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - numba's
        return getattr(self._made, name)


def _stamp_of(program: object) -> str:
    """Of numba, of all code that a program reaches with the files of that, and of values from wherever they come."""
    files, values = {str(parts.__file__)}, {_numba.__version__}
    reached: dict[int, object] = {}
    waiting = [program]
    while waiting:
        named = waiting.pop()
        if id(named) in reached:
            continue
        reached[id(named)] = named
        named = getattr(named, "py_func", named)
        if inspect.isfunction(named):
            for code in _codes_of(named.__code__):
                files.add(code.co_filename)
                values.add(repr((code.co_code, [each for each in code.co_consts if isinstance(each, _FROZEN)])))
                waiting += (named.__globals__.get(name) for name in code.co_names)
            waiting += (cell.cell_contents for cell in named.__closure__ or ())
            waiting += named.__annotations__.values()
        elif inspect.isclass(named) or inspect.ismodule(named):
            module = sys.modules.get(getattr(named, "__module__", named.__name__))
            files.add(getattr(module, "__file__", None) or "")
        elif isinstance(named, _FROZEN):
            values.add(repr(named))
        elif isinstance(named, np.ndarray):
            values.add(repr(named.tolist()))
    digests = sorted(_digest(file) for file in files if file.endswith(".py"))
    return hashlib.sha256(b"".join(digests) + "\n".join(sorted(values)).encode()).hexdigest()


def _codes_of(code: CodeType) -> Iterator[CodeType]:
    """A function's, and those of comprehensions and functions in it."""
    yield code
    for inner in filter(inspect.iscode, code.co_consts):
        yield from _codes_of(inner)


@cache
def _digest(file: str) -> bytes:
    return hashlib.sha256(Path(file).read_bytes()).digest()


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


def _cache_of(program: Any, root: Path | None) -> object:  # noqa: ANN401 - numba's
    """numba's cache by the stamp of a program; in a folder of that name, where there is a root that can be written."""
    stamp = _stamp_of(program)
    folder = root and root / f"{program.py_func.__name__}-{stamp[:16]}"

    class Locator(_caching._CacheLocator):
        def get_cache_path(self) -> str:
            return str(folder)

        def get_source_stamp(self) -> str:
            return stamp

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
        _locator_classes = (*((Locator,) if folder else ()), *_caching.CacheImpl._locator_classes)

    class Cache(_caching.FunctionCache):
        _impl_class = Results

        def __init__(self, function: object) -> None:
            super().__init__(function)
            self._cache_file = _caching.IndexDataCacheFile(self._cache_path, self._impl.filename_base, stamp)

    return Cache(program.py_func)

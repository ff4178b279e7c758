"""Loops that are called without numba, whose import and set-up take a second of CPU.

numba keeps what it compiled, but reads it back only after it has loaded all it knows of Python and NumPy. A loop that
makes no array and raises nothing needs none of that: once compiled it is self-contained code, which LLVM's own loader
(llvmlite) brings into a process in milliseconds. numba compiles it once for each processor and each version of its
sources; where it does not come out self-contained, numba runs it as it runs any other. So it does where numba or
llvmlite lack one of the insides that this relies on: numba's option `_nrt`, `_final_module` and
`serialize_using_object_code` of its libraries, LLVM's MCJIT. NUMBA_DISABLE_JIT runs it as Python.

The calling convention is numba's (numba.core.callconv.CPUCallConv): a status is returned, the first two arguments are
where result and exception go, and an array is seven or more: owner, parent, items, bytes of one, data, shape, strides.
"""

import ctypes
import os
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from planner.solvers.compiled.machine_code.kept import Code, place_of, read, write

Array = np.ndarray[Any, np.dtype[Any]]
Argument = int | float | Array
Function = Callable[..., object]
_DONE = (0, -2)  # the second: and returned None
_CTYPES = {"int64": ctypes.c_int64, "float64": ctypes.c_double}
MATHEMATICS = frozenset({"sqrt", "exp", "log", "pow"})
"""Of C's library, which every Python has loaded: all that code may call beyond itself."""
_SELF_CONTAINED = {"error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True, "_nrt": False}
_engines: list[Any] = []  # own the code that was loaded


class Loop(NamedTuple):
    """A function of `module` that numba can compile; it fills arrays that it is given and returns nothing.

    `uses` are modules whose functions are compiled into it. Nothing of all these is imported where code is at hand.
    """

    module: str
    function: str
    uses: tuple[str, ...] = ()

    def __call__(self, *arguments: Argument) -> None:
        """Runs it. Raises TypeError for arrays that are not contiguous or hold no numbers."""
        _callable(self, tuple(map(_type_name, arguments)))(*arguments)


def _type_name(argument: Argument) -> str:
    """In numba's words, such as `int64[::1]`."""
    if not isinstance(argument, np.ndarray):
        return "float64" if isinstance(argument, float) else "int64"
    if not argument.flags.c_contiguous or argument.dtype.kind not in "ifb":
        raise TypeError(f"a contiguous array of numbers is wanted, not {argument.dtype} {argument.strides}")
    return f"{argument.dtype.name}[{':,' * (argument.ndim - 1)}::1]"


@cache
def _callable(loop: Loop, types: tuple[str, ...]) -> Function:
    """The loop for arguments of these types: loaded, else compiled and kept, else as numba runs it."""
    if os.environ.get("NUMBA_DISABLE_JIT", "0") != "0":
        return _by_numba(loop)
    place = place_of(loop.function, (loop.module, *loop.uses), types)
    code = read(place)
    if code is None:
        code = _compiled(loop, types)
        if code is None:
            return _by_numba(loop)
        write(place, code)
    try:
        return _loaded(code, types)
    except (AttributeError, OSError, RuntimeError):  # llvmlite has another loader, or LLVM refuses to load
        return _by_numba(loop)


def _compiled(loop: Loop, types: tuple[str, ...]) -> Code | None:
    """Its code as an object file; None where it needs more than itself, or this numba gives none.

    numba refuses to type arrays made without its counts of references; one with other insides lacks an option (a
    KeyError), an attribute or a place.
    """
    import numba

    config: Any = numba.config
    if config.DISABLE_JIT:
        return None
    function = getattr(import_module(loop.module), loop.function)
    try:
        njit: Any = numba.njit  # whose stubs leave options out
        compiled = njit(f"void({', '.join(types)})", **_SELF_CONTAINED)(function)
        (result,) = compiled.overloads.values()
        functions = result.library._final_module.functions
        outside = {each.name for each in functions if each.is_declaration and not each.name.startswith("llvm.")}
        text = result.library.serialize_using_object_code()[2][0]
        return Code(result.fndesc.llvm_func_name, text) if outside <= MATHEMATICS else None
    except (AttributeError, LookupError, TypeError, ValueError, numba.core.errors.NumbaError):
        return None


def _by_numba(loop: Loop) -> Function:
    import numba

    compiled: Function = numba.njit(error_model="numpy")(getattr(import_module(loop.module), loop.function))
    return compiled


def _loaded(code: Code, types: tuple[str, ...]) -> Function:
    """The function of an object file."""
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine(jit=True)
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine)
    engine.add_object_file(binding.ObjectFileRef.from_data(code.text))
    engine.finalize_object()
    _engines.append(engine)
    words = [word for kind in types for word in _words_of(kind)]
    prototype = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, *words)
    function = prototype(engine.get_function_address(code.symbol))
    result, exception = ctypes.c_void_p(), ctypes.c_void_p()

    def run(*arguments: Argument) -> None:
        given = [word for argument in arguments for word in _words(argument)]
        status = function(ctypes.addressof(result), ctypes.addressof(exception), *given)
        assert status in _DONE, f"{code.symbol} ended with {status}"

    return run


def _words_of(kind: str) -> list[Any]:
    """C types of an argument of this type."""
    if "[" not in kind:
        return [_CTYPES[kind]]
    pointer, size = ctypes.c_void_p, ctypes.c_int64
    return [pointer, pointer, size, size, pointer, *[size] * (2 * (kind.count(",") + 1))]


def _words(argument: Argument) -> list[Any]:
    if not isinstance(argument, np.ndarray):
        return [float(argument) if isinstance(argument, float) else int(argument)]
    return [None, None, argument.size, argument.itemsize, argument.ctypes.data, *argument.shape, *argument.strides]

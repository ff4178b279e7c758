"""Compile-time saver: numba functions inlined into the program that calls them, with no machine code of their own.

numba turns every function into optimised machine code with all that it calls, though nothing but the outermost is
ever run: half of the time of a compilation. A part is lowered, checked and handed on; one that calls no part but leaves
is optimised by itself, since its loops come out better before they are inlined. Passes for what parts do not have are
left out, and types of a call of a builtin function are worked out once for all parts: another quarter. A numba whose
insides differ compiles as it always does; the bound on numba in pyproject.toml keeps those out that nobody has tried.

Parts count no references. Arrays belong to the state, which outlives every call; numba would count each of them up and
down at every access, by atomic operations. A part that makes arrays, or gets new ones from another, must count:
one that does not is refused.
"""

import operator
from functools import cache
from typing import Any

from numba.core import base, codegen, compiler, typed_passes, types
from numba.core import compiler_machinery as machinery
from numba.core.runtime.context import NRTContext
from numba.core.typing import context

_base: Any = base
_counting: Any = NRTContext
_codegen: Any = codegen
_context: Any = context
_compiler: Any = compiler
_passes: Any = typed_passes
_machinery: Any = machinery
_Library: Any = getattr(_codegen, "JITCodeLibrary", object)
_USED = ("_optimize_final_module", "_finalize_final_module", "_finalize_dynamic_globals", "get_pointer_to_function")
_UNUSED = {  # passes for closures, functions inlined by request, array expressions, mixed tuples and reports
    "InlineClosureLikes",
    "InlineInlinables",
    "InlineOverloads",
    "NopythonRewrites",
    "LiteralUnroll",
    "AnnotateTypes",
}
_BUILTIN = (type(len), type(operator.add))
_DEPTH = 1  # of calls below a part that is optimised by itself


class _NoMachineCode:
    """Stands for the code generator where numba would write to the memory of a function that has none."""

    def set_env(self, name: str, env: object) -> None:
        """A part in nopython mode raises nothing and needs no environment."""


class _Part(_Library):  # type: ignore[misc]  # numba's classes are untyped
    """The code of a part, to be linked into what calls it."""

    @property
    def codegen(self) -> _NoMachineCode:
        return _NoMachineCode()

    def depth(self) -> int:
        """Calls below it; 0 of a leaf."""
        return max((part.depth() + 1 for part in self._linking_libraries if isinstance(part, _Part)), default=0)

    def _optimize_final_module(self) -> None:
        if self.depth() <= _DEPTH:
            super()._optimize_final_module()

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        self._ensure_finalized()
        return 0


class _Uncounted(_counting):  # type: ignore[misc]  # numba's classes are untyped
    """Stands for numba's counting of references where there is nothing to free."""

    def incref(self, builder: object, typ: object, value: object) -> None:
        """One reference more."""

    def decref(self, builder: object, typ: object, value: object) -> None:
        """One reference less."""


@cache
def _uncounted_class(given: Any) -> Any:  # noqa: ANN401 - numba's
    """The target that does not count references."""
    return type(f"Uncounted{given.__name__}", (given,), {"nrt": property(lambda own: _Uncounted(own, own.enable_nrt))})


def _uncounted(given: Any) -> Any:  # noqa: ANN401 - numba's
    """A target context that does not count references, with the state of the one given."""
    made = given.subtarget()
    counting: Any = type(given)
    made.__class__ = _uncounted_class(counting)
    made.cached_internal_func = _UNCOUNTED
    return made


_UNCOUNTED: dict[Any, Any] = {}


@_machinery.register_pass(mutates_CFG=False, analysis_only=True)
class _OwnsNothing(_machinery.AnalysisPass):  # type: ignore[misc]  # numba's classes are untyped
    """Refuses a part that makes arrays, or gets new ones, and does not count references."""

    _name = "planner_owns_nothing"

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> bool:  # noqa: ANN401 - numba's
        made = [expr for expr, made in state.calltypes.items() if made is not None and _makes_arrays(expr, made)]
        if made or isinstance(state.return_type, types.Array):
            raise TypeError(f"{state.func_id.func_qualname} makes arrays: decorate it with `owning`")
        return False


def _makes_arrays(expression: Any, signature: Any) -> bool:  # noqa: ANN401 - numba's
    """Whether what an expression yields is an array of its own, and no view of another."""
    viewing = getattr(expression, "op", "") in ("getitem", "static_getitem", "typed_getitem", "getattr")
    return isinstance(signature.return_type, types.Array) and not viewing


@_machinery.register_pass(mutates_CFG=False, analysis_only=True)
class _InParts(_machinery.AnalysisPass):  # type: ignore[misc]  # numba's classes are untyped
    """Chooses the library that the function is lowered into."""

    _name = "planner_in_parts"

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> bool:  # noqa: ANN401 - numba's
        state.library = _Part(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        return False


class _Flags(_compiler.Flags):  # type: ignore[misc]  # numba's classes are untyped
    """Options of a compilation, compared by those that were set before all that there are."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return getattr(other, "_values", None) == self._values or bool(super().__eq__(other))

    def __hash__(self) -> int:
        return _hash_of_options()


@cache
def _hash_of_options() -> int:
    """What numba has for all options, since it hashes their names."""
    return hash(_compiler.Flags())


class _Context(_context.Context):  # type: ignore[misc]  # numba's classes are untyped
    """numba's context of types, which remembers the types of calls of the functions that it knows itself."""

    def resolve_function_type(self, func: Any, args: Any, kws: Any) -> Any:  # noqa: ANN401 - numba's
        """The signature of a call."""
        if kws or not (isinstance(func, types.Function) or type(func) in _BUILTIN):
            return super().resolve_function_type(func, args, kws)
        key = func, tuple(args)
        if key not in _SIGNATURES:
            _SIGNATURES[key] = super().resolve_function_type(func, args, kws)
        return _SIGNATURES[key]


_SIGNATURES: dict[Any, Any] = {}


@cache
def _remembering(given: Any) -> Any:  # noqa: ANN401 - numba's
    """A context that shares all of its state with the one given."""
    if type(given) is not _context.Context:
        return given
    made = object.__new__(_Context)
    made.__dict__ = given.__dict__
    return made


class _OwningPartCompiler(_compiler.CompilerBase):  # type: ignore[misc]  # numba's classes are untyped
    """numba's passes of nopython mode that parts need, with the library chosen before lowering."""

    def __init__(self, typingctx: Any, targetctx: Any, library: Any, *given: Any) -> None:  # noqa: ANN401 - numba's
        args, return_type, flags, names = given
        super().__init__(_remembering(typingctx), targetctx, library, args, return_type, _Flags(flags), names)

    def define_pipelines(self) -> list[Any]:
        """The one pipeline."""
        passes = _compiler.DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.passes = [entry for entry in passes.passes if entry[0].__name__ not in _UNUSED]
        lowering = [entry[0] for entry in passes.passes].index(_passes.NativeLowering)
        passes.passes[lowering:lowering] = self.before_lowering()
        passes.finalize()
        return [passes]

    def before_lowering(self) -> list[tuple[type, str]]:
        """Passes of its own."""
        return [(_InParts, "its code goes into a part")]


class _PartCompiler(_OwningPartCompiler):
    """The same without counts of references."""

    def __init__(self, typingctx: Any, targetctx: Any, library: Any, *given: Any) -> None:  # noqa: ANN401 - numba's
        super().__init__(typingctx, targetctx, library, *given)
        self.state.targetctx = _uncounted(self.state.targetctx)

    def before_lowering(self) -> list[tuple[type, str]]:
        """Passes of its own."""
        return [(_OwnsNothing, "it has nothing to free"), *super().before_lowering()]


def part_options(*, owning: bool = False) -> dict[str, Any]:
    """Options of the jit that make a function a part; `owning` is one that makes arrays."""
    known = _Library is not object and all(hasattr(_Library, name) for name in _USED)
    counted = owning or not hasattr(_base.BaseContext, "nrt")
    return {"pipeline_class": _OwningPartCompiler if counted else _PartCompiler} if known else {}

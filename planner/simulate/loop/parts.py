"""Compile-time saver: numba functions inlined into the program that calls them, with no machine code of their own.

numba turns every function into optimised machine code with all that it calls, though nothing but the outermost is
ever run: half of the time of a compilation. A part is lowered, checked and handed on; one that calls no part but leaves
is optimised by itself, since its loops come out better before they are inlined. Passes for what parts do not have are
left out, and types of a call of a builtin function are worked out once for all parts: another quarter. A first run of
the simulator takes 16 CPU-s instead of 41 so (numba 0.68.1, 2 cores). A numba whose insides differ compiles as it
always does; the bound on numba in pyproject.toml keeps those out that nobody has tried.
"""

import operator
from functools import cache
from typing import Any

from numba.core import codegen, compiler, typed_passes, types
from numba.core import compiler_machinery as machinery
from numba.core.typing import context

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


class _PartCompiler(_compiler.CompilerBase):  # type: ignore[misc]  # numba's classes are untyped
    """numba's passes of nopython mode that parts need, with the library chosen before lowering."""

    def __init__(self, typingctx: Any, targetctx: Any, library: Any, *given: Any) -> None:  # noqa: ANN401 - numba's
        args, return_type, flags, names = given
        super().__init__(_remembering(typingctx), targetctx, library, args, return_type, _Flags(flags), names)

    def define_pipelines(self) -> list[Any]:
        """The one pipeline."""
        passes = _compiler.DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.passes = [entry for entry in passes.passes if entry[0].__name__ not in _UNUSED]
        lowering = [entry[0] for entry in passes.passes].index(_passes.NativeLowering)
        passes.passes.insert(lowering, (_InParts, "its code goes into a part"))
        passes.finalize()
        return [passes]


def part_options() -> dict[str, Any]:
    """Options of the jit that make a function a part."""
    known = _Library is not object and all(hasattr(_Library, name) for name in _USED)
    return {"pipeline_class": _PartCompiler} if known else {}

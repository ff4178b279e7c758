"""Parts of a compiled program that get no machine code of their own: only the program that calls them does.

numba turns every function into optimised machine code with all that it calls, though nothing but the outermost is
ever run: half of the time of a compilation. A part is lowered, checked and handed on; one that calls no part but leaves
is optimised by itself, since its loops come out better before they are inlined. A numba whose insides differ compiles
as it always does.
"""

from typing import Any

from numba.core import codegen, compiler, typed_passes
from numba.core import compiler_machinery as machinery

_codegen: Any = codegen
_compiler: Any = compiler
_passes: Any = typed_passes
_machinery: Any = machinery
_Library: Any = getattr(_codegen, "JITCodeLibrary", object)
_USED = ("_optimize_final_module", "_finalize_final_module", "_finalize_dynamic_globals", "get_pointer_to_function")
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


class _PartCompiler(_compiler.CompilerBase):  # type: ignore[misc]  # numba's classes are untyped
    """numba's passes of nopython mode, with the library chosen before lowering."""

    def define_pipelines(self) -> list[Any]:
        """The one pipeline."""
        passes = _compiler.DefaultPassBuilder.define_nopython_pipeline(self.state)
        at = next(at for at, one in enumerate(passes.passes) if one[0] is _passes.NativeLowering)
        passes.passes.insert(at, (_InParts, "its code goes into a part"))
        passes.finalize()
        return [passes]


def part_options() -> dict[str, Any]:
    """Options of the jit that make a function a part."""
    known = _Library is not object and all(hasattr(_Library, name) for name in _USED)
    return {"pipeline_class": _PartCompiler} if known else {}

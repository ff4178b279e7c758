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
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar, cast

import numba
from llvmlite import binding
from numba.core import base, codegen, compiler, datamodel, typed_passes, types
from numba.core import compiler_machinery as machinery
from numba.core.runtime.context import NRTContext
from numba.core.typing import context

F = TypeVar("F", bound=Callable[..., object])
_numba: Any = numba  # options of the jit that its stubs leave out
_llvm: Any = binding
_base: Any = base
_counting: Any = NRTContext
_codegen: Any = codegen
_context: Any = context
_compiler: Any = compiler
_passes: Any = typed_passes
_machinery: Any = machinery
_datamodel: Any = datamodel
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


class _Part(_Library):
    """The code of a part, to be linked into what calls it."""

    _shared_module: Any
    inlined = False

    @property
    def codegen(self) -> _NoMachineCode:
        return _NoMachineCode()

    def depth(self) -> int:
        """Calls below it; 0 of a leaf."""
        return max((part.depth() + 1 for part in self._linking_libraries if isinstance(part, _Part)), default=0)

    def add_ir_module(self, ir_module: Any) -> None:  # noqa: ANN401 - numba's
        """Reads what was lowered; LLVM verifies it in the program."""
        module = _llvm.parse_assembly(str(ir_module))
        module.name = ir_module.name
        self.add_llvm_module(module)

    def finalize(self) -> None:
        """Links what it calls."""
        for library in dict.fromkeys(self._linking_libraries):
            self._reload_init.update(library._reload_init)
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._optimize_final_module()
        self._finalize_final_module()

    def _optimize_functions(self, ll_module: Any) -> None:  # noqa: ANN401 - numba's
        ll_module.data_layout = self._codegen._data_layout
        manager, builder = self._codegen._function_pass_manager()
        for function in ll_module.functions:
            if not function.is_declaration:
                manager.run(function, builder)

    def _optimize_final_module(self) -> None:
        if self.depth() <= _DEPTH:
            super()._optimize_final_module()

    def _get_module_for_linking(self) -> Any:  # noqa: ANN401 - numba's
        if self._shared_module is None:
            for function in self._final_module.functions:
                if not function.is_declaration and function.linkage == _llvm.Linkage.external:
                    function.linkage = "linkonce_odr"
                    if self.inlined:
                        function.add_function_attribute("alwaysinline")
            self._shared_module = self._final_module
        return self._shared_module

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        self._ensure_finalized()
        return 0


class _Uncounted(_counting):
    """Stands for numba's counting of references where there is nothing to free."""

    def incref(self, builder: object, typ: object, value: object) -> None:
        """One reference more."""

    def decref(self, builder: object, typ: object, value: object) -> None:
        """One reference less."""


@cache
def _uncounted_class(given: Any) -> Any:  # noqa: ANN401 - numba's
    """The target that does not count references."""
    changed = {"nrt": property(lambda own: _Uncounted(own, own.enable_nrt)), "refresh": _refreshed}
    return type(f"Uncounted{given.__name__}", (given,), changed)


def _refreshed(given: Any) -> None:  # noqa: ANN401 - numba's
    """Stands for numba's search for new functions, which every look-up that finds none begins.

    What calls a part has searched before the part is compiled.
    """


def _uncounted(given: Any) -> Any:  # noqa: ANN401 - numba's
    """A target context that does not count references, with the state of the one given."""
    made = given.subtarget()
    counting: Any = type(given)
    made.__class__ = _uncounted_class(counting)
    made.cached_internal_func = _UNCOUNTED
    made.typing_context = _remembering(given.typing_context)
    return made


_UNCOUNTED: dict[Any, Any] = {}


def _makes_arrays(expression: Any, signature: Any) -> bool:  # noqa: ANN401 - numba's
    """Whether what an expression yields is an array of its own, and no view of another."""
    viewing = getattr(expression, "op", "") in ("getitem", "static_getitem", "typed_getitem", "getattr")
    return isinstance(signature.return_type, types.Array) and not viewing


@_machinery.register_pass(mutates_CFG=False, analysis_only=True)
class _InParts(_machinery.AnalysisPass):
    """Chooses the library that a part is lowered into; refuses one that makes arrays and does not count references."""

    _name = "planner_in_parts"

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> bool:  # noqa: ANN401 - numba's
        made = [expr for expr, made in state.calltypes.items() if made is not None and _makes_arrays(expr, made)]
        if isinstance(state.targetctx.nrt, _Uncounted) and (made or isinstance(state.return_type, types.Array)):
            where = f"{state.func_id.filename}: {state.func_id.func_qualname}"
            raise TypeError(f"{where} makes arrays: decorate it with `owning_part` or `owning`")
        state.library = _Part(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.inlined = isinstance(state.pipeline, _InlinedPartCompiler)
        state.library.enable_object_caching()
        return False


class _Flags(_compiler.Flags):
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


class _Context(_context.Context):
    """numba's context of types, which remembers the types of calls of the functions that it knows itself."""

    refresh = _refreshed

    def resolve_value_type(self, val: Any) -> Any:  # noqa: ANN401 - numba's
        """The type of a constant; of an operator one that remembers the types of calls: lowering asks once more."""
        resolved = super().resolve_value_type(val)
        return _operator(resolved) if type(val) in _BUILTIN and type(resolved) is types.Function else resolved

    def resolve_function_type(self, func: Any, args: Any, kws: Any) -> Any:  # noqa: ANN401 - numba's
        """The signature of a call."""
        if kws or not (isinstance(func, types.Function) or type(func) in _BUILTIN):
            return super().resolve_function_type(func, args, kws)
        key = func, tuple(args)
        if key not in _SIGNATURES:
            _SIGNATURES[key] = super().resolve_function_type(func, args, kws)
        return _SIGNATURES[key]


_SIGNATURES: dict[Any, Any] = {}


class _Operator(types.Function):
    """The type of a builtin function, which remembers the types of its calls."""

    def get_call_type(self, context: Any, args: Any, kws: Any) -> Any:  # noqa: ANN401 - numba's
        """The signature of a call."""
        key = self, tuple(args)
        if kws or key not in _CALLS:
            _CALLS[key] = super().get_call_type(context, args, kws)
        return _CALLS[key]


_CALLS: dict[Any, Any] = {}
_datamodel.register_default(_Operator)(_datamodel.models.OpaqueModel)


@cache
def _operator(given: Any) -> Any:  # noqa: ANN401 - numba's
    """The same type, which remembers; what implements a call is known to both."""
    made: Any = _Operator(given.templates)
    made._impl_keys = given._impl_keys
    return made


@cache
def _remembering(given: Any) -> Any:  # noqa: ANN401 - numba's
    """A context that shares all of its state with the one given."""
    if type(given) is not _context.Context:
        return given
    made = object.__new__(_Context)
    made.__dict__ = given.__dict__
    return made


class _Passes(_machinery.PassManager):
    """numba's passes one after another, without the events and checks of each."""

    def _runPass(self, index: int, numba_pass: Any, state: Any) -> None:  # noqa: ANN401 - numba's
        numba_pass.analysis = self._analysis
        numba_pass.run_initialization(state)
        numba_pass.run_pass(state)
        numba_pass.run_finalizer(state)


class _OwningPartCompiler(_compiler.CompilerBase):
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
        passes.__class__ = _Passes
        return [passes]


class _PartCompiler(_OwningPartCompiler):
    """The same without counts of references."""

    def __init__(self, typingctx: Any, targetctx: Any, library: Any, *given: Any) -> None:  # noqa: ANN401 - numba's
        super().__init__(typingctx, _uncounted(targetctx), library, *given)


class _InlinedPartCompiler(_PartCompiler):
    """The same for parts that are always inlined."""


def part_options(*, owning: bool = False, inlined: bool = False) -> dict[str, Any]:
    """Options of the jit that make a function a part: `owning` one that makes arrays, `inlined` one always inlined."""
    known = _Library is not object and all(hasattr(_Library, name) for name in _USED)
    if not known:
        return {}
    counted = owning or not hasattr(_base.BaseContext, "nrt")
    uncounted = _InlinedPartCompiler if inlined else _PartCompiler
    return {"pipeline_class": _OwningPartCompiler if counted else uncounted}


def part(function: F) -> F:
    """A function of compiled code alone, in what calls it, with no machine code of its own; it makes no arrays."""
    return _part(function, part_options())


def inlined_part(function: F) -> F:
    """A part that is inlined however long it is: one called from one place, or handed many arrays in a tuple.

    numba hands every array over as seven numbers, which take longer than a short loop does.
    """
    return _part(function, part_options(inlined=True))


def owning_part(function: F) -> F:
    """The same for a function that makes arrays, or gets new ones from another."""
    return _part(function, part_options(owning=True))


def _part(function: F, options: dict[str, Any]) -> F:
    return cast(F, _numba.njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, **options)(function))

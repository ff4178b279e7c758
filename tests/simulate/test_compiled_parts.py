"""The simulator's parts are compiled by insides of numba: those of the numba that is installed, and of none newer."""

import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import numba
import numpy as np
import pytest
from numba.core import compiler
from packaging.requirements import Requirement

from planner.simulate.loop.program import compiled, entry, owning
from planner.solvers.compilation import parts

ROOT = Path(__file__).parent.parent.parent
ADVICE = f"numba {version('numba')} differs inside: adapt solvers/compilation/parts.py, then raise numba's bound"


def declared() -> Requirement:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return next(need for need in map(Requirement, project["dependencies"]) if need.name == "numba")


def test_numba_has_an_upper_bound_and_the_one_in_use_lies_below_it() -> None:
    assert any(bound.operator == "<" for bound in declared().specifier)
    assert declared().specifier.contains(version("numba")), ADVICE


def test_the_classes_and_passes_that_parts_rest_on_are_there() -> None:
    assert parts.part_options(), ADVICE
    builder: Any = compiler.DefaultPassBuilder
    passes = builder.define_nopython_pipeline(SimpleNamespace(flags=parts._Flags(), func_ir=None)).passes
    names = {numba_pass.__name__ for numba_pass, _ in passes}
    assert names >= {*parts._UNUSED, "NativeLowering"}, ADVICE


def test_a_part_gets_no_machine_code_and_gives_what_the_function_gives() -> None:
    @compiled
    def collatz(number: int) -> int:
        return number // 2 if number % 2 == 0 else 3 * number + 1

    def steps(number: int) -> int:
        count = 0
        while number != 1:
            number = collatz(number)
            count += 1
        return count

    njit: Any = numba.njit
    assert njit(steps)(27) == 111
    (overload,) = collatz.overloads.values()  # type: ignore[attr-defined]  # numba's dispatcher
    assert isinstance(overload.library, parts._Part), ADVICE
    assert overload.library.get_pointer_to_function(overload.fndesc.llvm_func_name) == 0


@pytest.mark.parametrize(("decorate", "always"), [(parts.part, False), (parts.inlined_part, True)])
def test_an_inlined_part_is_inlined_whatever_its_length(decorate: Any, always: bool) -> None:  # noqa: ANN401 - numba's
    njit, doubled = cast(Any, numba).njit, decorate(lambda number: 2 * number)
    assert njit(lambda number: doubled(number) + 1)(4) == 9
    (overload,) = doubled.overloads.values()
    function = overload.library._get_module_for_linking().get_function(overload.fndesc.llvm_func_name)
    assert any(b"alwaysinline" in attributes for attributes in function.attributes) is always, ADVICE


@compiled
def third(values: Any) -> float:  # noqa: ANN401 - an array
    row = values[0]
    return float(row[2])


def test_a_part_counts_no_references_and_one_that_makes_arrays_does() -> None:
    def made(count: int) -> Any:  # noqa: ANN401 - an array
        return np.arange(float(count)).reshape(1, count)

    counting = owning(made)

    def looked_up(count: int) -> float:
        return third(counting(count))

    njit: Any = numba.njit
    assert njit(looked_up)(5) == 2.0
    dispatchers: Any = third, counting
    ((plain,), (own,)) = (part.overloads.values() for part in dispatchers)
    assert "NRT_incref" not in str(plain.library._final_module)
    assert "NRT_" in str(own.library._final_module)
    refused = compiled(made)
    with pytest.raises(Exception, match="makes arrays: decorate it with `owning_part`"):
        njit(lambda count: refused(count).sum())(5)


def test_a_program_is_kept_by_its_sources_wherever_they_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANNER_CACHE_DIR", str(tmp_path / "cache"))
    source = "def twice(number):\n    return 2 * number\n"
    compilations = []
    for folder in ("here", "there"):
        path = tmp_path / folder / "program.py"
        path.parent.mkdir()
        path.write_text(source)
        module: Any = ModuleType("program")
        monkeypatch.setitem(sys.modules, "program", module)
        exec(compile(source, str(path), "exec"), vars(module))
        program: Any = entry(module.twice)
        assert program(21) == 42
        compilations.append((len(program.stats.cache_hits), len(program.stats.cache_misses)))
    assert compilations == [(0, 1), (1, 0)]

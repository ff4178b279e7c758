"""The simulator's parts are compiled by insides of numba: those of the numba that is installed, and of none newer."""

import tomllib
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numba
from numba.core import compiler
from packaging.requirements import Requirement

from planner.simulate.loop import parts
from planner.simulate.loop.program import compiled

ROOT = Path(__file__).parent.parent.parent
ADVICE = f"numba {version('numba')} differs inside: adapt planner/simulate/loop/parts.py, then raise numba's bound"


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

"""Compiled programs are kept on disk by all that goes into them, wherever it stands."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numba", reason="programs are compiled by numba")

from planner.solvers.compilation.kept import _digest, is_kept, kept

PROGRAM = """
from numba import njit
from planner.solvers.compilation.kept import kept
from {package}.beside import WIDTH, helped

@kept
@njit
def program(number):
    return WIDTH * _through(number)

@njit
def _through(number):
    return helped(number)
"""
BESIDE = """
from numba import njit

WIDTH = {width}

@njit
def helped(number):
    return number + {more}
"""


@pytest.fixture
def answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, bool]]:
    """What a program gives whose parts beside it have these figures, and whether it was at hand."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def run(**figures: int) -> tuple[int, bool]:
        folder = tmp_path / "programs_beside"
        folder.mkdir(exist_ok=True)
        (folder / "__init__.py").touch()
        (folder / "beside.py").write_text(BESIDE.format(**figures))
        (folder / "program.py").write_text(PROGRAM.format(package=folder.name))
        for name in [name for name in sys.modules if name.startswith(folder.name)]:
            del sys.modules[name]
        importlib.invalidate_caches()
        _digest.cache_clear()  # of files that change while a process runs
        program: Any = importlib.import_module(f"{folder.name}.program").program
        return program(20), bool(program.stats.cache_hits)

    return run


def test_a_program_is_compiled_anew_where_a_part_or_a_value_beside_it_changes(
    answer: Callable[..., tuple[int, bool]],
) -> None:
    assert answer(width=2, more=1) == (42, False)
    assert answer(width=2, more=1) == (42, True)
    assert answer(width=2, more=2) == (44, False)
    assert answer(width=3, more=2) == (66, False)
    assert answer(width=3, more=2) == (66, True)


def test_where_numba_compiles_nothing_no_program_is_waited_for() -> None:
    def plain(number: int) -> int:  # what `njit` gives with NUMBA_DISABLE_JIT
        return number + 1

    assert kept(plain) is plain
    assert is_kept(plain)

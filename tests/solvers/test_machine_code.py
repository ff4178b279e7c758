"""Loops called without numba: what they compute, what is kept of them, and when numba runs them after all."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
import summing_loops
from llvmlite import binding

from planner.arrays import Floats
from planner.solvers.compiled.machine_code import loop as loops
from planner.solvers.compiled.machine_code.kept import MOST_KEPT, Code, place_of, read, write
from planner.solvers.compiled.machine_code.loop import Loop

SUMS = Loop("summing_loops", "running_sums")
VALUES = np.array([3, 1, 4, 1, 5])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where code is kept; nothing is loaded yet.

    numba reads its environment when it compiles and goes by that until it compiles again: what a test sets would have
    all modules that later tests import run as Python, or compiled once more.
    """
    config: Any = numba.config
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
        loops._callable.cache_clear()
        yield tmp_path
    config.reload_config()
    assert not config.DISABLE_JIT
    assert str(tmp_path) != config.CACHE_DIR


def sums(loop: Loop = SUMS) -> Floats:
    filled = np.empty(len(VALUES))
    loop(VALUES, 0.5, filled)
    return filled


def right(filled: Floats) -> bool:
    return bool((filled == np.cumsum(VALUES) * 0.5).all())


def test_a_loop_is_kept_once_for_its_types_and_loaded_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert right(sums())
    (kept,) = folder.iterdir()
    loops._callable.cache_clear()
    monkeypatch.setattr(loops, "_compiled", None)  # so that compiling would raise
    assert right(sums())
    assert list(folder.iterdir()) == [kept]


@pytest.mark.parametrize("cut", [0, 10, 200, -1])
def test_a_file_that_is_not_whole_counts_as_none(folder: Path, cut: int) -> None:
    code = Code("run", b"object\nfile" * 20)
    place = folder / "run.o"
    write(place, code)
    assert read(place) == code
    place.write_bytes(place.read_bytes()[:cut])
    assert read(place) is None


def test_the_newest_code_of_a_function_is_kept_and_none_of_others_is_dropped(folder: Path) -> None:
    other = folder / "run-sums-0.o"
    write(other, Code("other", b"object"))
    places = [folder / f"run-{place:03}.o" for place in range(MOST_KEPT + 3)]
    for age, place in enumerate(places):
        write(place, Code("run", b"object"))
        os.utime(place, (age, age))
    write(places[-1], Code("run", b"object"))
    assert {path for path in folder.iterdir() if path != other} == set(places[-MOST_KEPT:])
    assert read(other) is not None


def test_a_loop_runs_where_nothing_can_be_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "file").write_text("no folder", encoding="utf-8")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(folder / "file"))
    assert right(sums())


def test_a_numba_with_other_insides_runs_the_loop_itself(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "_SELF_CONTAINED", {"error_model": "numpy", "no_such_option": True})
    assert right(sums())
    assert not list(folder.iterdir())


@pytest.mark.parametrize("raised", [AttributeError, RuntimeError])
def test_code_that_cannot_be_loaded_is_run_by_numba(monkeypatch: pytest.MonkeyPatch, raised: type[Exception]) -> None:
    def refusing(*_: object) -> None:
        raise raised("no loader")

    monkeypatch.setattr(binding, "create_mcjit_compiler", refusing)
    assert right(sums())


def test_a_loop_is_python_where_numba_is_told_to_compile_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    monkeypatch.setattr(loops, "_compiled", None)
    assert right(sums())


def test_every_processor_has_code_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    places = {place_of("running_sums", ("summing_loops",), ())}
    monkeypatch.setattr(binding, "get_host_cpu_name", lambda: "another")
    places.add(place_of("running_sums", ("summing_loops",), ()))

    def unknown() -> None:
        raise RuntimeError("no features")

    monkeypatch.setattr(binding, "get_host_cpu_features", unknown)
    places.add(place_of("running_sums", ("summing_loops",), ()))
    assert len(places) == 3


def test_code_is_kept_with_the_user_where_the_sources_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert place_of("running_sums", ("summing_loops",), ()).parent == Path.home() / ".cache" / "planner"


def test_a_loop_that_makes_arrays_is_run_by_numba(folder: Path) -> None:
    assert right(sums(Loop("summing_loops", "running_sums_by_array")))
    assert not list(folder.iterdir())


def test_arrays_that_are_strided_or_hold_no_numbers_are_refused() -> None:
    for values in (VALUES[::2], np.array(["a"])):
        with pytest.raises(TypeError, match="contiguous array of numbers"):
            SUMS(values, 0.5, np.empty(5))


def test_a_loop_runs_without_numba_once_its_code_is_kept() -> None:
    program = (
        "import sys, numpy as np\n"
        "from planner.solvers.compiled.machine_code.loop import Loop\n"
        "filled = np.empty(5)\n"
        "Loop('summing_loops', 'running_sums')(np.array([3, 1, 4, 1, 5]), 0.5, filled)\n"
        "print(filled[-1], 'numba' in sys.modules)\n"
    )
    path = os.pathsep.join((str(Path(summing_loops.__file__).parent), *sys.path))
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-c", program]
    said = [subprocess.run(command, check=True, capture_output=True, env=environment).stdout for _ in range(2)]
    assert [line.split() for line in said] == [[b"7.0", b"True"], [b"7.0", b"False"]]

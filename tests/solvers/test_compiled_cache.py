"""Compiled code finds a folder even where nothing beside the program or in the home folder can be written."""

import os
from pathlib import Path

import pytest

from planner.solvers import compiled


def test_a_folder_is_named_only_where_none_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", "")  # so that whatever is set below is undone
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    compiled.keep_compiled(tmp_path / "absent", tmp_path)
    assert "NUMBA_CACHE_DIR" not in os.environ
    monkeypatch.setattr(compiled, "_writable", lambda folder: False)
    compiled.keep_compiled(tmp_path, tmp_path)
    assert Path(os.environ["NUMBA_CACHE_DIR"]).is_dir()
    os.rmdir(os.environ["NUMBA_CACHE_DIR"])


def test_the_choice_of_the_environment_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compiled, "_writable", lambda folder: False)
    compiled.keep_compiled(tmp_path, tmp_path)
    assert os.environ["NUMBA_CACHE_DIR"] == str(tmp_path)


def test_the_nearest_folder_that_exists_is_judged(tmp_path: Path) -> None:
    assert compiled._writable(tmp_path / "a" / "b")

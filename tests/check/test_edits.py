"""A draw of `benchmarks/edits.py`: an edit of any figure, name, digest or list of a plan fails by a rule."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from checked_plans import solved

EDITS = 20
PATH = Path(__file__).parent.parent.parent / "benchmarks" / "edits.py"


@pytest.fixture(scope="module")
def edits() -> ModuleType:
    spec = importlib.util.spec_from_file_location("planner_edits", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("kind", ["serve", "train", "rl", "experts"])
def test_edits_of_every_kind_fail_by_name(kind: str, edits: ModuleType, tmp_path: Path) -> None:
    plan = solved(kind, tmp_path)
    drawn = edits.edits_of(plan, EDITS, seed=1)
    silent = [edit.text for edit in drawn if not edits.judge(plan, edit, (tmp_path,), proof=False).level]
    assert len(silent) <= 0.03 * EDITS, silent

"""A draw of `benchmarks/edits.py`: an edit of any figure, name, digest or list of a plan fails by a rule."""

from pathlib import Path

import edits
import pytest
from checked_plans import solved

EDITS = 20


@pytest.mark.parametrize("kind", ["serve", "train", "rl", "experts"])
def test_edits_of_every_kind_fail_by_name(kind: str, tmp_path: Path) -> None:
    plan = solved(kind, tmp_path)
    drawn = edits.edits_of(plan, EDITS, seed=1)
    silent = [edit.text for edit in drawn if not edits.judge(plan, edit, (tmp_path,), proof=False).level]
    assert len(silent) <= 0.03 * EDITS, silent

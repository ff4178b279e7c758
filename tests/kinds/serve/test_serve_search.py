"""What the search of serving plans asks of its problem before it prices anything."""

from pathlib import Path

import pytest
from serve_problems import small

from planner.api import solve
from planner.errors import PlannerError


def test_a_current_plan_is_read_and_said_to_have_no_say(tmp_path: Path) -> None:
    hand_written = Path(__file__).parents[2] / "plans"
    plan = solve(small({"current": str(hand_written / "serve.json")}))
    assert any("current plan" in assumption for assumption in plan.assumptions)
    with pytest.raises(PlannerError, match="of kind `train`"):
        solve(small({"current": str(hand_written / "train.json")}))
    with pytest.raises(PlannerError):
        solve(small({"current": str(tmp_path / "absent.json")}))

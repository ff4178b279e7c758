"""The drawn timeline of a hand-written plan, and bars that overlap."""

import json
from collections.abc import Callable
from pathlib import Path

from planner.kinds.rl.decision import RlDecision
from planner.rl.timeline import as_svg, as_text

PLAN = Path(__file__).parents[1] / "plans" / "rl.json"


def _decision() -> RlDecision:
    return RlDecision.model_validate(json.loads(PLAN.read_text())["decision"])


def test_the_timeline_is_as_drawn_before(golden: Callable[[str, str], None]) -> None:
    golden("rl/timeline.svg", as_svg(_decision(), 223.0, title="two iterations"))
    golden("rl/timeline.txt", as_text(_decision(), 223.0) + "\n")


def test_phases_at_the_same_time_share_the_height_of_their_row(golden: Callable[[str, str], None]) -> None:
    decision = _decision()
    first, *rest = decision.phases
    beside = first.model_copy(
        update={"name": "scoring beside", "start_s": first.start_s + (first.duration_s or 0.0) / 3}
    )
    waiting = first.model_copy(update={"name": "waiting", "roles": (), "start_s": 50.0, "duration_s": None})
    overlapping = decision.model_copy(update={"phases": (waiting, beside, first, *rest)})
    golden("rl/timeline-beside.svg", as_svg(overlapping, 90.0, iterations=1))

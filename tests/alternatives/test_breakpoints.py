"""Breakpoints along a line are those of points solved one by one."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.alternatives.breakpoints import Segment, segments
from planner.api import solve
from planner.cli.main import main
from planner.costs.rates.forms import FUNCTIONS, STAGES
from planner.errors import Infeasible, PlannerError
from planner.kinds.registry import find_kind
from planner.load.problems import load_problem
from planner.problem.resolve import Resolved
from planner.progress import Limits

PROBLEM = Path(__file__).parent.parent.parent / "examples" / "serve-cost-one-pool.yaml"
SHIPPED = PROBLEM.parent.parent / "planner" / "costs" / "rates" / "calibration.yaml"


@dataclass(frozen=True, slots=True)
class _Best:
    objective: float | None
    decision: str
    choices: tuple[float | None, ...]


class _Steps:
    """A rising step function that knows how far its values reach, or not."""

    def __init__(self, ends: list[float], *, knows: bool, whole: bool = False) -> None:
        self.ends, self.knows, self.whole, self.asked = sorted(ends), knows, whole, 0

    def at(self, value: float) -> _Best:
        self.asked += 1
        step = sum(end < value for end in self.ends)
        return _Best(float(step), f"step {step}", (float(step),))

    def reach(self, value: float, best: _Best) -> float | None:
        if not self.knows:
            return None
        step = sum(end < value for end in self.ends)
        assert best.objective == step
        return self.ends[step] if step < len(self.ends) else float("inf")

    def why(self, value: float) -> str:
        raise AssertionError(value)  # there is a plan everywhere


def _objective(told: list[Segment], value: float) -> float | None:
    return next(segment.objective for segment in reversed(told) if segment.low <= value)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(1.1, 99.0), max_size=8), st.booleans())
def test_the_segments_of_a_step_function_are_its_steps(ends: list[float], knows: bool) -> None:
    line = _Steps(ends, knows=knows)
    told = segments(line, 1.0, 100.0)
    assert told[0].low == 1.0
    assert told[-1].high == 100.0
    width = 100.0 * (1e-5 if knows else 1e-4)
    for value in (1.0 + 99.0 * place / 200 for place in range(201)):
        if all(abs(value - end) > 2 * width for end in ends):
            assert _objective(told, value) == line.at(value).objective


@given(st.lists(st.integers(2, 63), max_size=5))
def test_whole_numbers_have_whole_breakpoints(ends: list[int]) -> None:
    line = _Steps([float(end) for end in ends], knows=False, whole=True)
    told = segments(line, 1.0, 64.0)
    assert all(segment.low == int(segment.low) for segment in told)
    assert all(_objective(told, float(value)) == line.at(value).objective for value in range(1, 65))


class _Preferred(_Steps):
    """The higher of two step functions where it is less than twice the lower, and else that: it rises and falls."""

    def at(self, value: float) -> _Best:
        lower, upper = (1.0 + sum(end < value for end in ends) for ends in (self.ends[::2], self.ends))
        chosen = upper if upper < 2.0 * lower else lower
        return _Best(chosen, "", (upper, lower))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(1.1, 99.0), max_size=8))
def test_what_is_chosen_by_step_functions_may_rise_and_fall(ends: list[float]) -> None:
    line = _Preferred(ends, knows=False)
    told = segments(line, 1.0, 100.0)
    for value in (1.0 + 99.0 * place / 200 for place in range(201)):
        if all(abs(value - end) > 2e-2 for end in ends):
            assert _objective(told, value) == line.at(value).objective


@pytest.mark.parametrize("axis", ["rate", "gpus"])
def test_a_line_has_what_solve_prefers(axis: str, tmp_path: Path) -> None:
    """With measured runs of pipeline stages alone: by formulas at the confidence of the line."""
    costs = yaml.safe_load(SHIPPED.read_text(encoding="utf-8")) | {"forms": {name: [STAGES] for name in FUNCTIONS}}
    (tmp_path / "costs.yaml").write_text(yaml.safe_dump(costs), encoding="utf-8")
    overrides = [f"costs.calibration={tmp_path / 'costs.yaml'}", "workloads.0.slo.confidence=70%", "options.tp=[1]"]
    told = segments(find_kind("serve").along(load_problem(PROBLEM, overrides=overrides), axis, Limits()), 4.0, 16.0)
    stated = {"rate": "workloads.0.load.rate={}/s", "gpus": "limits.gpus={}"}[axis]
    for value in (4, 9, 15):
        point = load_problem(PROBLEM, overrides=[*overrides, stated.format(value)])
        assert _objective(told, float(value)) == pytest.approx(_solved(point))


def _solved(point: Resolved) -> float | None:
    try:
        return solve(point, Limits(explain=False), level="static").certificate.objective.value
    except Infeasible:
        return None


@pytest.mark.parametrize(("axis", "low", "high", "points"), [("rate", 5.0, 16.0, 6), ("gpus", 1.0, 8.0, 8)])
def test_a_line_has_the_objectives_of_points_solved_by_themselves(
    axis: str, low: float, high: float, points: int
) -> None:
    told = segments(find_kind("serve").along(load_problem(PROBLEM), axis, Limits()), low, high)
    fresh = find_kind("serve").along(load_problem(PROBLEM), axis, Limits())
    for place in range(points):
        value = low + (high - low) * place / (points - 1)
        assert _objective(told, value) == pytest.approx(fresh.at(value).objective)
    assert len({segment.objective for segment in told}) == len(told) > 1


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("rate", "is no line"),
        ("rate=5/s..2/s", "a line from 5 to 2"),
        ("tpot=1..2", "must be a time"),
        ("latency2=1s..2s", "no line along"),
        ("gpus=1.5..3", "whole number"),
    ],
)
def test_what_is_no_line_is_refused(line: str, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", str(PROBLEM), "--parametric", line]) == 2
    assert what in capsys.readouterr().err


def test_a_line_that_leaves_what_is_feasible_says_where_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", str(PROBLEM), "--parametric", "gpus=1..4", "--set", "options.pp=[1]"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "no plan keeps all limits with 70% from 1.00000 to 2.00000" in shown
    assert "gpus <= 2 (nearest: 3 gpus)" in shown
    assert main(["sweep", str(PROBLEM), "--parametric", "gpus=16..32", "--set", "options.pp=[1]"]) == 0
    assert "the axis changes nothing" in " ".join(capsys.readouterr().out.split())


def test_a_throughput_has_no_breakpoints_along_a_line() -> None:
    resolved = load_problem(PROBLEM.parent / "serve-qwen3-32b-h200.yaml")
    with pytest.raises(PlannerError, match="changes with every step"):
        find_kind("serve").along(resolved, "tpot", Limits())
    with pytest.raises(PlannerError, match="not solved along a line"):
        find_kind("train").along(load_problem(PROBLEM.parent / "train-gpt3-175b-megascale.yaml"), "gpus", Limits())


def test_a_line_is_written_as_json(tmp_path: Path) -> None:
    output = tmp_path / "line.json"
    assert main(["sweep", str(PROBLEM), "--parametric", "gpus=2..4", "--set", "options.pp=[1]", "-o", str(output)]) == 0
    document = json.loads(output.read_text())
    assert document["schema"] == "planner.parametric/1"
    assert [row["objective"] for row in document["segments"]] == [None, 10.5]

"""Asynchronous steps from a measured colocated one: limits that must hold, and measured rows."""

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.rl.measured_step import PhaseTimes, Response, Split, predict_step_s

ROOT = Path(__file__).parents[2]
MEASURED = ROOT.parent / "shared" / "data" / "rl" / "measured.csv"
STEP = PhaseTimes(gpus=16, step_s=749.0, generation_s=321.0, training_s=286.0, logprob_s=88.0)
LINEAR = Response(0.0, 0.0, 1.0, 0.0, 0.0, 1e30)


@given(st.integers(1, 15))
def test_phases_that_scale_linearly_take_turns_or_overlap_in_the_same_gpu_seconds(training: int) -> None:
    step_s = predict_step_s(STEP, Split(16 - training, training, "one_step"), 7e9, LINEAR)
    busy = max(321.0 * 16 / (16 - training), (286.0 + 88.0) * 16 / training)
    assert step_s == pytest.approx(busy + 54.0)


@given(st.floats(0.01, 2.0), st.floats(0.01, 2.0))
def test_more_staleness_never_lengthens_the_step(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert predict_step_s(STEP, Split(8, 8, "fully", high, 4), 7e9) <= predict_step_s(
        STEP, Split(8, 8, "fully", low, 4), 7e9
    )


def test_times_that_are_no_colocated_step_are_refused() -> None:
    with pytest.raises(PlannerError, match="phases of 14 s in a step of 10 s"):
        PhaseTimes(gpus=8, step_s=10.0, generation_s=7.0, training_s=7.0)
    with pytest.raises(PlannerError, match="0 of 16 GPUs generate"):
        predict_step_s(STEP, Split(0, 16, "fully"), 7e9)


@pytest.mark.skipif(not MEASURED.exists(), reason=f"no measured steps at {MEASURED}")
def test_measured_asynchronous_steps_are_predicted_within_the_target(capsys: pytest.CaptureFixture[str]) -> None:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import rl_measured

        assert rl_measured.main(MEASURED, print_fit=False) == 0
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))
    printed = capsys.readouterr().out
    assert "median error, left out" in printed

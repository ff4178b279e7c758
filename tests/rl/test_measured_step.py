"""Asynchronous steps from a measured colocated one: limits that must hold, and measured rows."""

import json
from pathlib import Path

import pytest
import rl_measured
from hypothesis import given
from hypothesis import strategies as st

from planner.cli.main import main
from planner.errors import PlannerError
from planner.rl.measured_step import ERROR, PhaseTimes, PoolSplit, Response, predict_step_s

ROOT = Path(__file__).parents[2]
MEASURED = ROOT.parent / "shared" / "data" / "rl" / "measured.csv"
STEP = PhaseTimes(gpus=16, step_s=749.0, generation_s=321.0, training_s=286.0, logprob_s=88.0)
LINEAR = Response(0.0, 0.0, 1.0, 0.0, 0.0, 1e30)


@given(st.integers(1, 15))
def test_phases_that_scale_linearly_take_turns_or_overlap_in_the_same_gpu_seconds(training: int) -> None:
    step_s = predict_step_s(STEP, PoolSplit(16 - training, training, "one_step"), 7e9, LINEAR)
    busy = max(321.0 * 16 / (16 - training), (286.0 + 88.0) * 16 / training)
    assert step_s == pytest.approx(busy + 54.0)


@given(st.floats(0.01, 2.0), st.floats(0.01, 2.0))
def test_more_staleness_never_lengthens_the_step(first: float, second: float) -> None:
    low, high = sorted((first, second))
    assert predict_step_s(STEP, PoolSplit(8, 8, "fully", high, 4), 7e9) <= predict_step_s(
        STEP, PoolSplit(8, 8, "fully", low, 4), 7e9
    )


def test_times_that_are_no_colocated_step_are_refused() -> None:
    with pytest.raises(PlannerError, match="phases of 14 s in a step of 10 s"):
        PhaseTimes(gpus=8, step_s=10.0, generation_s=7.0, training_s=7.0)
    with pytest.raises(PlannerError, match="phases of 4 s in a step of 10 s: 6 s have no name"):
        PhaseTimes(gpus=8, step_s=10.0, generation_s=2.0, training_s=2.0)
    with pytest.raises(PlannerError, match="0 of 16 GPUs generate"):
        predict_step_s(STEP, PoolSplit(0, 16, "fully"), 7e9)


@pytest.mark.skipif(not MEASURED.exists(), reason=f"no measured steps at {MEASURED}")
def test_measured_asynchronous_steps_are_predicted_within_the_target(capsys: pytest.CaptureFixture[str]) -> None:
    assert rl_measured.main(MEASURED, print_fit=False) == 0
    printed = capsys.readouterr().out
    assert "median error, left out" in printed


def test_few_generators_keep_training_waiting() -> None:
    steps = [predict_step_s(STEP, PoolSplit(count, 16 - count, "fully", 1.0, 4), 7e9) for count in (1, 2)]
    assert steps[0] > 1.5 * steps[1]


def measured_file(tmp_path: Path, **changes: object) -> str:
    fields = {"gpus": 16, "parameters": 7.6e9, "step_s": 749, "generation_s": 321, "training_s": 286, "logprob_s": 88}
    path = tmp_path / "step.yaml"
    path.write_text("".join(f"{key}: {value}\n" for key, value in (fields | changes).items()), encoding="utf-8")
    return str(path)


def test_splits_are_listed_by_their_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rl", "predict", measured_file(tmp_path, gpus_per_node=4), "--json"]) == 0
    splits = json.loads(capsys.readouterr().out)["splits"]
    assert [row["step_s"] for row in splits] == sorted(row["step_s"] for row in splits)
    assert {(row["generation_gpus"], row["training_gpus"]) for row in splits} == {(4, 12), (8, 8), (12, 4)}
    one_step = next(row for row in splits if row["asynchrony"] == "one_step" and row["generation_gpus"] == 4)
    assert one_step["step_s"] == pytest.approx(predict_step_s(STEP, PoolSplit(4, 12, "one_step"), 7.6e9))


def test_a_gain_within_the_error_of_predictions_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # as verl's steps of 10,000 tokens, where training is nearly all: half of the GPUs train in nearly the same time
    step = {"step_s": 484.623, "generation_s": 52.939, "training_s": 430.263, "logprob_s": 0.0, "calls": 4}
    assert main(["rl", "predict", measured_file(tmp_path, **step), "--json"]) == 0
    splits = json.loads(capsys.readouterr().out)["splits"]
    near = next(row for row in splits if row["asynchrony"] == "fully")
    assert 1.0 < near["speed_up"] < 1.0 + ERROR
    assert not near["worth_it"]
    assert main(["rl", "predict", measured_file(tmp_path, **step)]) == 0
    assert "stay colocated" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "what"),
    [({"step_s": 300}, "phases of 695 s in a step of 300 s"), ({"gpus": "many"}, "must be a number")],
)
def test_a_step_that_cannot_be_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, object], what: str
) -> None:
    assert main(["rl", "predict", measured_file(tmp_path, **changes)]) == 2
    assert what in capsys.readouterr().err

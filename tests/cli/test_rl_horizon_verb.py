"""`planner rl horizon`: plans over training time, written, judged, refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from planner.cli.main import main

EXAMPLE = Path(__file__).parents[2] / "examples" / "rl-problems" / "horizon-drift.json"
Capture = pytest.CaptureFixture[str]


def _changed(folder: Path, **changes: Any) -> str:  # noqa: ANN401 - plain data
    path = folder / "problem.json"
    path.write_text(json.dumps({**json.loads(EXAMPLE.read_text()), **changes}, indent=1))
    return str(path)


def test_the_plan_written_is_judged_to_be_worth_what_was_proven(tmp_path: Path, capsys: Capture) -> None:
    plan = tmp_path / "plan.json"
    assert main(["rl", "horizon", str(EXAMPLE), "--json", "-o", str(plan)]) == 0
    solved = json.loads(capsys.readouterr().out)
    assert solved["status"] == "optimal"
    assert solved["changes"] > 0
    assert solved["objective"] < min(solved["one_plan_objective"], solved["best_of_every_period_objective"])
    assert main(["rl", "evaluate", str(EXAMPLE), str(plan), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["objective"] == pytest.approx(solved["objective"])


def test_a_plan_that_takes_too_many_gpus_fails_in_its_period(tmp_path: Path, capsys: Capture) -> None:
    plan = tmp_path / "plan.json"
    assert main(["rl", "horizon", str(EXAMPLE), "-o", str(plan)]) == 0
    assert "5 periods" in capsys.readouterr().out
    written = json.loads(plan.read_text())
    written["periods"][2]["plan"]["gen"][0]["replicas"] = 99
    plan.write_text(json.dumps(written))
    assert main(["rl", "evaluate", str(EXAMPLE), str(plan)]) == 1
    assert "FAIL  period 2: pool" in capsys.readouterr().out
    plan.write_text(json.dumps({"periods": written["periods"][:3]}))
    assert main(["rl", "evaluate", str(EXAMPLE), str(plan)]) == 2
    assert "give 5 periods" in capsys.readouterr().err


def test_a_cap_that_a_period_cannot_keep_exits_1_with_the_nearest(tmp_path: Path, capsys: Capture) -> None:
    path = _changed(tmp_path, max_iteration_s=0.001)
    assert main(["rl", "horizon", path, "--json"]) == 1
    conflict = json.loads(capsys.readouterr().out)["conflict"][0]
    assert conflict["limit"] == "max_iteration_s <= 0.001 in period 0"
    assert float(conflict["nearest"].split()[1]) > 0.001


@pytest.mark.parametrize(
    ("changes", "said", "hint"),
    [
        ({"stage": "gen_only"}, "generation and training together", "stage: full"),
        ({"change": {"generation_s": -1, "training_s": 0}}, "must be at least 0", "change.generation_s"),
        ({"change": None}, "`change` is missing", "hint: "),
        ({"workload": {"prompt_len": 1, "minibatches": 1, "periods": []}}, "list that is not empty", "hint: "),
    ],
)
def test_bad_horizons_are_refused_with_a_fix(
    tmp_path: Path, changes: dict[str, Any], said: str, hint: str, capsys: Capture
) -> None:
    assert main(["rl", "horizon", _changed(tmp_path, **changes)]) == 2
    shown = capsys.readouterr().err
    assert said in shown
    assert hint in shown


def test_a_horizon_starts_from_the_plan_that_runs(tmp_path: Path, capsys: Capture) -> None:
    free = tmp_path / "free.json"
    assert main(["rl", "horizon", str(EXAMPLE), "-o", str(free)]) == 0
    last = json.loads(free.read_text(encoding="utf-8"))["periods"][-1]["plan"]
    path, plan = _changed(tmp_path, current=last), tmp_path / "plan.json"
    assert main(["rl", "horizon", path, "-o", str(plan)]) == 0
    first = json.loads(plan.read_text(encoding="utf-8"))["periods"][0]
    assert bool(first["changed"]) == (first["plan"] != last)
    capsys.readouterr()
    assert main(["rl", "horizon", str(EXAMPLE), "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)["objective"]
    assert main(["rl", "horizon", path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["objective"] > alone
    assert main(["rl", "evaluate", path, str(plan)]) == 0


def test_solving_a_problem_of_periods_points_to_the_horizon(capsys: Capture) -> None:
    assert main(["rl", "solve", str(EXAMPLE)]) == 2
    assert "planner rl horizon" in capsys.readouterr().err


def test_a_plan_of_the_command_is_priced_as_the_benchmarks_own(tmp_path: Path, capsys: Capture) -> None:
    plan = tmp_path / "plan.json"
    assert main(["solve", str(EXAMPLE), "-o", str(plan)]) == 0
    capsys.readouterr()
    assert main(["rl", "evaluate", str(EXAMPLE), str(plan), "--json"]) == 0
    worth = json.loads(capsys.readouterr().out)["objective"]
    assert worth == pytest.approx(json.loads(plan.read_text())["certificate"]["objective"]["value"], rel=1e-9)
    assert main(["rl", "evaluate", str(EXAMPLE), str(EXAMPLE.parents[2] / "tests" / "plans" / "serve.json")]) == 2
    assert "is a plan of kind `serve`" in capsys.readouterr().err


def test_a_problem_of_a_kind_is_sent_to_the_verbs_that_take_it(capsys: Capture) -> None:
    assert main(["rl", "evaluate", str(EXAMPLE.parents[1] / "rl-grpo-7b.yaml"), "plan.json"]) == 2
    assert "`planner check`" in capsys.readouterr().err

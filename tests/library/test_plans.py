"""Plans as objects: read as they are saved, predictions by name, numbers of numpy, folders whole or not at all."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import planner
from planner.estimate import estimate_jsonl
from planner.library.predictions import Predictions
from planner.plan.schema import Prediction

PROBLEM: dict[str, Any] = {
    "kind": "serve",
    "models": {"chat": {"name": "Qwen/Qwen3-8B"}},
    "cluster": {"pools": [{"gpu": "h200", "gpus": 2}]},
    "workloads": [{"input_tokens": 1000, "output_tokens": 200, "load": {"rate": "4/s"}, "slo": {"tpot": "40ms"}}],
    "costs": {"profiles": ["none"]},
    "objective": {"minimize": "gpus"},
    "options": {"modes": ["colocated"], "tp": [1], "pp": [1]},
}


@pytest.fixture(scope="module")
def plan() -> planner.Plan:
    return planner.solve(PROBLEM, level="static")


def test_a_plan_is_read_as_it_is_saved(plan: planner.Plan, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan.save(path)
    again = planner.load_plan(path)
    assert again.to_json() == plan.to_json() == path.read_text()
    assert again.roles == plan.roles
    assert (again.status, again.objective, again.bound, again.gap) == ("optimal", 1.0, 1.0, 0.0)
    assert again.diff(plan).inputs == ()
    assert all(finding.ok for finding in again.check())


def test_the_problem_of_a_plan_is_solved_as_its_file_is(plan: planner.Plan) -> None:
    assert plan.certificate.confidence == 0.7
    assert planner.solve(plan.problem, level="static").to_json() == plan.to_json()


def test_numbers_of_numpy_make_the_same_plan(plan: planner.Plan) -> None:
    workload = {**PROBLEM["workloads"][0], "input_tokens": np.int64(1000), "output_tokens": np.float64(200.0)}
    pools = [{"gpu": "h200", "gpus": np.int32(2)}]
    problem = {**PROBLEM, "workloads": [workload], "cluster": {"pools": pools}, "seed": np.uint8(0)}
    assert planner.solve(problem, level="static").to_json() == plan.to_json()


def test_emitted_files_stand_in_the_folder(plan: planner.Plan, tmp_path: Path) -> None:
    files = plan.emit("vllm", tmp_path / "launch")
    assert {path.name: path.read_text() for path in (tmp_path / "launch").iterdir()} == files
    with pytest.raises(planner.PlannerError, match="did you mean"):
        plan.emit("vlm", tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_notebooks_show_predictions_explanations_and_simulations_in_words(plan: planner.Plan, tmp_path: Path) -> None:
    assert repr(plan.predictions).startswith("<Predictions: requests_per_s")
    assert "<td>gpus</td>" in plan.predictions._repr_html_()
    assert "<li><b>evidence</b>" in plan.explain()._repr_html_()
    rows = "".join(f"{second},1000,20\n" for second in range(30))
    (tmp_path / "trace.csv").write_text(f"arrival_s,input_tokens,output_tokens\n{rows}")
    shown = repr(plan.simulate(tmp_path / "trace.csv"))
    assert shown.startswith("<PlanSimulation: 30 requests, tpot ")


def test_html_of_a_plan_escapes_its_names(plan: planner.Plan) -> None:
    named = planner.solve({**PROBLEM, "name": "<b>&"}, level="static")
    assert "<b>&" not in named._repr_html_().replace("<p><b>", "")
    assert "&lt;b&gt;&amp;" in named._repr_html_()
    assert plan.roles[0].name in plan._repr_html_()


def row(metric: str, of: str, statistic: str, value: float) -> Prediction:
    return Prediction(metric=metric, of=of, statistic=statistic, value=value)


def test_predictions_go_by_metric_with_or_without_unit_and_by_whose_they_are() -> None:
    rows = [row("ttft_s", "a", "mean", 0.1), row("ttft_s", "a", "p95", 0.2), row("ttft_s", "b", "mean", 0.3)]
    predictions = Predictions([*rows, row("gpus", "", "mean", 4.0)])
    assert predictions["gpus"] == {"mean": 4.0}
    assert predictions.of("a")["ttft"] == predictions.of("a")["ttft_s"] == {"mean": 0.1, "p95": 0.2}
    assert list(predictions[:2]) == rows[:2]
    assert len(predictions) == 4
    with pytest.raises(planner.PlannerError, match="is predicted of `a`, `b`"):
        predictions["ttft"]
    with pytest.raises(planner.PlannerError, match="does not predict `tttf_s`"):
        predictions["tttf_s"]
    with pytest.raises(planner.PlannerError, match="nothing is predicted of `c`"):
        predictions.of("c")


def test_a_sweep_has_a_row_for_every_combination() -> None:
    table = planner.sweep(PROBLEM, {"load.rate_per_s": np.array([4.0, 8.0]), "slo.tpot": ["40ms", "1ms"]})
    assert [(row["load.rate_per_s"], row["slo.tpot_s"], row["status"]) for row in table.rows] == [
        (4.0, 0.04, "ok"),
        (4.0, 0.001, "infeasible"),
        (8.0, 0.04, "ok"),
        (8.0, 0.001, "infeasible"),
    ]
    with pytest.raises(planner.PlannerError, match="axes"):
        planner.sweep(PROBLEM, {"rte": [1]})


def test_predictions_and_sweeps_are_frames_of_pandas(plan: planner.Plan) -> None:
    pytest.importorskip("pandas")
    frame = plan.to_frame().set_index(["metric", "of", "statistic"])
    assert frame.loc[("gpus", "", "mean"), "value"] == 1.0
    table = planner.sweep(PROBLEM, {"load.rate_per_s": [4.0]})
    assert list(table.to_frame()["gpus"]) == [1.0]


def test_estimates_are_those_of_the_command() -> None:
    case: dict[str, Any] = {
        "id": "a",
        "models": {"m": {"name": "Qwen/Qwen3-8B"}},
        "cluster": {"pools": [{"gpu": "h100", "nodes": np.int64(1)}]},
        "workloads": [{"input_tokens": np.float32(2000), "output_tokens": 300, "load": {"concurrency": 16}}],
        "decision": {"mode": "colocated", "parallelism": {"tp": 2}},
    }
    known, unknown = planner.estimate([case, case | {"id": "b", "decision": {"mode": "both"}}])
    (line,) = estimate_jsonl([json.dumps(case, default=float)])
    assert known == json.loads(line)
    assert known["prediction"]["tpot_s"] > 0
    assert (unknown["id"], "both" in unknown["error"]) == ("b", True)


@pytest.mark.parametrize(("kind", "target"), [("train", "megatron-lm"), ("rl", "verl"), ("fleet", "fleet-kueue")])
def test_plans_that_train_are_emitted_whole_or_not_at_all(kind: str, target: str, tmp_path: Path) -> None:
    plan = planner.load_plan(PLANS / f"{kind}.json")
    if kind == "train":  # ZeRO 2 over a pipeline, which no code runs
        with pytest.raises(planner.PlannerError, match="ZeRO 2 with pp 16"):
            plan.emit(target, tmp_path / "out")
        assert not (tmp_path / "out").exists()
    else:
        files = plan.emit(target, tmp_path / "out")
        assert {path: (tmp_path / "out" / path).read_text() for path in files} == files


def test_deep_explanations_look_where_the_plan_lies(
    plan: planner.Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr("planner.explain.explain_plan", lambda *_, **named: asked.update(named))
    plan.save(tmp_path / "plan.json")
    planner.load_plan(tmp_path / "plan.json", profiles=("tables",)).explain(deep=True)
    assert asked == {"deep": True, "base": tmp_path, "profiles": ("tables",)}


PLANS = Path(__file__).parents[1] / "plans"


@pytest.mark.parametrize("kind", ["experts", "fleet", "place", "rl", "serve", "train", "workflow"])
def test_a_plan_of_every_kind_is_shown_explained_and_put_on_a_page(kind: str, tmp_path: Path) -> None:
    plan = planner.load_plan(PLANS / f"{kind}.json")
    assert plan.kind == kind
    assert plan.roles
    assert all(role.name in plan._repr_html_() for role in plan.roles)
    assert plan.explain().facts
    page = plan.report(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page
    assert page.lower().startswith("<!doctype html")
    assert str(plan.explain()).startswith("evidence: ")
    assert all(finding.ok or finding.unverifiable for finding in plan.check())
    if kind != "serve":
        with pytest.raises(planner.PlannerError, match=f"`{kind}` serves no requests"):
            plan.simulate()
    metric = plan.predictions[0].metric
    of = plan.predictions.of(plan.predictions[0].of)
    assert of[metric]

"""`planner rl solve` and `planner rl evaluate`."""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rl_problems import random_problem

from planner.cli.main import main
from planner.cli.rl import rl_forms
from planner.rl.agentic import AgenticPlan
from planner.rl.search.search import RlSolution
from planner.solvers.result import Status

Json = dict[str, Any]
EXAMPLES = Path(__file__).parents[2] / "examples" / "rl-problems"


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(random_problem(3, "async"), indent=1))
    return path


def _changed(path: Path, dotted: str, value: object) -> None:
    data = json.loads(path.read_text())
    place = data
    *above, last = (int(part) if part.isdigit() else part for part in dotted.split("."))
    for part in above:
        place = place[part]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    path.write_text(json.dumps(data, indent=1))


def test_a_plan_is_written_and_judged(problem: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = problem.with_name("plan.json")
    assert main(["rl", "solve", str(problem), "--output", str(plan)]) == 0
    assert "optimal, gap 0.00%" in capsys.readouterr().out
    written = json.loads(plan.read_text())
    assert set(written) == {"placement", "sync", "gen", "train"}
    assert main(["rl", "evaluate", str(problem), str(plan)]) == 0
    assert "every rule holds" in capsys.readouterr().out
    written["gen"][0]["replicas"] = 99
    plan.write_text(json.dumps(written))
    assert main(["rl", "evaluate", str(problem), str(plan), "--json"]) == 1
    assert any("the plan takes" in rule for rule in json.loads(capsys.readouterr().out)["broken"])


def test_json_says_what_was_proven(problem: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rl", "solve", str(problem), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "planner.rl_solution/1"
    assert document["status"] == "optimal"
    assert document["bound"] == pytest.approx(document["objective"])
    assert document["evaluation"]["objective"] == document["objective"]


def test_a_generation_plan_has_a_tail_group_where_it_pays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rollout.json"
    path.write_text(json.dumps(random_problem(2, "rollout")))
    assert main(["rl", "solve", str(path), "-o", "-"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["train"] is None
    assert ("tail_fraction" in plan) == (len(plan["gen"]) == 2)


def test_a_cap_that_no_plan_keeps_exits_1_with_the_nearest(problem: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _changed(problem, "max_iteration_s", 1e-3)
    assert main(["rl", "solve", str(problem)]) == 1
    assert "the shortest iteration takes" in capsys.readouterr().out
    assert main(["rl", "solve", str(problem), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["nearest_iteration_s"] > 0


def test_a_search_that_finds_no_plan_and_proves_nothing_exits_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    left: RlSolution[AgenticPlan] = RlSolution(Status.UNKNOWN, "finished", None, None, None, 8, 0, 0.0, unproven=2)
    form = replace(rl_forms.AGENTIC_FORM, solve=lambda document, given, limits: left)
    monkeypatch.setattr(rl_forms, "AGENTIC_FORM", form)
    path = str(EXAMPLES / "agentic-moves.json")
    assert main(["rl", "solve", path]) == 3
    assert "none is proven impossible" in capsys.readouterr().out
    assert main(["rl", "solve", path, "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["proved"] is False


@pytest.mark.parametrize("name", ["agentic-unequal-workers", "agentic-moves", "agentic-staleness"])
def test_agentic_examples_are_solved_and_judged(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, plan = EXAMPLES / f"{name}.json", tmp_path / "plan.json"
    assert main(["rl", "solve", str(path), "--json", "-o", str(plan)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["status"] == "optimal"
    assert main(["rl", "evaluate", str(path), str(plan), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["objective"] == document["objective"]


@pytest.mark.parametrize(
    ("dotted", "value", "said", "hint"),
    [
        (
            "workload.batches.0.output_len.1",
            100_000,
            "exceeds the KV capacity of every replica",
            "cap prompt and output",
        ),
        ("workload.minibatches", 400, "400 minibatches", "write at most"),
        ("workload.samples", 3, "lengths for 3 samples", "samples:"),
        ("workload.batches.0.output_len.0", 0, "must be at least 1", "whole numbers"),
        (
            "cost.gen.a",
            {"64": {"alpha": 1, "beta": 0, "gamma": 0, "prefill_tok_s": 9, "max_running": 1, "kv_tokens": 999}},
            "",
            "",
        ),
        ("cost.train.a.act_gb", 900.0, "", ""),
        ("allowed.sync", ["asynchronous"], "unknown value `'asynchronous'`", "one_step_async"),
        (
            "allowed",
            {"placement": ["colocated"], "sync": ["one_step_async"]},
            "cannot be `one_step_async`",
            "allow `sync`",
        ),
        ("objective", "speed", "unknown value", "iteration_time"),
        ("cost.wsync.model_gb", "many", "must be a number", "write a number"),
        ("cost.gen.c", {"1": {}}, "no pool is called `c`", "known: a"),
        ("cluster.pools.0.nodes", 0, "must be at least 1", "at least 1"),
        ("cost", ..., "`cost` is missing", "add `cost`"),
    ],
)
def test_bad_problems_are_refused_with_line_and_hint(
    problem: Path, dotted: str, value: object, said: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _changed(problem, dotted, value)
    code = main(["rl", "solve", str(problem)])
    shown = capsys.readouterr().err
    if not said:  # the other pool may still do: what matters is that nothing breaks
        assert code in (0, 2)
        assert "internal error" not in shown
        return
    assert code == 2
    assert said in shown
    assert hint in shown


def test_pools_without_a_common_network_are_named(problem: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(problem.read_text())
    other = next(pool["name"] for pool in data["cluster"]["pools"] if pool["name"] != "a")
    apart = copy.deepcopy(data)
    apart["cost"]["gen"] = {other: data["cost"]["gen"][other]}
    apart["cost"]["train"] = {"a": data["cost"]["train"]["a"]}
    apart["cost"]["wsync"]["cross_gbs"] = 0
    apart["allowed"] = {"placement": ["disaggregated"], "sync": ["sync"]}
    problem.write_text(json.dumps(apart))
    assert main(["rl", "solve", str(problem)]) == 2
    shown = capsys.readouterr().err
    assert "have no network in common" in shown
    assert "cross_gbs" in shown


def test_a_model_that_trains_nowhere_is_named_with_the_memory_it_lacks(
    problem: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = json.loads(problem.read_text())
    for train in data["cost"]["train"].values():
        train["static_gb"] = 4000.0
    problem.write_text(json.dumps(data))
    assert main(["rl", "solve", str(problem)]) == 2
    shown = capsys.readouterr().err
    assert "fits in the memory of no pool" in shown
    assert "GB in addition" in shown

"""Plans over training time as a decision of the kind: exact, from what runs now, derived again by check."""

import copy
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from broken_rl_plans import failed

from planner.api import solve
from planner.check import check_plan
from planner.errors import Infeasible, PlannerError
from planner.kinds.rl.decision import RlDecision
from planner.kinds.rl.formulate import formulate
from planner.kinds.rl.horizon import horizon_problem
from planner.kinds.rl.setting import read_setting
from planner.load.problems import load_problem
from planner.plan.schema import Envelope
from planner.plan.store import plan_json
from planner.rl.plan import GenerationGroup, RlPlan
from planner.rl.search.horizon import evaluate_horizon
from planner.rl.search.trainings import training_choices

CURVE = {"pool": "a", "tp": 1, "step_s": 0.02, "sequence_s": 4e-4, "token_s": 1e-7, "prefill_tokens_per_s": 2e4}
PROBLEM: dict[str, Any] = {
    "kind": "rl",
    "models": {"policy": {"name": "Qwen/Qwen2.5-7B"}},
    "cluster": {"pools": [{"gpu": "h800_sxm", "name": "a", "nodes": 1, "usd_per_gpu_hour": 2.0}]},
    "workloads": [{"input_tokens": 200, "output_tokens": {"mean": 800, "cv": 1.0}}],
    "objective": {"minimize": "iteration_time"},
    "options": {
        "algorithm": "grpo",
        "prompts": 8,
        "samples_per_prompt": 4,
        "minibatches": 2,
        "max_staleness": 1,
        "arrangements": ["disaggregated"],
        "synchrony": ["asynchronous"],
        "costs": {
            "generation": [{**CURVE, "max_running": 8, "kv_tokens": 40_000}],
            "training": [
                {"pool": "a", "tp": 1, "train_tokens_per_s": 900, "forward_tokens_per_s": 3000, "micro_tokens": 4096}
            ],
        },
        "horizon": {
            "periods": [{"iterations": 20, "output_scale": scale} for scale in (0.2, 1.0, 3.0)],
            "generation_change": "30s",
            "training_change": "60s",
            "circuit_change": "5s",
        },
    },
}


def written(folder: Path, *, current: str | None = None, objective: str = "iteration_time", **horizon: Any) -> Path:  # noqa: ANN401
    document = copy.deepcopy(PROBLEM)
    document["objective"] = {"minimize": objective}
    document["options"]["horizon"] |= horizon
    if current is not None:
        document["current"] = current
    path = folder / "problem.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def solved(path: Path) -> tuple[Envelope, RlDecision]:
    envelope = solve(path)
    assert not failed(envelope.model_dump(mode="json", by_alias=True))
    return envelope, RlDecision.model_validate(envelope.decision)


@pytest.mark.parametrize("objective", ["iteration_time", "cost"])
def test_no_sequence_of_plans_is_better(tmp_path: Path, objective: str) -> None:
    path = written(tmp_path, objective=objective)
    envelope, _ = solved(path)
    setting = read_setting(load_problem(path))
    searched = formulate(setting).problem
    plans = [
        RlPlan(mode, (GenerationGroup(option, replicas),), choice)
        for option in searched.generation
        for replicas in range(1, 8)
        for choice in training_choices(searched)
        for mode in searched.modes
        if replicas * option.gpus + choice.gpus <= 8
    ]
    sizes = (8,) if objective == "iteration_time" else (2, 3)
    some = [plan for plan in plans if plan.groups[0].gpus + plan.training.gpus in sizes]  # type: ignore[union-attr]
    horizon = horizon_problem(setting.resolved.problem, setting.options, searched, None)
    best = min(evaluate_horizon(horizon, sequence).total for sequence in itertools.product(some, repeat=3))
    assert envelope.certificate.objective.value is not None
    assert envelope.certificate.objective.value <= best * (1 + 1e-9)
    assert (
        envelope.certificate.objective.metric == {"iteration_time": "horizon_time_s", "cost": "horizon_usd"}[objective]
    )


def test_changes_are_made_where_they_are_free_and_none_where_they_are_dear(tmp_path: Path) -> None:
    free, decision = solved(written(tmp_path, generation_change="0s", training_change="0s", circuit_change="0s"))
    assert any(step.changed for step in decision.horizon)
    dear, steady = solved(written(tmp_path, generation_change="100h", training_change="100h"))
    assert not any(step.changed for step in steady.horizon)
    rows: Any = {row["plan"]: row["objective"] for row in free.certificate.next_best}  # type: ignore[index,call-overload,union-attr]
    assert dear.certificate.objective.value == pytest.approx(rows["one plan for all periods"])
    assert free.certificate.objective.value == pytest.approx(rows["the best plan of every period"])


def test_a_horizon_starts_from_the_plan_that_runs_now(tmp_path: Path) -> None:
    long = [{"iterations": 20, "output_scale": 3.0}]
    short = [{"iterations": 1, "output_scale": 0.2}]
    running, before = solved(written(tmp_path, periods=long))
    (tmp_path / "plan.json").write_text(plan_json(running), encoding="utf-8")
    alone, _ = solved(written(tmp_path, periods=short))
    kept, stays = solved(written(tmp_path, periods=short, current="plan.json"))
    assert stays.horizon[0].generation == before.horizon[0].generation
    assert not stays.horizon[0].changed
    assert stays.running is not None
    assert (kept.certificate.objective.value or 0) > (alone.certificate.objective.value or 0)
    many = [{"iterations": 20_000, "output_scale": 0.2}]
    _, leaves = solved(written(tmp_path, periods=many, current="plan.json"))
    assert leaves.horizon[0].changed


@pytest.mark.parametrize("part", ["iteration_s", "changed", "generation", "iterations"])
def test_a_period_changed_by_hand_fails_its_check(tmp_path: Path, part: str) -> None:
    forged = solve(written(tmp_path)).model_dump(mode="json", by_alias=True)
    step = forged["decision"]["horizon"][1]
    step[part] = {"iteration_s": 1.0, "changed": ["circuit"], "generation": "1 x tp1 a", "iterations": 3}[part]
    assert failed(forged) >= {"certificate.objective"}


def test_sequences_weighed_and_next_best_are_held_against_a_search_made_again(tmp_path: Path) -> None:
    envelope, decision = solved(written(tmp_path))
    findings = list(check_plan(envelope, decision, base=tmp_path, proof=True))
    assert all(item.ok and not item.skipped for item in findings)
    forged = envelope.model_dump(mode="json", by_alias=True)
    forged["certificate"]["candidates"] += 1
    forged["certificate"]["next_best"][1]["objective"] *= 1.01
    assert failed(forged) >= {"certificate.candidates", "certificate.next_best"}


def test_a_bound_above_the_best_sequence_is_found(tmp_path: Path) -> None:
    forged = solve(written(tmp_path)).model_dump(mode="json", by_alias=True)
    forged["certificate"]["bound"] *= 1.0 + 1e-7
    forged["certificate"]["gap"] = 1e-7
    assert "certificate.proof" in failed(forged)


def test_a_current_plan_needs_a_horizon_and_is_one_of_rl(tmp_path: Path) -> None:
    document = copy.deepcopy(PROBLEM)
    del document["options"]["horizon"]
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(document | {"current": "plan.json"}), encoding="utf-8")
    with pytest.raises(PlannerError) as caught:
        solve(path)
    assert "add `horizon:`" in caught.value.hint
    other = Path(__file__).parents[2] / "plans" / "serve.json"
    with pytest.raises(PlannerError, match="of kind `serve`"):
        solve(written(tmp_path, current=str(other)))


def test_a_period_that_no_plan_can_do_is_named(tmp_path: Path) -> None:
    document = json.loads(written(tmp_path).read_text(encoding="utf-8"))
    document["options"]["max_iteration"] = "40s"
    path = tmp_path / "capped.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(Infeasible) as caught:
        solve(path)
    assert "in period" in caught.value.conflict[0]["limit"]

"""Predicted seconds of executed shards are those that chose the plan: one wrong rate moves both."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import planner
from planner.costs.training.config import RecomputeConfig
from planner.costs.training.step import stage_passes
from planner.execute.judge.judging import judge
from planner.execute.judge.predict import BACKWARD, executed_operators, predict
from planner.execute.judge.pricing import plan_pricer, plan_trained_shards
from planner.execute.judge.trained import predict_training
from planner.execute.judge.verdict import Measured
from planner.execute.shards.cases import DECODE, TRAIN, role_steps
from planner.execute.shards.spec import role_spec
from planner.plan.reader import read_plan
from planner.plan.records import PlanDocument

SHIPPED = Path(__file__).parents[2] / "planner/costs/rates/calibration.yaml"
TRAINING = {
    "kind": "train",
    "models": {"policy": {"name": "meta-llama/Llama-3.1-8B"}},
    "cluster": {"pools": [{"gpu": "h100_sxm", "nodes": 2}]},
    "objective": {"minimize": "step_time"},
    "options": {
        "global_batch": 64,
        "sequence_tokens": 4096,
        "search": {"tp": [2], "pp": [2], "cp": [1], "schedule": ["1f1b"], "recompute": ["selective", "full"]},
    },
}
SERVING = {
    "kind": "serve",
    "models": {"m": {"name": "meta-llama/Llama-3.1-8B-Instruct"}},
    "cluster": {"pools": [{"gpu": "h100_sxm", "gpus": 1}]},
    "workloads": [{"input_tokens": 1000, "output_tokens": 100, "load": {"concurrency": 8}}],
    "objective": {"maximize": "tokens_per_s_per_gpu"},
    "options": {"modes": ["colocated"]},
}


def _calibrated(folder: Path, section: str, name: str, factor: float) -> str:
    """A calibration file like the shipped one but for one parameter."""
    from planner.documents.read import load_document

    shipped: dict[str, Any] = load_document(str(SHIPPED)).data
    values = dict(shipped[section]["rates"] if section == "training" else shipped[section])
    values[name] *= factor
    path = folder / f"{name}-{factor}.json"
    path.write_text(json.dumps({**shipped, section: {"rates": values} if section == "training" else values}))
    return str(path)


def _solved(folder: Path, problem: dict[str, Any], calibration: str) -> PlanDocument:
    plan = planner.solve(problem | {"costs": {"calibration": calibration}}, level="static")
    path = folder / f"{plan.kind}.json"
    plan.save(path)
    return read_plan(path)


def _objective(plan: PlanDocument) -> float:
    return float(json.loads(Path(plan.source).read_text())["certificate"]["objective"]["value"])


def _trained_s(plan: PlanDocument, calibration: str) -> float:
    role = role_spec(plan, plan.roles[0].name)
    shards = plan_trained_shards(plan, plan.roles[0], role.arch, calibration=calibration)
    case = next(case for case in role_steps(plan, plan.roles[0]) if case.kind == TRAIN)
    return sum(shards.seconds(role.rank(0), case).values())


def test_one_wrong_rate_of_training_moves_the_plan_and_its_shards(tmp_path: Path) -> None:
    steps, shards = [], []
    for factor in (1.0, 0.5):
        calibration = _calibrated(tmp_path, "training", "flop.gemm.hopper", factor)
        plan = _solved(tmp_path, TRAINING, calibration)
        steps.append(_objective(plan))
        shards.append(_trained_s(plan, calibration))
    assert steps[1] > 1.4 * steps[0]
    assert shards[1] > 1.4 * shards[0]


def test_one_wrong_rate_of_serving_moves_the_plan_and_its_shards(tmp_path: Path) -> None:
    rates, shards = [], []
    for factor in (1.0, 0.5):
        calibration = _calibrated(tmp_path, "roofline", "gemm_bandwidth", factor)
        plan = _solved(tmp_path, SERVING, calibration)
        rates.append(_objective(plan))
        role = role_spec(plan, plan.roles[0].name)
        pricer = plan_pricer(plan, plan.roles[0], role.arch, calibration=calibration)
        case = next(case for case in role_steps(plan, plan.roles[0]) if case.kind == DECODE)
        times = predict(executed_operators(role, role.rank(0), case), pricer)
        shards.append(sum(time.seconds for time in times.values()))
    assert rates[1] < 0.8 * rates[0]
    assert shards[1] > 1.4 * shards[0]


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> PlanDocument:
    return _solved(tmp_path_factory.mktemp("plan"), TRAINING, "default")


@pytest.mark.parametrize("rank", [0, 8])
def test_the_operators_of_a_shard_take_what_its_stage_takes_in_the_plan(plan: PlanDocument, rank: int) -> None:
    role = role_spec(plan, plan.roles[0].name)
    known = plan, plan.roles[0], role.arch
    shards, pricer, spec = plan_trained_shards(*known), plan_pricer(*known), role.rank(rank)
    case = next(case for case in role_steps(plan, plan.roles[0]) if case.kind == TRAIN)
    again = spec.stages[0].recompute
    granularity: Literal["full", "selective"] = "full" if again.num_layers else "selective"
    recompute = RecomputeConfig(granularity, again.modules, again.num_layers)
    counts = tuple(stage.num_layers for stage in role.stages)
    config = replace(shards.config(spec, case, ()), recompute=recompute, layers_of_stage=counts)
    stage_s = float(stage_passes(config, shards.rates)[spec.coords["pp"]].sum())
    operators = executed_operators(role, spec, case)
    times = predict_training(operators, pricer, shards.seconds(spec, case))
    assert sum(time.seconds for time in times.values()) == pytest.approx(stage_s)
    forward, backward = (times[name].seconds for name in ("ffn_up", "ffn_up" + BACKWARD))
    assert 1.5 < backward / forward < 2.5
    executed = tuple({name.removesuffix(BACKWARD) for name in times if "all_reduce" not in name})
    measured = Measured("train", rank, TRAIN, stage_s, stage_s, stage_s, {}, executed)
    verdict = judge(role, spec, case, measured, pricer, trained=shards)
    assert verdict.predicted_step_s == pytest.approx(stage_s)
    assert 0.5 < verdict.executed_share < 1.0
    assert np.isfinite(verdict.predicted_s)

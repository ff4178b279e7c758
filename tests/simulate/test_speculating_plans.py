"""Plans with drafts of their own, simulated: step tables, and steady state against the simulator."""

import json
from pathlib import Path

import numpy as np
import pytest

from planner.cli.main import main
from planner.costs.operators.work import Shards, Work
from planner.costs.rates.calibration import load_calibration
from planner.costs.rates.pricer import Pricer, make_pricer
from planner.costs.rates.step import step_time
from planner.costs.serving.speculation import Drafter, drafter_of, drafting_step
from planner.estimate import estimate_jsonl
from planner.hardware.cluster import Pool
from planner.hardware.library import find_node
from planner.load.problems import load_plan
from planner.models.library import find_model
from planner.plan.schema import Decision, Envelope
from planner.problem.speculation import SpeculationSpec
from planner.simulate.fleet.operation_spec import OperationSpec
from planner.simulate.fleet.step_grid import StepGrid, step_grid
from planner.simulate.plans.setting import Policies
from planner.simulate.plans.simulation import Traffic, simulate_plan

PROBLEM = """
schema: planner.problem/1
kind: serve
models: {qwen: {name: Qwen/Qwen3-8B}, draft: {name: Qwen/Qwen3-0.6B}}
cluster: {pools: [{gpu: h100, gpus: 4}]}
workloads:
  - {model: qwen, input_tokens: 1000, output_tokens: 200, load: {concurrency: 24}, slo: {ttft: 4s, tpot: 8ms}}
options:
  modes: [MODE]
  tp: [1]
  max_batch: [8]
  chunk_tokens: [4096]
  speculation: {method: model, model: draft, acceptance: 75%, draft_tokens: [3]}
"""
KNOWN, V3 = load_calibration("default"), find_model("deepseek-ai/DeepSeek-V3")
AGREEMENT = 0.06  # of TPOT and of the rate, steady state against 1500 requests simulated


@pytest.fixture(scope="module", params=["colocated", "disaggregated"])
def plan(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Envelope, Decision]:
    folder = tmp_path_factory.mktemp("speculating")
    (folder / "problem.yaml").write_text(PROBLEM.replace("MODE", request.param))
    assert main(["solve", str(folder / "problem.yaml"), "-o", str(folder / "plan.json")]) == 0
    return load_plan(Path(folder / "plan.json"))


def stated(envelope: Envelope, metric: str) -> float:
    return next(
        prediction.value
        for prediction in envelope.predictions
        if prediction.metric == metric and prediction.statistic == "mean"
    )


def test_steady_state_with_drafts_is_that_of_a_run(plan: tuple[Envelope, Decision]) -> None:
    simulated = simulate_plan(*plan, Traffic(first=1500, warm_up=300), Policies())
    assert float(np.mean(simulated.result.tpot_s[300:])) == pytest.approx(stated(plan[0], "tpot_s"), rel=AGREEMENT)
    run = simulated.result
    ends_s = np.sort(run.finished_s)[300:-300]
    assert len(ends_s) / np.ptp(ends_s) == pytest.approx(stated(plan[0], "requests_per_s"), rel=AGREEMENT)
    right = float(run.accepted_tokens.sum()) / float(run.requests.output_tokens.sum() - len(run.requests))
    assert right == pytest.approx(1.0 - 1.0 / (1 + 0.75 + 0.75**2 + 0.75**3), rel=0.03)


def test_the_operation_takes_the_place_of_the_drafts_of_the_plan(plan: tuple[Envelope, Decision]) -> None:
    text = {"speculation": {"draft_tokens": 3, "acceptance": 0.0, "draft_step_s": 0.0}}
    wrong = simulate_plan(*plan, Traffic(first=200), Policies(operation=OperationSpec.model_validate(text)))
    assert int(wrong.result.accepted_tokens.sum()) == 0
    assert int(simulate_plan(*plan, Traffic(first=200), Policies()).result.accepted_tokens.sum()) > 0


def grid(drafter: Drafter | None, draft_tokens: int = 0) -> tuple[StepGrid, Pricer, Shards]:
    pool, engine, shards = Pool("h200", find_node("h200"), 2), KNOWN.engine("vllm", None), Shards.of(8.0, 1, 1, 8.0, 1)
    pricer = make_pricer(pool, V3, engine="vllm", version=None, calibration=KNOWN, store=None)
    table = step_grid(
        V3, pricer, shards, engine, most_sequences=16, longest_tokens=4096, chunk_tokens=2048,
        draft_tokens=draft_tokens, drafter=drafter,
    )  # fmt: skip
    return table, pricer, shards


def test_a_table_without_drafts_is_the_plain_one_but_for_prompts_through_the_drafter() -> None:
    heads = drafter_of(SpeculationSpec(method="mtp", acceptance=0.7), V3, {}, "")
    plain, none, seen = (grid(drafter)[0] for drafter in (None, Drafter("stated", 0.7, step_s=1.0), heads))
    assert np.array_equal(plain.mixed_s, none.mixed_s)
    assert np.array_equal(plain.decode_s, seen.decode_s)
    assert np.all(seen.mixed_s[:, :, 1:] > plain.mixed_s[:, :, 1:])


def test_a_table_with_drafts_has_the_steps_that_plans_are_costed_with() -> None:
    heads = drafter_of(SpeculationSpec(method="mtp", acceptance=0.7), V3, {}, "")
    assert heads is not None
    table, pricer, shards = grid(heads, 2)
    work = Work.decode(16.0, float(table.contexts[-1])).with_drafts(2.0)
    step_s = step_time(V3, pricer, shards, work, KNOWN.engine("vllm", None)).seconds
    assert table.decode_s[16, -1] == step_s + drafting_step(heads, pricer, shards, work).device_s


def test_an_estimate_of_the_same_deployment_has_the_times_of_the_run(plan: tuple[Envelope, Decision]) -> None:
    envelope, decision = plan
    parts = {
        role.function: {
            "replicas": role.replicas,
            "parallelism": {"tp": role.parallelism.tp},
            **{name: role.limits[name] for name in ("max_batch", "chunk_tokens") if name in role.limits},
        }
        for role in decision.roles
    }
    parts.get("prefill", {}).pop("max_batch", None)
    given = parts.get("colocated") or {"mode": "disaggregated", **parts}
    problem = {name: value for name, value in envelope.inputs.items() if name != "kind"}
    (line,) = estimate_jsonl([json.dumps({"id": "a", **problem, "decision": {**given, "draft_tokens": 3}})])
    estimated = json.loads(line)["prediction"]
    simulated = simulate_plan(*plan, Traffic(first=1500, warm_up=300), Policies())
    assert estimated["tpot_s"] == pytest.approx(float(np.mean(simulated.result.tpot_s[300:])), rel=2 * AGREEMENT)

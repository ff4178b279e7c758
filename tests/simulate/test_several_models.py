"""Plans of several models and workloads, simulated on their own load."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from planner.cli.main import main
from planner.errors import PlannerError
from planner.load.problems import load_plan
from planner.plan.schema import Decision, Envelope
from planner.simulate.plans.setting import Policies
from planner.simulate.plans.simulation import PlanSimulation, Traffic, findings, simulate_plan
from planner.simulate.requests.stream import Requests, together

PROBLEM = """
schema: planner.problem/1
kind: serve
models:
  small: {name: meta-llama/Llama-3.1-8B-Instruct}
  large: {name: Qwen/Qwen3-32B}
cluster: {pools: [{gpu: h100, gpus: 8}]}
workloads:
  - {name: chat, model: small, input_tokens: 500, output_tokens: 50, load: {rate: 20/s}, slo: {ttft: {p95: 1s}}}
  - name: code
    model: large
    input_tokens: 2000
    output_tokens: 100
    load: {rate: 1/s}
    slo: {ttft: {p95: 3s}, attainment: 95%}
  - name: batch
    model: large
    input_tokens: 1000
    output_tokens: 100
    load: {concurrency: 4}
    slo: {latency: {mean: 30s}}
objective: {minimize: gpus}
options: {modes: [colocated], max_batch: [16, 64], tp: [1, 2]}
"""


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    (folder / "problem.yaml").write_text(PROBLEM)
    assert main(["solve", str(folder / "problem.yaml"), "-o", str(folder / "plan.json")]) == 0
    return folder / "plan.json"


@pytest.fixture(scope="module")
def loaded(plan: Path) -> tuple[Envelope, Decision]:
    return load_plan(plan)


@pytest.fixture(scope="module")
def simulated(loaded: tuple[Envelope, Decision]) -> PlanSimulation:
    return simulate_plan(*loaded, Traffic(first=3000), Policies())


def homes(simulated: PlanSimulation, workload: int) -> set[str]:
    """The roles that served a workload."""
    assert simulated.result.requests.workload is not None
    own = simulated.result.requests.workload == workload
    return {simulated.planned.role_of_instance[home] for home in simulated.result.home[own]}


def test_every_workload_is_served_by_roles_of_its_model(
    simulated: PlanSimulation, loaded: tuple[Envelope, Decision]
) -> None:
    models = {role.name: role.model for role in loaded[1].roles}
    assert simulated.result.drained
    for workload, model in enumerate(("small", "large", "large")):
        assert {models[role] for role in homes(simulated, workload)} == {model}


def test_limits_are_judged_workload_by_workload(simulated: PlanSimulation) -> None:
    named = {(finding.rule, finding.where) for finding in findings(simulated)}
    assert {
        ("simulate.ttft", "chat: p95"),
        ("simulate.ttft", "code: p95"),
        ("simulate.latency", "batch: mean"),
    } <= named
    assert ("simulate.attainment", "code") in named
    assert all(finding.ok for finding in findings(simulated))
    workloads = simulated.summary["workloads"]
    assert isinstance(workloads, dict)
    assert sum(row["requests"] for row in workloads.values()) == len(simulated.result.requests)


def test_routers_that_look_for_caches_keep_models_apart(loaded: tuple[Envelope, Decision]) -> None:
    simulated = simulate_plan(*loaded, Traffic(first=400), Policies(routing="cache-aware"))
    assert homes(simulated, 0).isdisjoint(homes(simulated, 1))


def test_the_verbs_simulate_them_and_refuse_a_trace(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(plan), "--level", "simulate"]) == 0
    assert main(["simulate", str(plan), "--first", "500"]) == 0
    shown = capsys.readouterr().out
    assert all(f"\n  {name} " in shown for name in ("chat", "code", "batch"))
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n0,10,10\n")
    assert main(["simulate", str(plan), "--trace", str(trace)]) == 2
    assert "several models" in capsys.readouterr().err


def test_a_trace_cannot_be_shared_out_over_models(loaded: tuple[Envelope, Decision], tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n0,10,10\n")
    with pytest.raises(PlannerError, match="does not say which each request is for"):
        simulate_plan(*loaded, Traffic(str(trace)), Policies())


def test_streams_and_sessions_together_keep_their_order_and_their_successors() -> None:
    stream = Requests.open_stream([1.0, 2.0, 3.0], [1, 2, 3], 1)
    sessions = Requests.closed_loop([10, 11, 12, 13], 1, clients=2)
    after = np.array([2, 3, -1, -1])
    joined = together([stream, replace(sessions, clients=0, successor=after)])
    assert joined.num_open == 5
    assert joined.arrival_s[:5].tolist() == [0.0, 0.0, 1.0, 2.0, 3.0]
    assert joined.input_tokens.tolist() == [10, 11, 1, 2, 3, 12, 13]
    assert joined.successor.tolist() == [5, 6, -1, -1, -1, -1, -1]
    assert joined.workload is not None
    assert joined.workload.tolist() == [1, 1, 0, 0, 0, 1, 1]

"""Plans simulated: fleets from plans, summaries, files, and the verbs."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from planner.cli.main import main
from planner.costs.rates.calibration import load_calibration
from planner.errors import PlannerError
from planner.load.problems import load_plan, load_problem
from planner.plan.store import checks_path
from planner.problem.slo import SloSpec
from planner.simulate.fleet.instances import Fleet, Instance
from planner.simulate.fleet.step_grid import StepGrid
from planner.simulate.plans.fleet import fleet_of_plan
from planner.simulate.plans.setting import Policies
from planner.simulate.plans.simulation import Traffic, findings, judge_plan, simulate_plan
from planner.simulate.requests.arrivals import arrivals
from planner.simulate.requests.stream import Requests
from planner.simulate.run.engine import simulate
from planner.simulate.run.summary import saturated, summarise

PROBLEM = """
schema: planner.problem/1
kind: serve
models: {llama: {name: meta-llama/Llama-3.1-8B-Instruct}}
cluster: {pools: [{gpu: h100, gpus: 4}]}
workloads:
  - input_tokens: 500
    output_tokens: {mean: 100, cv: 0.5}
    load: {rate: LOAD}
    slo: {ttft: {p95: 500ms}, tpot: {mean: 25ms}, attainment: 90%}
objective: {minimize: gpus}
options: {modes: [MODE], max_batch: [16, 64], tp: [1]}
"""


@pytest.fixture(scope="module", params=["colocated", "disaggregated"])
def plan(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plans")
    problem = folder / "problem.yaml"
    problem.write_text(PROBLEM.replace("LOAD", "8/s").replace("MODE", request.param))
    assert main(["solve", str(problem), "-o", str(folder / "plan.json")]) == 0
    return folder / "plan.json"


def trace_file(folder: Path, count: int = 300, rate_per_s: float = 8.0) -> Path:
    path = folder / "trace.csv"
    times = arrivals("poisson", rate_per_s, count, seed=4)
    rows = [f"{time!r},{400 + 10 * (r % 20)},{50 + r % 90}" for r, time in enumerate(times.tolist())]
    path.write_text("\n".join(["arrival_s,input_tokens,output_tokens", *rows]) + "\n")
    return path


def test_a_fleet_has_an_engine_for_every_rank_of_every_replica(plan: Path) -> None:
    envelope, decision = load_plan(plan)
    requests = Requests.open_stream([0.0], [500], [100])
    planned = fleet_of_plan(envelope, decision, requests, Policies())
    overheads = load_calibration().engine("vllm", None)
    assert planned.fleet.handover_s == (overheads.handover_s if len(decision.roles) > 1 else 0.0)
    assert overheads.handover_s > 0.0
    wanted = sum(role.replicas * role.parallelism.dp for role in decision.roles)
    assert len(planned.fleet.instances) == wanted
    assert {role.name for role in decision.roles} == set(planned.role_of_instance)
    for instance, name in zip(planned.fleet.instances, planned.role_of_instance, strict=True):
        role = next(role for role in decision.roles if role.name == name)
        assert instance.role == role.function
        assert instance.stages == role.parallelism.pp
        assert instance.most_sequences == int(role.limits["max_batch"])
        assert instance.kv_tokens > 500


def test_a_plan_at_half_its_rate_keeps_its_limits(plan: Path) -> None:
    envelope, decision = load_plan(plan)
    trace = trace_file(plan.parent, rate_per_s=4.0)
    simulated = simulate_plan(envelope, decision, Traffic(str(trace)), Policies())
    assert all(finding.ok for finding in findings(simulated))
    assert simulated.result.drained


def test_a_plan_far_beyond_its_rate_is_called_saturated(plan: Path) -> None:
    envelope, decision = load_plan(plan)
    trace = trace_file(plan.parent, count=3000)
    simulated = simulate_plan(envelope, decision, Traffic(str(trace), rate_per_s=4000.0), Policies())
    assert simulated.summary["saturated"]
    assert not next(finding for finding in findings(simulated) if finding.rule == "simulate.saturation").ok


def test_requests_and_viewer_files_hold_what_was_simulated(plan: Path, tmp_path: Path) -> None:
    trace = trace_file(tmp_path)
    files = [str(tmp_path / name) for name in ("requests.csv", "requests.parquet", "chrome.json", "summary.json")]
    assert main(["simulate", str(plan), "--trace", str(trace), "--requests", files[0], "--perfetto", files[2]]) == 0
    arguments = ["--requests", files[1], "--json", "-o", files[3]]
    assert main(["simulate", str(plan), "--trace", str(trace), *arguments]) == 0
    with open(files[0], newline="") as file:
        rows = list(csv.DictReader(file))
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(files[1])
    assert len(rows) == table.num_rows == 300
    assert [float(row["ttft_s"]) for row in rows] == table["ttft_s"].to_pylist()
    summary = json.loads(Path(files[3]).read_text())
    assert summary["schema"] == "planner.simulation/1"
    mean = float(np.mean([float(row["ttft_s"]) for row in rows]))
    assert summary["times"]["ttft_s"]["mean"]["value"] == pytest.approx(mean)
    spans = [event for event in json.loads(Path(files[2]).read_text())["traceEvents"] if event["ph"] == "X"]
    decoded = sum(event["dur"] for event in spans if event["name"] == "decode") / 1e6
    assert decoded == pytest.approx(sum(float(row["finished_s"]) - float(row["first_token_s"]) for row in rows))


def test_a_run_that_is_cut_exits_1_and_says_so(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = trace_file(tmp_path)
    assert main(["simulate", str(plan), "--trace", str(trace), "--limit", "10s"]) == 1
    assert "did not drain" in capsys.readouterr().out


def test_a_run_whose_every_request_is_rejected_exits_1(plan: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n0,900000,5\n1,900000,5\n")
    assert main(["simulate", str(plan), "--trace", str(trace)]) == 1


@pytest.mark.parametrize("flag", ["--requests", "--perfetto", "--output"])
def test_no_output_of_a_run_replaces_what_it_reads(
    plan: Path, tmp_path: Path, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = trace_file(tmp_path, count=5)
    before = trace.read_bytes()
    (tmp_path / "link.csv").symlink_to(trace)
    assert main(["simulate", str(plan), "--trace", str(trace), flag, str(tmp_path / "link.csv")]) == 2
    assert "is the file of --trace too" in capsys.readouterr().err
    assert trace.read_bytes() == before
    assert (
        main(["simulate", str(plan), "--requests", str(tmp_path / "a.csv"), "--perfetto", str(tmp_path / "a.csv")]) == 2
    )
    assert "is the file of --requests too" in capsys.readouterr().err


def test_level_simulate_prints_simulated_times_beside_those_stated(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["check", str(plan), "--level", "simulate", "--trace", str(trace_file(tmp_path, rate_per_s=4.0)), "--json"])
    rows = json.loads(capsys.readouterr().out)["result"]["beside_stated"]
    envelope, _ = load_plan(plan)
    stated = {(row.metric, row.statistic): row.value for row in envelope.predictions}
    assert {(row["time"], row["statistic"]) for row in rows} >= {("ttft", "p95"), ("tpot", "mean"), ("latency", "mean")}
    assert all(row["stated_s"] == stated[f"{row['time']}_s", row["statistic"]] for row in rows)
    assert all(row["simulated_s"] > 0 for row in rows)
    main(["check", str(plan), "--level", "simulate", "--trace", str(trace_file(tmp_path, rate_per_s=4.0))])
    shown = capsys.readouterr().out.splitlines()
    ttft = next(row for row in rows if row["time"] == "ttft")
    place = next(place for place, line in enumerate(shown) if " ttft " in line)
    line = "\n".join(shown[place : place + 2])  # narrow screens fold a row
    assert f"{1e3 * ttft['stated_s']:.3g} ms" in line
    assert f"{1e3 * ttft['simulated_s']:.3g} ms" in line
    assert "<= 500 ms" in line


def test_level_simulate_is_kept_beside_the_plan(plan: Path, tmp_path: Path) -> None:
    copy = tmp_path / "plan.json"
    copy.write_bytes(plan.read_bytes())
    code = main(["check", str(copy), "--level", "simulate", "--trace", str(trace_file(tmp_path, rate_per_s=4.0))])
    kept = json.loads(Path(checks_path(str(copy))).read_text())["levels"]["simulate"]
    assert (code == 0) == kept["ok"]
    assert {"simulate.drains", "simulate.ttft", "simulate.attainment"} <= {row["rule"] for row in kept["findings"]}


def test_the_own_workload_is_simulated_at_the_rate_of_the_problem(plan: Path) -> None:
    envelope, decision = load_plan(plan)
    simulated = simulate_plan(envelope, decision, Traffic(first=2000), Policies(), seed=1)
    requests = simulated.result.requests
    assert len(requests) / float(requests.arrival_s[-1]) == pytest.approx(8.0, rel=0.1)
    assert float(requests.output_tokens.mean()) == pytest.approx(100, rel=0.05)
    assert set(requests.input_tokens.tolist()) == {500}


def test_what_cannot_be_simulated_is_refused(plan: Path, tmp_path: Path) -> None:
    envelope, decision = load_plan(plan)
    trace = str(trace_file(tmp_path, count=3))
    with pytest.raises(PlannerError, match="unknown routing"):
        simulate_plan(envelope, decision, Traffic(trace), Policies(routing="best"))
    with pytest.raises(PlannerError, match="--rate: is for a trace"):
        simulate_plan(envelope, decision, Traffic(rate_per_s=4.0), Policies())
    with pytest.raises(PlannerError, match="unknown policy"):
        simulate_plan(envelope, decision, Traffic(trace), Policies(engine_policy="static"))
    with pytest.raises(PlannerError, match="serves no requests"):
        simulate_plan(envelope.model_copy(update={"kind": "train"}), decision, Traffic(trace), Policies())
    without_limits: dict[str, object] = {
        **envelope.inputs,
        "workloads": [{"name": "a", "input_tokens": 10, "output_tokens": 5}],
    }
    placed = envelope.model_copy(update={"kind": "place", "inputs": without_limits})
    with pytest.raises(PlannerError, match="serves no requests"):
        judge_plan(placed, decision, Policies())


def test_summaries_agree_with_the_run() -> None:
    grid = StepGrid.affine(4e-3, sequence_s=1e-4, token_s=1e-5)
    times = arrivals("poisson", 20.0, 4000, seed=2)
    rng = np.random.default_rng(0)
    requests = Requests.open_stream(times, rng.integers(10, 400, 4000), rng.integers(1, 60, 4000))
    result = simulate(Fleet((Instance(grid, 100_000),)), requests)
    slo = SloSpec.model_validate({"ttft": {"p90": "30ms"}, "tpot": {"p90": "10ms"}})
    summary = summarise(result, (slo,))
    good = (result.ttft_s <= 0.03) & (np.isnan(result.tpot_s) | (result.tpot_s <= 0.01))
    assert summary["attainment"] == pytest.approx(float(good.mean()))
    spent = summary["mean_s"]
    assert isinstance(spent, dict)
    assert sum(spent.values()) == pytest.approx(float(result.e2e_s.mean()))
    assert not saturated(result)


@pytest.mark.parametrize(("decoding", "waits"), [(1, True), (4, False)])
def test_waits_for_a_place_where_a_request_is_decoded_are_saturation_too(decoding: int, waits: bool) -> None:
    """Prefill keeps up with twice what one decode instance takes; with four of them nobody waits."""
    grid = StepGrid.affine(5e-3, token_s=1e-5, most_sequences=16)
    prefill = Instance(grid, 100_000, role="prefill", token_budget=2048, most_sequences=16)
    decode = Instance(grid, 6_000, role="decode", most_sequences=16, link_tokens_per_s=1e7)
    count, each_s = 6000, 50 * 5e-3 / 16
    rate_per_s = 2.0 / each_s
    requests = Requests.open_stream(
        arrivals("poisson", rate_per_s, count, seed=4), np.full(count, 60), np.full(count, 51)
    )
    result = simulate(Fleet((prefill, *[decode] * decoding)), requests)
    assert saturated(result) is waits


@pytest.mark.parametrize(("load", "piles_up"), [(0.7, False), (1.2, True)])
@pytest.mark.parametrize("queueing", ["fcfs", "feedback"])
def test_answers_that_pile_up_are_saturation_though_short_ones_overtake(
    queueing: str, load: float, piles_up: bool
) -> None:
    """A feedback queue lets nine of ten requests begin at once at any load, and the rest, most of the work, wait."""
    count, places, step_s = 6000, 8, 5e-3
    rng = np.random.default_rng(3)
    outputs = np.where(rng.random(count) < 0.1, 400, 10)
    rate_per_s = load * places / step_s / float(outputs.mean())
    requests = Requests.open_stream(arrivals("poisson", rate_per_s, count, seed=5), np.full(count, 20), outputs)
    engine = Instance(StepGrid.affine(step_s, token_s=1e-7, most_sequences=places), 100_000, most_sequences=places)
    result = simulate(Fleet((engine,), queueing=queueing), requests)
    if queueing == "feedback":
        assert np.quantile(result.ttft_s, 0.85) < 0.1
    assert saturated(result) is piles_up


def test_intervals_hold_the_mean_of_longer_runs() -> None:
    grid = StepGrid.affine(1.0, most_sequences=1)
    covered = 0
    for seed in range(20):
        times = arrivals("poisson", 0.5, 20_000, seed=seed)
        result = simulate(
            Fleet((Instance(grid, 64, most_sequences=1),)),
            Requests.open_stream(times, np.ones(20_000), np.ones(20_000)),
        )
        summary = summarise(result, (SloSpec(),))["times"]
        assert isinstance(summary, dict)
        low, high = summary["ttft_s"]["mean"]["interval"]
        covered += low <= 1.5 <= high  # M/D/1 at half load: service 1 s, wait 0.5 s
    assert covered >= 16


def test_examples_problem_loads() -> None:
    assert load_problem(Path(__file__).parents[2] / "examples" / "serve-trace-azure.yaml").problem.kind == "serve"

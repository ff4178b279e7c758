"""The limit of a plan on prompt and answer together: answers end there, and prompts that leave no room are rejected."""

import json
from pathlib import Path

import numpy as np
import pytest
from serve_problems import SMALL, small
from static_level import solve

from planner.cli.main import main
from planner.documents.files import write_text_atomic
from planner.kinds.serve.options import ServeDecision
from planner.plan.schema import Envelope
from planner.problem.slo import SloSpec
from planner.simulate.fleet.instances import Fleet, Instance, RequestPath
from planner.simulate.fleet.step_grid import StepGrid
from planner.simulate.goodput.rate_bound import RateBound
from planner.simulate.plans.fleet import fleet_of_plan
from planner.simulate.plans.setting import Policies
from planner.simulate.plans.simulation import Traffic, findings, simulate_plan
from planner.simulate.requests.stream import Requests
from planner.simulate.run.attainment import Draws, kept, required
from planner.simulate.run.engine import simulate

GRID = StepGrid.affine(0.01, token_s=1e-4, most_sequences=8)
MOST = 2300  # of the plan of `SMALL`: its prompts and its answers


def engine(**rules: object) -> Instance:
    return Instance(GRID, 10_000, token_budget=512, most_sequences=8, **rules)  # type: ignore[arg-type]  # any rule


def test_an_answer_ends_where_prompt_and_answer_reach_the_limit() -> None:
    requests = Requests.open_stream([0.0, 5.0, 10.0], [60, 99, 10], [200, 5, 20])
    result = simulate(Fleet((engine(most_context=100),)), requests)
    assert result.complete.all()
    assert result.requests.output_tokens.tolist() == [40, 1, 20]
    assert result.cut.tolist() == [True, True, False]
    shorter = Requests.open_stream([0.0, 5.0, 10.0], [60, 99, 10], [40, 1, 20])
    assert simulate(Fleet((engine(),)), shorter).finished_s.tolist() == result.finished_s.tolist()


def test_a_prompt_that_leaves_no_room_is_rejected_and_a_client_goes_on() -> None:
    requests = Requests.closed_loop([100, 120, 50], [5, 5, 5], clients=1)
    result = simulate(Fleet((engine(most_context=100),)), requests)
    assert result.rejected.tolist() == [True, True, False]
    assert result.complete.tolist() == [False, False, True]
    assert result.requests.output_tokens.tolist() == [5, 5, 5]
    assert result.drained


def test_requests_that_fit_are_simulated_as_without_a_limit() -> None:
    rng = np.random.default_rng(0)
    requests = Requests.open_stream(np.cumsum(rng.exponential(0.05, 300)), rng.integers(1, 60, 300), 40)
    free, limited = (simulate(Fleet((engine(most_context=most),)), requests) for most in (2**31, 100))
    assert free.finished_s.tolist() == limited.finished_s.tolist()
    assert not limited.cut.any()


def test_the_stricter_end_of_a_path_ends_an_answer() -> None:
    ends = (engine(role="prefill", most_context=100), engine(role="decode", most_context=80, model=1))
    fleet = Fleet(ends, paths=((RequestPath(0, 1, 1.0),),))
    result = simulate(fleet, Requests.open_stream([0.0, 9.0], [70, 85], [50, 3]))
    assert result.requests.output_tokens.tolist() == [10, 3]
    assert result.rejected.tolist() == [False, True]


def test_requests_beyond_the_context_exclude_no_rate() -> None:
    slo = SloSpec.model_validate({"ttft": {"p99_s": 0.1}})
    outputs = np.where(np.arange(50) % 4 == 0, 20, 5)
    draws = Draws.renewal(np.full(50, 90), outputs)
    free, limited, none = (
        RateBound(draws, required(slo)).most_rate(Fleet((engine(most_context=most),))) for most in (200, 100, 50)
    )
    fewer = Draws(draws.arrival_s, np.where(outputs > 10, 1, 90), np.where(outputs > 10, 1, outputs))
    assert free < limited < none == np.inf
    assert limited >= RateBound(fewer, required(slo)).most_rate(Fleet((engine(),)))


def test_runs_with_refused_requests_keep_limits_that_enough_others_keep() -> None:
    slo = SloSpec.model_validate({"ttft": {"p90_s": 1.0}})
    for refused, right in ((5, True), (6, False)):
        inputs = np.where(np.arange(50) < refused, 150, 50)
        result = simulate(Fleet((engine(most_context=100),)), Requests.open_stream(np.arange(50.0), inputs, 5))
        assert int(result.rejected.sum()) == refused
        assert kept(result, slo) is right


def test_a_prefill_engine_ends_no_answers() -> None:
    ends = (engine(role="prefill", most_context=80), engine(role="decode", most_context=200, model=1))
    fleet = Fleet(ends, paths=((RequestPath(0, 1, 1.0),),))
    result = simulate(fleet, Requests.open_stream([0.0, 9.0, 18.0], [70, 80, 79], [50, 3, 150]))
    assert result.requests.output_tokens.tolist() == [50, 3, 121]
    assert result.rejected.tolist() == [False, True, False]


@pytest.fixture(scope="module")
def plan() -> Envelope:
    return solve(small({"options.modes": ["colocated"], "engine.max_context_tokens": MOST}))


def trace(folder: Path, rows: list[tuple[float, int, int]]) -> str:
    path = folder / "trace.csv"
    write_text_atomic(path, "arrival_s,input_tokens,output_tokens\n" + "".join(f"{a},{i},{o}\n" for a, i, o in rows))
    return str(path)


def test_engines_of_a_plan_have_the_limit_that_its_launchers_pass_on(plan: Envelope) -> None:
    decision = ServeDecision.model_validate(plan.decision)
    requests = Requests.open_stream([0.0], [10], [10])
    fleet = fleet_of_plan(plan, decision, requests, Policies()).fleet
    assert {instance.most_context for instance in fleet.instances} == {MOST}
    assert {role.limits["max_context_tokens"] for role in decision.roles} == {MOST}


def test_long_requests_of_a_trace_do_not_change_what_others_cost(plan: Envelope, tmp_path: Path) -> None:
    decision = ServeDecision.model_validate(plan.decision)
    short = [(float(second), 500, 50) for second in range(20)] + [(20.0, 2000, 300)]
    far = [*short, (400.0, 100_000, 10), (500.0, 1000, 90_000)]
    runs = []
    for rows in (short, far):
        (folder := tmp_path / str(len(rows))).mkdir()
        runs.append(simulate_plan(plan, decision, Traffic(trace(folder, rows)), Policies()).result)
    assert runs[1].finished_s[:21].tolist() == runs[0].finished_s.tolist()
    assert runs[1].rejected.tolist() == [False] * 21 + [True, False]
    assert runs[1].requests.output_tokens[-1] == MOST - 1000


def test_check_fails_a_plan_for_answers_that_it_cuts(plan: Envelope, tmp_path: Path) -> None:
    decision = ServeDecision.model_validate(plan.decision)
    rules = {
        rows[0][2]: {
            finding.rule: finding.ok
            for finding in findings(simulate_plan(plan, decision, Traffic(trace(tmp_path, rows)), Policies()))
        }
        for rows in ([(0.0, 100, 50)], [(0.0, 100, 5000)])
    }
    assert rules[50]["simulate.context"]
    assert not rules[5000]["simulate.context"]
    assert rules[5000]["simulate.fits"]


def test_the_verb_says_how_many_are_cut_and_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    problem, plan = tmp_path / "problem.json", tmp_path / "plan.json"
    problem.write_text(json.dumps(SMALL | {"engine": {"max_context_tokens": MOST}}))
    assert main(["solve", str(problem), "-o", str(plan)]) == 0
    path = trace(tmp_path, [(0.0, 100, 5000), (1.0, 3000, 5), (2.0, 100, 10)])
    out = tmp_path / "requests.csv"
    assert main(["simulate", str(plan), "--trace", path, "--requests", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "cut: 1 answers end at the context limit" in shown
    assert "rejected: 1 requests are longer than an instance allows" in shown
    assert "cut" in out.read_text().splitlines()[0].split(",")

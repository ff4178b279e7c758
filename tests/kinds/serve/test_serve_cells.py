"""Serving plans of several workloads and models judged by simulation."""

import json
from pathlib import Path
from typing import Any

import pytest
from serve_problems import SMALL, broken_rules, objective_of, small, value_of
from static_level import solve

from planner.cli.main import main
from planner.errors import Infeasible, PlannerError
from planner.kinds.serve.options import ServeDecision
from planner.kinds.serve.plan.decode import envelope
from planner.kinds.serve.simulated.load_streams import LoadStreams
from planner.kinds.serve.simulated.placements import Deployment, with_placement
from planner.kinds.serve.steady.search import prepare, search
from planner.plan.schema import Envelope
from planner.progress import Limits
from planner.simulate.plans.fleet import fleet_of_plan
from planner.simulate.plans.setting import Policies
from planner.simulate.plans.simulation import Traffic, findings, simulate_plan

CODE = {"name": "code", "input_tokens": 4000, "output_tokens": 100, "slo": {"ttft": "1s", "tpot": "30ms"}}
LARGE = {"name": "meta-llama/Llama-3.2-3B-Instruct"}
SIMULATED: dict[str, Any] = {
    "options.judged_by": "simulation",
    "options.simulated_requests": 5000,
    "workloads.0.share": 3.0,
    "workloads.0.input_tokens": {"mean": 1000, "cv": 0.5},
    "workloads.1": CODE,
}
MODELS = {**SIMULATED, "models.other": LARGE, "workloads.0.model": "llama", "workloads.1": {**CODE, "model": "other"}}


@pytest.fixture(scope="module")
def plan() -> Envelope:
    return solve(small(SIMULATED))


@pytest.fixture(scope="module")
def models() -> Envelope:
    return solve(small(MODELS))


def decision_of(plan: Envelope) -> ServeDecision:
    return ServeDecision.model_validate(plan.decision)


@pytest.mark.parametrize("name", ["plan", "models"])
def test_every_workload_keeps_its_limits_when_the_plan_is_simulated_whole(
    name: str, request: pytest.FixtureRequest
) -> None:
    plan = request.getfixturevalue(name)
    checked = list(findings(simulate_plan(plan, decision_of(plan), Traffic(first=4000), Policies())))
    assert {finding.where.partition(":")[0] for finding in checked if finding.rule == "simulate.ttft"} == {
        "chat",
        "code",
    }
    assert not [finding for finding in checked if not finding.ok]
    assert not broken_rules(plan)


@pytest.mark.parametrize("name", ["plan", "models"])
def test_a_plan_carries_its_interval_and_a_bound_above_it(name: str, request: pytest.FixtureRequest) -> None:
    certificate = request.getfixturevalue(name).certificate
    value, proof = certificate.objective.value, certificate.proof
    assert 0.0 < value <= proof["interval_95"][0] * (1 + 1e-9)
    assert value <= certificate.bound
    assert certificate.gap == pytest.approx((certificate.bound - value) / value)
    assert 0 < proof["cells_simulated"] <= proof["cells"]
    assert proof["steady_state"]["simulated"] is not None


def test_the_mix_of_the_rates_is_that_of_the_shares(plan: Envelope) -> None:
    chat, code = (value_of(plan, "requests_per_s", name) for name in ("chat", "code"))
    assert chat == pytest.approx(3.0 * code)
    assert objective_of(plan) == pytest.approx((chat + code) / 4)


def test_models_share_no_instance(models: Envelope) -> None:
    decision = decision_of(models)
    model_of = {role.name: role.model for role in decision.roles}
    wanted = {"chat": "llama", "code": "other"}
    assert set(model_of.values()) == {"llama", "other"}
    assert all(model_of[route.to] == wanted[route.workload] for route in decision.routing)


def test_an_incumbent_that_loses_is_no_better_in_simulation(plan: Envelope, models: Envelope) -> None:
    for solved in (plan, models):
        incumbent, proof = solved.certificate.proof["steady_state"], solved.certificate.proof
        assert isinstance(incumbent, dict)
        assert incumbent["loses"] == (incumbent["plan"] != proof["chosen"])
        assert incumbent["simulated"] <= solved.certificate.bound  # type: ignore[operator]  # both numbers


def test_cells_with_engines_of_one_type_are_roles_of_their_own_and_simulate_as_they_were_searched(
    plan: Envelope,
) -> None:
    setting = prepare(small(SIMULATED))
    outcome = search(setting, setting.targets, Limits())
    streams = LoadStreams.of(setting, outcome)
    candidates = streams.builder.candidates
    index = next(index for index, candidate in enumerate(candidates) if candidate.function == "colocated")
    cells = (Deployment(((index, 1),), 1.0, (0,)), Deployment(((index, 2),), 1.0, (1,)))
    mix = envelope(setting, with_placement(outcome, cells, (6.0, 2.0)), plan.certificate, (), ())
    decision = decision_of(mix)
    assert [(role.name, role.replicas) for role in decision.roles] == [("colocated-1", 2), ("colocated-2", 1)]
    assert {(route.workload, route.to) for route in decision.routing} == {
        ("chat", "colocated-2"),
        ("code", "colocated-1"),
    }
    load = streams.mixture.requests(8.0)
    simulated = fleet_of_plan(mix, decision, load, Policies()).fleet
    apart = [streams.mixture.of(cell.workloads).simulate(streams.builder.fleet(cell), 8.0)[0] for cell in cells]
    for fleet in (simulated, streams.builder.whole(cells)):
        runs = streams.mixture.simulate(fleet, 8.0)
        assert [run.e2e_s.tolist() for run in runs] == [run.e2e_s.tolist() for run in apart]


def test_the_fewest_gpus_serve_the_rates_of_all_workloads() -> None:
    rates = {"workloads.0.load": {"rate": "12/s"}, "workloads.1": {**CODE, "load": {"rate": "3/s"}}}
    plan = solve(small({**SIMULATED, **rates, "objective": {"minimize": "gpus"}}))
    assert [value_of(plan, "requests_per_s", name) for name in ("chat", "code")] == pytest.approx([12.0, 3.0])
    assert plan.certificate.bound is not None
    assert 1 <= plan.certificate.bound <= objective_of(plan) < 4
    assert not broken_rules(plan)


def test_a_rate_caps_the_mix_a_price_the_gpus_and_a_workload_may_have_no_limits() -> None:
    bare = {name: value for name, value in CODE.items() if name != "slo"}
    edits = {
        "workloads.1": {**bare, "load": {"rate": "1/s"}},
        "cluster.pools.0.price": "2USD/h",
        "limits": {"price": "4USD/h"},
        "options.simulated_requests": 2000,
    }
    plan = solve(small({**SIMULATED, **edits}))
    assert 0.0 < value_of(plan, "requests_per_s", "code") <= 1.0
    assert value_of(plan, "requests_per_s", "chat") <= 3.0 * (1 + 1e-9)
    assert value_of(plan, "gpus") <= 2


def test_limits_that_steady_state_thinks_possible_and_no_run_keeps_are_named() -> None:
    edits = {"workloads.0.slo": {"ttft": {"mean": "40ms", "p99": "40ms"}}, "workloads.0.input_tokens": 2000}
    with pytest.raises(Infeasible) as caught:
        solve(small({**SIMULATED, **edits}))
    assert any("chat: p99 ttft" in row["limit"] for row in caught.value.conflict)


@pytest.mark.parametrize("second", [[], [CODE | {"slo": {"latency": {"p90": "12s"}}}]])
def test_runs_too_short_to_break_the_limits_are_refused_with_a_longer_one(second: list[dict[str, Any]]) -> None:
    edits = {"workloads.0.slo": {"latency": {"p90": "12s"}}, "options.simulated_requests": 150}
    edits |= {"options.judged_by": "simulation"} | {
        f"workloads.{row + 1}": workload for row, workload in enumerate(second)
    }
    with pytest.raises(PlannerError, match="come all at once keep their limits") as caught:
        solve(small(edits))
    assert "`simulated_requests: 1500`" in str(caught.value)


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ({"workloads.1": {**CODE, "load": {"concurrency": 8}}}, "not clients that wait for answers as in `code`"),
        ({"cluster.pools.1": {"gpu": "h200", "gpus": 2, "name": "other"}}, "one pool, found 2"),
        ({"workloads.0.slo": {}, "workloads.1": {**CODE, "slo": {}}}, "without limits"),
        (
            {f"workloads.{row}": {**CODE, "name": f"code-{row}"} for row in range(1, 10)},
            "at most 8 workloads, found 10",
        ),
    ],
)
def test_what_simulation_cannot_judge_is_refused(edits: dict[str, Any], message: str) -> None:
    with pytest.raises(PlannerError, match=message):
        solve(small({**SIMULATED, **edits}))


def test_the_verbs_solve_and_check_a_problem_of_two_workloads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PLANNER_LEVEL")
    problem, plan = tmp_path / "problem.json", tmp_path / "plan.json"
    data = {**SMALL, "workloads": [{**SMALL["workloads"][0], "output_tokens": 100}, CODE]}
    data["options"] = {**SMALL["options"], "judged_by": "simulation"}
    problem.write_text(json.dumps(data))
    assert main(["solve", str(problem), "-o", str(plan), "--verbose"]) == 0
    shown = capsys.readouterr().out
    assert "no simulation of a placement of the space" in shown
    assert main(["check", str(plan)]) == 0
    assert main(["check", str(plan), "--level", "simulate"]) == 0
    data["workloads"][1] = {**CODE, "load": {"concurrency": 4}}
    problem.write_text(json.dumps(data))
    assert main(["solve", str(problem)]) == 2
    assert "or state a rate" in capsys.readouterr().err

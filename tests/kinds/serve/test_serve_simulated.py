"""Serving plans judged by simulation: true claims, bounds above them, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
from serve_problems import SMALL, objective_of, small, value_of
from static_level import solve

from planner.check import check_plan
from planner.cli.main import main
from planner.errors import PlannerError
from planner.kinds.serve.options import ServeDecision
from planner.kinds.serve.plan.decode import envelope
from planner.kinds.serve.simulated.load_streams import LoadStreams
from planner.kinds.serve.simulated.placements import Deployment, FleetBuilder, with_placement
from planner.kinds.serve.steady.search import prepare, search
from planner.plan.schema import Envelope
from planner.progress import Limits
from planner.simulate.plans.fleet import fleet_of_plan
from planner.simulate.plans.setting import Policies
from planner.simulate.plans.simulation import Traffic, findings, simulate_plan
from planner.simulate.requests.stream import Requests
from planner.simulate.run.engine import simulate

SIMULATED = {"options.judged_by": "simulation", "options.simulated_requests": 2000}


@pytest.fixture(scope="module")
def plan() -> Envelope:
    return solve(small(SIMULATED))


def test_a_plan_keeps_its_limits_when_it_is_simulated_at_the_rate_that_it_claims(plan: Envelope) -> None:
    simulated = simulate_plan(plan, ServeDecision.model_validate(plan.decision), Traffic(first=4000), Policies())
    assert not [finding for finding in findings(simulated) if not finding.ok]


def test_a_plan_carries_its_interval_and_a_bound_above_it(plan: Envelope) -> None:
    certificate = plan.certificate
    low, high = certificate.proof["interval_95"]  # type: ignore[misc, str-unpack]  # two numbers
    assert certificate.objective.value is not None
    assert certificate.bound is not None
    assert certificate.objective.value <= float(low) * (1 + 1e-9)  # type: ignore[arg-type]
    assert float(low) <= float(high)  # type: ignore[arg-type]
    assert certificate.objective.value <= certificate.bound
    assert certificate.proof["method"] == "optimistic_simulation"


def test_the_static_check_passes(plan: Envelope) -> None:
    assert not [finding for finding in check_plan(plan, ServeDecision.model_validate(plan.decision)) if not finding.ok]


def test_a_mix_is_searched_with_the_fleet_that_its_plan_is_simulated_with(plan: Envelope) -> None:
    setting = prepare(small({**SIMULATED, "cluster.pools.0.gpus": 8}))
    outcome = search(setting, setting.targets, Limits())
    candidates = outcome.formulated.candidates
    builder = FleetBuilder.of(setting, candidates, {"llama": Requests.open_stream([0.0], [2000], [400])})
    both, first, last = (
        next(
            row
            for row, candidate in enumerate(candidates)
            if candidate.function == function and candidate.shape.devices == 1
        )
        for function in ("colocated", "prefill", "decode")
    )
    parts = Deployment(((both, 1), (first, 2), (last, 1)), 1.0)
    mix = envelope(setting, with_placement(outcome, (parts,), (2.0,)), plan.certificate, (), ())
    rng = np.random.default_rng(0)
    load = Requests.open_stream(np.arange(400) / 2.0, rng.integers(100, 2000, 400), rng.integers(1, 400, 400))
    simulated = fleet_of_plan(mix, ServeDecision.model_validate(mix.decision), load, Policies()).fleet
    searched, checked = (simulate(fleet, load) for fleet in (builder.fleet(parts), simulated))
    assert len({path.first for path in simulated.paths[0]}) == 2
    for of_plan, of_search in ((checked.ttft_s, searched.ttft_s), (checked.e2e_s, searched.e2e_s)):
        np.testing.assert_allclose(of_plan, of_search, rtol=1e-12)  # sums of step times differ in their last bits


def test_what_steady_state_prefers_is_simulated_too(plan: Envelope) -> None:
    incumbent = plan.certificate.proof["steady_state"]
    assert isinstance(incumbent, dict)
    assert incumbent["simulated"] is not None
    alone = search(prepare(small(SIMULATED)), prepare(small(SIMULATED)).targets, Limits())
    assert incumbent["claims"] == pytest.approx(alone.objective, rel=0.05)


def test_a_rate_that_is_asked_for_is_not_exceeded() -> None:
    plan = solve(small({**SIMULATED, "workloads.0.load": {"rate": "4/s"}}))
    assert value_of(plan, "requests_per_s", "chat") <= 4.0


def test_the_fewest_gpus_keep_the_limits_at_the_rate_and_fewer_are_excluded_or_dominated() -> None:
    edits = {**SIMULATED, "workloads.0.load": {"rate": "20/s"}, "objective": {"minimize": "gpus"}}
    plan = solve(small(edits))
    assert plan.certificate.bound is not None
    assert plan.certificate.bound <= objective_of(plan)
    simulated = simulate_plan(plan, ServeDecision.model_validate(plan.decision), Traffic(first=4000), Policies())
    assert not [finding for finding in findings(simulated) if finding.rule == "simulate.saturation" and not finding.ok]


def test_requests_of_a_trace_keep_their_prompt_and_answer_together(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("input_tokens,output_tokens\n" + "".join(f"{100 * n},{n}\n" for n in range(1, 21)))
    lengths = {side: {"trace": str(trace)} for side in ("input_tokens", "output_tokens")}
    setting = prepare(small({**SIMULATED, **{f"workloads.0.{side}": spec for side, spec in lengths.items()}}))
    (draws,) = LoadStreams.of(setting, search(setting, setting.targets, Limits())).mixture.draws
    assert set(draws.output_tokens.tolist()) == set(range(1, 21))
    assert (draws.input_tokens == 100 * draws.output_tokens).all()
    plan = solve(setting.resolved)
    assert 0.0 < objective_of(plan) <= (plan.certificate.bound or 0.0)


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ({"workloads.0.load": {"concurrency": 8}}, "not clients that wait"),
        ({"objective": {"pareto": ["tokens_per_s_per_gpu", "tokens_per_s_per_user"]}}, "not a trade-off"),
        ({"workloads.0.slo": {}}, "without limits"),
    ],
)
def test_what_simulation_cannot_judge_is_refused(edits: dict[str, object], message: str) -> None:
    with pytest.raises(PlannerError, match=message):
        solve(small({**SIMULATED, **edits}))


def test_simulation_is_an_option_and_no_level(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PLANNER_LEVEL")
    problem = tmp_path / "problem.json"
    options = SMALL["options"] | {"judged_by": "simulation", "simulated_requests": 500}
    problem.write_text(json.dumps(SMALL | {"options": options}))
    assert main(["solve", str(problem), "-o", str(tmp_path / "plan.json")]) == 0
    written = json.loads((tmp_path / "plan.json").read_text())
    assert written["certificate"]["proof"]["method"] == "optimistic_simulation"
    assert main(["check", str(tmp_path / "plan.json")]) == 0
    assert main(["solve", str(problem), "--level", "simulate"]) == 2
    assert "levels are static, verified" in capsys.readouterr().err

"""Benchmark problems of RL through the front door: solved, checked, written back, and refused with a reason."""

import json
from pathlib import Path
from typing import Any

import pytest
from agentic_problems import random_agents
from rl_problems import FEATURES, Feature, random_problem

from planner.api import solve
from planner.check import check_plan
from planner.cli.main import main
from planner.documents.read import given_document, load_document
from planner.emit.registry import emit
from planner.errors import Infeasible, PlannerError
from planner.interchange.rl_agentic import (
    agentic_plan_document,
    agentic_solution,
    read_agentic,
    rl_agentic_problem,
)
from planner.interchange.rl_horizon import horizon_of_envelope, read_horizon, rl_horizon_problem
from planner.interchange.rl_plan import plan_document, plan_of_envelope, solution_of
from planner.interchange.rl_problem import read_problem, rl_problem
from planner.kinds.rl.decision import RlDecision
from planner.kinds.rl.solve import GUESSED
from planner.plan.schema import Envelope
from planner.rl.search.agentic_search import solve_agentic
from planner.rl.search.horizon import plan_horizon
from planner.rl.search.search import solve as search
from planner.verify import REFUSED, judge

EXAMPLES = Path(__file__).parents[2] / "examples" / "rl-problems"
DRIFT = EXAMPLES / "horizon-drift.json"


def _findings(envelope: Envelope) -> list[str]:
    findings = check_plan(envelope, RlDecision.model_validate(envelope.decision), proof=True)
    return [f"{finding.rule}: {finding.what}" for finding in findings if not finding.ok]


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("seed", [3, 5])
def test_a_plan_is_that_of_the_search_and_passes_its_check_with_proof(feature: Feature, seed: int) -> None:
    document = given_document(random_problem(seed, feature), "problem")
    try:
        given = read_problem(document)
    except PlannerError:
        pytest.skip("no plan can fix this problem")
    direct, envelope = search(given), solve(rl_problem(document))
    back = solution_of(envelope, given)
    assert back.plan == direct.plan
    assert (back.objective, back.bound, back.seen, back.pruned) == (
        direct.objective, direct.bound, direct.seen, direct.pruned
    )  # fmt: skip
    assert not _findings(envelope)
    files = emit(envelope, RlDecision.model_validate(envelope.decision), "rl-plan")
    assert json.loads(files["plan.json"]) == plan_document(plan_of_envelope(envelope, given))


def test_plans_over_training_time_are_those_of_the_dynamic_program() -> None:
    document = load_document(DRIFT)
    given = read_horizon(document)
    direct, envelope = plan_horizon(given), solve(DRIFT)
    back = horizon_of_envelope(envelope, given)
    assert back.plans == direct.plans
    assert (back.total, back.bound, back.changes, back.states) == (
        direct.total, direct.bound, direct.changes, direct.states
    )  # fmt: skip
    assert back.fixed_total == pytest.approx(direct.fixed_total)
    assert back.greedy_total == pytest.approx(direct.greedy_total)
    assert not _findings(envelope)


def test_what_runs_before_a_horizon_is_charged_and_checked() -> None:
    data = json.loads(DRIFT.read_text())
    free = solve(DRIFT)
    last = plan_document(horizon_of_envelope(free, read_horizon(load_document(DRIFT))).plans[-1])
    document = given_document({**data, "current": last}, "problem")
    envelope = solve(rl_horizon_problem(document))
    assert envelope.certificate.objective.value == pytest.approx(plan_horizon(read_horizon(document)).total)
    assert not _findings(envelope)


def test_the_command_solves_checks_and_writes_a_problem_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, plan = tmp_path / "problem.json", tmp_path / "plan.json"
    path.write_text(json.dumps(random_problem(3, "async")))
    assert main(["solve", str(path), "-o", str(plan)]) == 0
    assert main(["check", str(plan), "--level", "proof"]) == 0
    assert main(["explain", str(plan)]) == 0
    assert main(["rl", "timeline", str(plan)]) == 0
    assert main(["emit", str(plan), "--target", "rl-plan", "-o", str(tmp_path / "out")]) == 0
    assert main(["rl", "solve", str(path), "-o", str(tmp_path / "old.json")]) == 0
    assert (tmp_path / "out" / "plan.json").read_text() == (tmp_path / "old.json").read_text()
    capsys.readouterr()
    assert main(["emit", str(plan), "--target", "verl", "-o", str(tmp_path / "verl")]) == 2
    assert "names no model to launch" in capsys.readouterr().err


def test_a_plan_that_is_altered_fails_its_check() -> None:
    envelope = solve(rl_problem(given_document(random_problem(3, "sync"), "problem")))
    decision: Any = json.loads(json.dumps(envelope.decision))
    decision["weight_sync"]["duration_s"] += 1.0
    assert _findings(envelope.model_copy(update={"decision": decision}))


def test_degrees_without_a_curve_are_refused() -> None:
    problem = rl_problem(given_document(random_problem(3, "sync"), "problem"))
    for name, said in (("training_tp", "no curve of training"), ("generation_tp", "no curve of generation")):
        with pytest.raises(PlannerError, match=said):
            solve({**problem, "options": {**problem["options"], name: [64]}})


@pytest.mark.parametrize("seed", [0, 1, 4, 5])
def test_a_plan_of_agents_is_that_of_the_search_and_passes_its_check_with_proof(seed: int) -> None:
    document = given_document(random_agents(seed, samples=2), "problem")
    given = read_agentic(document)
    direct, envelope = solve_agentic(given), solve(rl_agentic_problem(document))
    back = agentic_solution(envelope, given)
    assert (back.plan, back.objective, back.bound) == (direct.plan, direct.objective, direct.bound)
    assert (back.seen, back.pruned, back.unproven) == (direct.seen, direct.pruned, 0)
    assert not _findings(envelope)
    assert back.plan is not None
    files = emit(envelope, RlDecision.model_validate(envelope.decision), "rl-plan")
    assert json.loads(files["plan.json"]) == agentic_plan_document(back.plan)
    assert all(line.verdict != REFUSED for line in judge(json.loads(envelope.model_dump_json())))


@pytest.fixture(scope="module")
def heuristic() -> Envelope:
    """A plan of more trajectories than can be assigned exactly."""
    return solve(rl_agentic_problem(given_document(random_agents(2, samples=14, dispatch=("assigned",)), "problem")))


def test_a_plan_with_a_heuristic_assignment_says_so_and_its_bound_holds(heuristic: Envelope) -> None:
    assert heuristic.certificate.status == "feasible"
    assert GUESSED in heuristic.assumptions
    assert not _findings(heuristic)


@pytest.mark.parametrize(
    ("altered", "rule"),
    [
        (lambda decision: decision["agents"].update(moved=3), "rl.agents"),
        (lambda decision: decision["agents"].update(assignment=[]), "rl.agents"),
        (lambda decision: decision["agents"]["assignment"][0].__setitem__(0, 99), "rl.agents"),
        (lambda decision: decision["agents"]["assignment"][0].reverse(), "certificate.objective"),
        (lambda decision: decision.update(move_threshold=1.5), "move threshold 1.5 is not allowed"),
        (lambda decision: decision.pop("agents"), "rl.agents"),
    ],
)
def test_an_altered_plan_of_agents_fails_its_check(heuristic: Envelope, altered: Any, rule: str) -> None:  # noqa: ANN401
    decision: Any = json.loads(json.dumps(heuristic.decision))
    altered(decision)
    findings = _findings(heuristic.model_copy(update={"decision": decision}))
    assert any(rule in finding for finding in findings)


def test_the_command_takes_agents_from_problem_to_emission(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, plan = tmp_path / "problem.json", tmp_path / "plan.json"
    path.write_text(json.dumps(random_agents(0, samples=2)))
    assert main(["solve", str(path), "-o", str(plan)]) == 0
    for verb in (["check"], ["explain"], ["rl", "timeline"], ["rl", "evaluate", str(path)]):
        assert main([*verb, str(plan)]) == 0
    assert main(["emit", str(plan), "--target", "rl-plan", "-o", str(tmp_path / "out")]) == 0
    assert main(["rl", "solve", str(path), "-o", str(tmp_path / "old.json")]) == 0
    assert (tmp_path / "out" / "plan.json").read_text() == (tmp_path / "old.json").read_text()
    assert main(["report", str(plan), "-o", str(tmp_path / "report.html")]) == 0
    assert "A rollout, sample by sample" in (tmp_path / "report.html").read_text()
    capsys.readouterr()
    assert main(["check", str(plan), "--level", "simulate"]) == 2
    assert "engines are not simulated with trajectories one by one" in capsys.readouterr().err


def test_agents_that_no_plan_serves_in_time_are_told_the_shortest_iteration() -> None:
    problem = {**random_agents(0, samples=2), "max_iteration_s": 1e-3}
    with pytest.raises(Infeasible) as answer:
        solve(rl_agentic_problem(given_document(problem, "problem")))
    assert answer.value.proved
    assert answer.value.conflict[0]["nearest"].endswith(" s")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_staleness": 1}, "`max_staleness` does not go with `agents`"),
        ({"tail_fractions": [0.1]}, "`tail_fractions` does not go with `agents`"),
        ({"synchrony": ["stream"]}, "agents are not planned with `stream`"),
        ({"synchrony": ["asynchronous"], "arrangements": ["colocated"]}, "colocated roles take turns"),
        ({"prompts": 1}, "1 samples are trained on, and records have"),
    ],
)
def test_options_that_agents_do_not_read_are_refused(options: dict[str, Any], said: str) -> None:
    problem = rl_agentic_problem(given_document(random_agents(0, samples=2), "problem"))
    with pytest.raises(PlannerError, match=said):
        solve({**problem, "options": {**problem["options"], **options}})


def test_agents_with_figures_for_other_turns_are_refused() -> None:
    problem = rl_agentic_problem(given_document(random_agents(0, samples=2), "problem"))
    problem["options"]["agents"]["batches"][0]["trajectories"][0]["wait_s"] = [1.0] * 9
    with pytest.raises(PlannerError, match="9 figures, "):
        solve(problem)


def test_the_configuration_of_a_problem_with_many_lengths_is_printed_short(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PLANNER_LEVEL", raising=False)
    data = random_problem(3, "sync")
    data["workload"]["batches"][0] = {"output_len": [7] * 3000}
    data["workload"].pop("samples", None)
    data["workload"]["prompt_len"] = 3
    data["workload"]["batches"] = data["workload"]["batches"][:1]
    path = tmp_path / "long.json"
    path.write_text(json.dumps(data))
    assert main(["solve", str(path), "--show-config"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) < 400


BARE = {
    "kind": "rl",
    "cluster": {"pools": [{"gpu": "unspecified", "name": "a", "nodes": 1, "gpus_per_node": 4}]},
    "objective": {"minimize": "iteration_time"},
    "options": {"algorithm": "any", "prompts": 2},
}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "no model is named, and lengths are not recorded"),
        ({"records": [{"input_tokens": [1], "output_tokens": [2, 3]}]}, "what it takes to generate is not measured"),
        ({"records": [{"input_tokens": [1, 2, 3], "output_tokens": [2, 3]}]}, "3 figures for 2 samples"),
    ],
)
def test_problems_without_a_model_say_what_they_lack(options: dict[str, Any], said: str) -> None:
    with pytest.raises(PlannerError, match=said):
        solve({**BARE, "options": {**BARE["options"], **options}})  # type: ignore[dict-item]  # the mapping above

"""Plans are priced again from inputs and choices: claims that do not follow fail, also where they fit together."""

import copy
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from checked_plans import Plan, by_verdict, findings_of, problem, solved
from static_level import solve

from planner.check.refresh import refreshed
from planner.check.restated import differing
from planner.cli.main import main
from planner.documents.files import digest
from planner.errors import PlannerError
from planner.kinds.registry import find_kind
from planner.plan.schema import Envelope
from planner.plan.store import plan_json
from planner.problem.recorded import AtHand
from planner.verify import checksum

PLANS = Path(__file__).parent.parent / "plans"
KINDS = ("serve", "train", "rl", "experts")
ZEROS = "sha256:" + 64 * "0"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plans")


@pytest.fixture(scope="module")
def plans(folder: Path) -> dict[str, Plan]:
    return {kind: solved(kind, folder) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_a_solved_plan_is_what_its_inputs_and_choices_give(kind: str, plans: dict[str, Plan], folder: Path) -> None:
    findings = findings_of(plans[kind], folder)
    assert {finding.verdict for finding in findings} == {"ok", "not judged"}
    assert {finding.rule for finding in findings if finding.skipped} <= {"certificate.search", "restated.certificate"}
    proven = findings_of(plans[kind], folder, proof=True)
    assert {finding.verdict for finding in proven} == {"ok"}


def _role(plan: Plan, **memory: float) -> None:
    plan["decision"]["roles"][0]["memory"].update(memory)


def _ttft(plan: Plan, value: float) -> None:
    next(p for p in plan["predictions"] if p["metric"] == "ttft_s")["value"] = value


def _measured(plan: Plan) -> None:
    plan["evidence"]["basis"] = {"measured": 1.0}


FAULTS: dict[str, tuple[Callable[[Plan], object], str]] = {
    "a TTFT of 1 us": (lambda p: _ttft(p, 1e-6), "restated.predictions"),
    "weights of 1 MB": (lambda p: _role(p, weights_bytes=1e6), "restated.decision"),
    "no KV cache": (lambda p: _role(p, kv_cache_bytes=0.0), "restated.decision"),
    "a context limit of 10": (
        lambda p: p["decision"]["roles"][0]["limits"].update(max_context_tokens=10),
        "restated.decision",
    ),
    "all of it measured": (_measured, "restated.evidence"),
    "another version": (lambda p: p["software"].update(planner="9.9.9"), "restated.provenance"),
    "another calibration": (lambda p: p["digests"].update(calibration=ZEROS), "restated.digests"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_serving_plan_that_claims_something_else_fails_and_is_not_launched(
    name: str, plans: dict[str, Plan], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit, rule = FAULTS[name]
    plan = copy.deepcopy(plans["serve"])
    edit(plan)
    assert by_verdict(plan, None, "failed") == {rule}
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan))
    assert main(["emit", str(path), "--target", "vllm"]) == 2
    refused = capsys.readouterr()
    assert not refused.out
    assert rule in refused.err
    assert "planner check" in refused.err


def test_a_workload_that_comes_to_no_role_is_a_finding_and_no_crash(plans: dict[str, Plan]) -> None:
    plan = copy.deepcopy(plans["serve"])
    for route in plan["decision"]["routing"]:
        if "source" not in route:
            route["share"] = 0.0
    assert {"arithmetic.shares", "restated.plan"} <= by_verdict(plan, None, "failed")


def test_what_the_problem_asks_for_is_not_taken_from_the_decision(plans: dict[str, Plan]) -> None:
    plan = copy.deepcopy(plans["train"])
    plan["decision"]["overlap"].append(plan["decision"]["overlap"][0])
    assert by_verdict(plan, None, "failed") == {"restated.decision"}


def test_limits_are_judged_by_what_the_plan_gives_and_not_by_what_it_states(plans: dict[str, Plan]) -> None:
    plan = copy.deepcopy(plans["serve"])
    plan["inputs"]["workloads"][0]["slo"] = {"ttft": {"mean_s": 1e-3}}
    plan["digests"]["problem"] = digest(plan["inputs"])
    _ttft(plan, 1e-4)
    failed = by_verdict(plan, None, "failed")
    assert failed & {"slo.ttft", "restated.plan"}


def test_slots_sorted_by_load_have_another_imbalance(plans: dict[str, Plan], folder: Path) -> None:
    plan = copy.deepcopy(plans["experts"])
    for layout in plan["decision"]["layouts"]:
        layout["expert_of_slot"].sort()
    assert {"restated.predictions", "restated.certificate"} <= by_verdict(plan, folder, "failed")


def test_figures_whose_inputs_are_away_are_unverifiable_and_never_ok(plans: dict[str, Plan], folder: Path) -> None:
    whole = findings_of(plans["experts"], None)
    away = [finding for finding in whole if finding.verdict == "unverifiable"]
    assert {finding.where for finding in away} >= {"predictions", "certificate"}
    assert all("loads.npz" in finding.what and not finding.ok for finding in away)
    plan = copy.deepcopy(plans["experts"])
    _role(plan, weights_bytes=1.0)
    assert by_verdict(plan, None, "failed") == {"restated.decision"}  # memory hangs on no load


def test_a_bound_of_a_layer_that_its_loads_do_not_give_fails_at_level_proof(
    plans: dict[str, Plan], folder: Path
) -> None:
    plan = copy.deepcopy(plans["experts"])
    certificate = plan["certificate"]
    bounds = certificate["proof"]["bound_by_layer"]
    higher = 0.5 * (certificate["proof"]["imbalance_by_layer"][0] - bounds[0])
    bounds[0] += higher
    certificate["bound"] = sum(bounds) / len(bounds)
    certificate["gap"] = (certificate["objective"]["value"] - certificate["bound"]) / certificate["objective"]["value"]
    certificate["proof"]["checksum"] = checksum(certificate)
    assert by_verdict(plan, folder, "failed") == {"certificate.layer", "restated.certificate"}
    assert by_verdict(plan, folder, "failed", proof=True) >= {"certificate.layer", "certificate.proof"}


@pytest.mark.parametrize("path", sorted(PLANS.glob("*.json")), ids=lambda path: path.stem)
def test_plans_that_were_written_and_prove_nothing_have_the_level_proof(path: Path) -> None:
    findings = findings_of(json.loads(path.read_text()), PLANS, proof=True)
    assert not [finding for finding in findings if finding.verdict == "failed"]
    assert "it was written, not solved" in next(each.what for each in findings if each.rule == "restated.plan")


def test_proofs_of_unknown_methods_fail(plans: dict[str, Plan]) -> None:
    plan = copy.deepcopy(plans["train"])
    plan["certificate"]["proof"]["method"] = "trust_me"
    assert "certificate.proof" in by_verdict(plan, None, "failed")


@pytest.mark.parametrize("kind", KINDS)
def test_a_plan_of_older_costs_is_priced_anew_with_the_same_choices(
    kind: str, plans: dict[str, Plan], folder: Path
) -> None:
    older = copy.deepcopy(plans[kind])
    older["software"]["planner"] = "0.0.1"
    older["digests"]["models"] = dict.fromkeys(older["digests"]["models"], ZEROS)
    for prediction in older["predictions"]:
        prediction["value"] *= 1.01
        prediction.pop("interval", None)
    envelope = Envelope.model_validate(older)
    decision = find_kind(kind).decision.model_validate(envelope.decision)
    anew = refreshed(envelope, decision, AtHand((folder,)))
    data = json.loads(plan_json(anew))
    assert not by_verdict(data, folder, "failed") | by_verdict(data, folder, "unverifiable")
    assert not list(differing(data["decision"], plans[kind]["decision"], "decision"))
    assert data["digests"] == plans[kind]["digests"]
    assert data["software"] == plans[kind]["software"]
    assert (anew.certificate.status, anew.certificate.bound) == ("feasible", None)
    values = {p["metric"] + p.get("statistic", ""): p["value"] for p in plans[kind]["predictions"]}
    assert {p["metric"] + p.get("statistic", ""): p["value"] for p in data["predictions"]} == pytest.approx(values)


def test_refreshing_writes_over_the_plan_and_judges_it(
    plans: dict[str, Plan], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    older = copy.deepcopy(plans["serve"])
    older["software"]["planner"] = "0.0.1"
    path.write_text(json.dumps(older))
    assert main(["check", str(path)]) == 1
    assert "--refresh" in capsys.readouterr().out
    assert main(["check", str(path), "--refresh"]) == 0
    assert main(["check", str(path)]) == 0
    assert json.loads(path.read_text())["software"]["planner"] != "0.0.1"
    assert [file.name for file in sorted(tmp_path.iterdir())] == ["plan.checks.json", "plan.json"]


def test_a_plan_of_an_edited_problem_is_not_priced_anew(plans: dict[str, Plan]) -> None:
    plan = copy.deepcopy(plans["serve"])
    plan["inputs"]["workloads"][0]["output_tokens"] = 100
    envelope = Envelope.model_validate(plan)
    decision = find_kind("serve").decision.model_validate(envelope.decision)
    with pytest.raises(PlannerError, match="not the problem"):
        refreshed(envelope, decision, AtHand())


def test_measured_costs_that_are_away_leave_memory_and_places_to_judge(tmp_path: Path) -> None:
    shipped = Path(__file__).parents[2] / "planner" / "costs" / "rates" / "calibration.yaml"
    own = tmp_path / "own.yaml"
    own.write_text(shipped.read_text())
    data = {**problem("serve", tmp_path), "costs": {"calibration": str(own)}}
    envelope = solve(data)
    plan = envelope.model_dump(mode="json", by_alias=True, exclude_none=True)
    decision = find_kind("serve").decision.model_validate(envelope.decision)
    away = findings_of(plan, None)
    assert {finding.verdict for finding in away} == {"ok", "unverifiable"}
    from planner.check import check_plan

    there = check_plan(envelope, decision, hand=AtHand(calibration=str(own)))
    assert not [finding for finding in there if not finding.ok]
    _role(plan, kv_cache_bytes=1.0)
    assert by_verdict(plan, None, "failed") == {"restated.decision"}

"""The hand-written plans of every kind: valid, whole, and made for the catalogs of today."""

import json
from pathlib import Path

import pytest

from planner.check import check_plan
from planner.documents.files import digest
from planner.hardware.library import hardware_facts
from planner.kinds.registry import find_kind, kind_names
from planner.load.problems import load_plan
from planner.models.library import model_facts
from planner.plan.findings import passed
from planner.plan.placement import num_ranks
from planner.plan.reader import read_plan
from planner.plan.store import plan_json
from planner.problem.resolve import normalised, resolve
from planner.problem.schema import Problem
from planner.schema.base import Where

PLANS = Path(__file__).parent.parent / "plans"
KINDS = ("experts", "fleet", "place", "rl", "serve", "train", "workflow")
HERE = Where({}, "inputs")


@pytest.fixture(params=KINDS)
def path(request: pytest.FixtureRequest) -> Path:
    return PLANS / f"{request.param}.json"


def test_every_kind_of_the_registry_has_a_hand_written_plan() -> None:
    assert set(kind_names()) == {path.stem for path in PLANS.glob("*.json")} == set(KINDS)


def test_digests_are_those_of_the_catalogs(path: Path, request: pytest.FixtureRequest) -> None:
    plan = json.loads(path.read_text())
    resolved = resolve(Problem.model_validate(plan["inputs"]), HERE)
    wanted = {
        "problem": digest(plan["inputs"]),
        "models": {key: digest(model_facts(model)) for key, model in resolved.models.items()},
        "hardware": {pool.name: digest(hardware_facts(pool.node)) for pool in resolved.pools},
    }
    if request.config.getoption("--update-golden"):
        envelope, _ = load_plan(path)
        digests = envelope.digests.model_copy(update=wanted)
        path.write_text(plan_json(envelope.model_copy(update={"digests": digests})))
        plan = json.loads(path.read_text())
    assert {section: plan["digests"][section] for section in wanted} == wanted


def test_every_rule_holds_and_is_judged_but_for_figures_that_nobody_can_price_again(path: Path) -> None:
    envelope, decision = load_plan(path)
    findings = check_plan(envelope, decision, base=path.parent)
    assert len(findings) > 25
    others = {finding.rule for finding in findings if finding.verdict != "ok"}
    assert {rule for rule in others if not rule.startswith("slo.")} == {"restated.plan"}
    assert {finding.verdict for finding in findings} == {"ok", "unverifiable"}
    assert not passed(findings)


def test_the_file_is_the_one_text_of_the_plan(path: Path) -> None:
    envelope, _ = load_plan(path)
    assert plan_json(envelope) == path.read_text()


def test_inputs_are_a_problem_with_its_defaults_filled_in(path: Path) -> None:
    inputs = json.loads(path.read_text())["inputs"]
    assert normalised(resolve(Problem.model_validate(inputs), HERE)) == inputs


def test_both_readers_see_the_same_plan(path: Path) -> None:
    envelope, decision = load_plan(path)
    document = read_plan(path)
    assert (document.kind, document.name, document.seed) == (envelope.kind, envelope.name, envelope.seed)
    from dataclasses import asdict

    for section in ("roles", "placement", "routing", "phases"):
        wanted, read = getattr(decision, section), getattr(document, section)
        plain = [json.loads(json.dumps(asdict(part))) for part in read]
        assert [type(model).model_validate(part) for model, part in zip(wanted, plain, strict=True)] == list(wanted)
    assert set(document.extra) <= set(find_kind(envelope.kind).decision.model_fields)
    assert [asdict(prediction)["value"] for prediction in document.predictions] == [
        prediction.value for prediction in envelope.predictions
    ]


def test_a_plan_for_16384_ranks_stays_under_four_kilobytes() -> None:
    path = PLANS / "train.json"
    _, decision = load_plan(path)
    assert sum(num_ranks(block) for block in decision.placement) == 16_384
    assert path.stat().st_size < 4096

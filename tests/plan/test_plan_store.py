"""The text of plans, and the checks kept beside them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.plan.findings import Finding
from planner.plan.schema import Envelope
from planner.plan.store import checks_path, plan_digest, plan_json, write_checks

Edited = Callable[..., dict[str, Any]]
GOOD = Finding("memory.parts", True, "fits", "roles.decode")
BAD = Finding("slo.ttft", False, "too late", "workloads.chat", "relax it")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=4), below, max_size=3),
    max_leaves=8,
)


@settings(max_examples=40)
@given(decision=st.dictionaries(st.text(max_size=4), JSON, max_size=4))
def test_a_plan_survives_being_written_and_read(decision: dict[str, Any]) -> None:
    path = Path(__file__).parent.parent / "plans" / "serve.json"
    envelope = Envelope.model_validate(json.loads(path.read_text()) | {"decision": decision})
    text = plan_json(envelope)
    assert Envelope.model_validate(json.loads(text)) == envelope
    assert plan_json(Envelope.model_validate(json.loads(text))) == text
    assert text.endswith("}\n")


def read_checks(plan: Path, digest: str) -> dict[str, Any]:
    """The levels already checked of the plan with this digest; none where another plan was checked."""
    document = json.loads(checks_path(plan).read_text())
    return dict(document["levels"]) if document["plan"] == digest else {}


def test_a_plan_text_does_not_depend_on_the_order_of_its_keys(edited_plan: Edited) -> None:
    plan = edited_plan("serve")
    shuffled = {key: plan[key] for key in reversed(plan)}
    for section in ("inputs", "decision"):
        shuffled[section] = {key: plan[section][key] for key in reversed(plan[section])}
    assert plan_json(Envelope.model_validate(shuffled)) == plan_json(Envelope.model_validate(plan))


def test_floats_are_written_exactly(edited_plan: Edited) -> None:
    value = 0.1 + 0.2
    text = plan_json(Envelope.model_validate(edited_plan("serve", {"predictions.0.value": value})))
    assert json.loads(text)["predictions"][0]["value"] == value


def test_checks_of_several_levels_are_kept_together(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    digest = plan_digest("one")
    assert write_checks(plan, digest, "static", [GOOD]) == ""
    assert write_checks(plan, digest, "execute", [GOOD, BAD]) == ""
    levels = read_checks(plan, digest)
    assert {level: checked["ok"] for level, checked in levels.items()} == {"execute": False, "static": True}
    assert levels["execute"]["findings"][1]["what"] == "too late"
    assert checks_path(plan).name == "plan.checks.json"


def test_a_level_checked_again_is_replaced(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    write_checks(plan, "d", "static", [BAD])
    write_checks(plan, "d", "static", [GOOD])
    assert [finding["rule"] for finding in read_checks(plan, "d")["static"]["findings"]] == ["memory.parts"]


def test_checks_of_an_earlier_plan_are_dropped_with_a_note(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    write_checks(plan, plan_digest("one"), "execute", [GOOD])
    assert read_checks(plan, plan_digest("two")) == {}
    note = write_checks(plan, plan_digest("two"), "static", [GOOD])
    assert "execute" in note
    assert set(read_checks(plan, plan_digest("two"))) == {"static"}
    assert read_checks(plan, plan_digest("one")) == {}


def test_a_foreign_file_of_that_name_is_left_alone(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    checks_path(plan).write_text('{"mine": 1}')
    with pytest.raises(PlannerError, match="not a file of checks"):
        write_checks(plan, "d", "static", [GOOD])
    assert checks_path(plan).read_text() == '{"mine": 1}'


def test_the_digest_changes_with_every_byte() -> None:
    assert plan_digest("{}") != plan_digest("{ }")
    assert plan_digest("") == "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

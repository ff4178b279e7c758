"""What is emitted today is what the engines' own code accepted; our rules look at it first."""

import json
from dataclasses import replace
from typing import Any

import launch
import pytest
from emit_plans import QWEN, Case, RolePlan

FROZEN: dict[str, Any] = json.loads(launch.FROZEN.read_text(encoding="utf-8"))
"""What `make test-launch` froze. Plans that are solved move with costs, those written by hand do not."""


@pytest.mark.parametrize("engine", launch.ENGINES)
def test_every_frozen_plan_was_accepted_by_the_release_that_scripts_are_for(engine: str) -> None:
    known = FROZEN[engine]
    assert known["version"] == {"vllm": "0.33.0", "sglang": "0.5.23"}[engine]
    assert {name: plan["refused"] for name, plan in known["plans"].items() if plan["refused"]} == {}
    kinds = ("case-", "serve-", "seed-")
    judged = {kind: sum(name.startswith(kind) for name in known["plans"]) for kind in kinds}
    assert judged["case-"] == len(list(launch.case_plans(engine)))
    assert judged["serve-"] >= 8
    assert judged["seed-"] == launch.SEEDED == 40
    assert sum(plan["pairs"] for plan in known["plans"].values()) >= 20


@pytest.mark.parametrize("engine", launch.ENGINES)
def test_plans_written_by_hand_are_emitted_as_the_engine_accepted_them(engine: str) -> None:
    for plan in launch.case_plans(engine):
        assert plan.digest == FROZEN[engine]["plans"][plan.name]["digest"], plan.name


def pipelined() -> launch.EmittedPlan:
    roles = (RolePlan("prefill", degrees={"tp": 2, "pp": 2}), RolePlan("decode", degrees={"tp": 4}))
    return launch.emitted("pipelined", Case(roles, {"default": {"name": QWEN}}).build()[0], "vllm")


def told_otherwise(plan: launch.EmittedPlan, old: str, new: str) -> launch.EmittedPlan:
    commands = json.loads(json.dumps(plan.commands).replace(old, new))
    assert commands != plan.commands
    return replace(plan, commands=commands)


def test_a_pipelined_prefill_with_a_pull_connector_is_refused_by_our_rules_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = pipelined()
    assert launch.our_refusal(plan, "vllm") is None
    reading = told_otherwise(plan, "NixlPushConnector", "NixlConnector")
    assert "takes caches of one stage" in (launch.our_refusal(reading, "vllm") or "")
    asked: list[str] = []

    def engine(_: str, plans: list[launch.EmittedPlan]) -> tuple[str, dict[str, dict[str, str]]]:
        asked.extend(each.name for each in plans)
        return "0.33.0", {each.name: {} for each in plans}

    monkeypatch.setattr(launch, "plans_of", lambda *_: iter([("reads", replace(reading, name="reads")), ("ok", plan)]))
    monkeypatch.setattr(launch, "engine_verdicts", engine)
    assert launch.main(["--engine", "vllm"]) == 1
    assert asked == ["pipelined"]
    assert "reads: REFUSED by our rules" in capsys.readouterr().out


def test_sides_with_other_roles_or_connectors_are_refused_by_our_rules() -> None:
    plan = pipelined()
    assert "kv_both" in (launch.our_refusal(told_otherwise(plan, "kv_producer", "kv_both"), "vllm") or "")
    decode = next(title for title in plan.commands if title.startswith("decode"))
    other = told_otherwise(replace(plan, commands={decode: plan.commands[decode]}), "NixlPush", "Mooncake")
    mixed = replace(plan, commands={**plan.commands, **other.commands})
    assert launch.our_refusal(mixed, "vllm") is not None


def test_commands_that_differ_in_what_an_engine_reads_have_other_digests() -> None:
    plan = pipelined()
    assert told_otherwise(plan, "kv_producer", "kv_both").digest != plan.digest
    assert pipelined().digest == plan.digest

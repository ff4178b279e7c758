"""Graphs split over functions on servers, and primitives in batches: solved, checked from the plan alone, refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner import verify
from planner.check import check_plan
from planner.documents.read import given_document
from planner.emit.registry import emit
from planner.errors import PlannerError, Stopped
from planner.kinds.registry import find_kind
from planner.kinds.workflow.schedules.forms import read_schedule
from planner.kinds.workflow.schedules.rules import schedule_rules
from planner.load.problems import resolve_document
from planner.plan.findings import FAILED
from planner.plan.schema import Decision, Envelope
from planner.plan.store import plan_json
from planner.problem.recorded import AtHand
from planner.problem.resolve import Resolved
from planner.progress import Limits

EXAMPLES = Path(__file__).parents[3] / "examples"
KIND = find_kind("workflow")
SERVERS = """
schema: planner.problem/1
kind: workflow
options:
  servers: {slots: [4, 3], most_members: 2, memory_speedup: 10}
  stages:
    - name: join
      after: [scan, read]
      work: {computes: {split: 3s, whole: 500ms}, reads: {split: 9s}, writes: {split: 1s}}
    - {name: scan, work: {computes: {split: 1s}, reads: {split: 6s}, writes: {split: 5s, whole: 200ms}}}
    - {name: read, work: {computes: {split: 2s}, writes: {split: 1s}}}
    - {name: top, after: [join], work: {reads: {split: 1s, whole: 300ms}, one_function: 2s}}
"""
ENGINES = """
schema: planner.problem/1
kind: workflow
options:
  engines:
    queries_s: [0.1, 0.12, 0.5]
    primitives:
      embed: {engine: small, setup: 10ms, each: 5ms, most_members: 4}
      prefill: {engine: llm, setup: 60ms, each: 90ms, most_members: 2}
      decode: {engine: llm, setup: 260ms, each: 12ms, most_members: 8}
  stages:
    - {name: answer, after: [read], primitive: decode}
    - {name: read, after: [embed], primitive: prefill}
    - {name: embed, primitive: embed}
"""


def resolved(text: str, *overrides: str) -> Resolved:
    return resolve_document(given_document(yaml.safe_load(text), "problem"), Path(), overrides=overrides)


def solved(text: str) -> tuple[Envelope, Any]:
    envelope = KIND.solve(resolved(text), Limits())
    return envelope, KIND.decision.model_validate(envelope.decision)


@pytest.fixture(scope="module", params=[SERVERS, ENGINES], ids=["servers", "engines"])
def schedule(request: pytest.FixtureRequest) -> tuple[Envelope, Any]:
    return solved(request.param)


@pytest.fixture(scope="module")
def grouped() -> tuple[Envelope, Any]:
    return solved(SERVERS)


@pytest.fixture(scope="module")
def batched() -> tuple[Envelope, Any]:
    return solved(ENGINES)


def test_a_schedule_is_proven_the_shortest_and_holds_at_every_level(schedule: tuple[Envelope, Any]) -> None:
    assert schedule[0].certificate.status == "optimal"
    findings = check_plan(*schedule, proof=True)
    assert [finding for finding in findings if finding.verdict == FAILED] == []
    assert {"certificate.bound_again", "certificate.shortest_again", "certificate.candidates"} <= {
        finding.rule for finding in findings
    }
    judged = KIND.simulated(*schedule, AtHand())
    assert judged is not None
    assert all(finding.ok for finding in judged[0])
    assert judged[1]["latency_s"] == pytest.approx(schedule[0].certificate.objective.value, rel=1e-9)


def test_the_certificate_is_judged_from_the_plan_alone(schedule: tuple[Envelope, Any]) -> None:
    plan = json.loads(plan_json(schedule[0]))
    assert {line.verdict for line in verify.judge(plan)} == {verify.VERIFIED, verify.STATED}
    plan["certificate"]["proof"]["groups"][0]["least"] *= 0.5
    refused = [line.rule for line in verify.judge(plan) if line.verdict == verify.REFUSED]
    assert {"certificate.checksum", "certificate.proof"} <= set(refused)


def test_neighbours_of_the_shortest_functions_are_no_shorter(grouped: tuple[Envelope, Any]) -> None:
    form = read_schedule(resolved(SERVERS))
    assert form is not None
    least_s = grouped[0].certificate.objective.value
    tried = 0
    for stage, choice in enumerate(grouped[1].stages):
        for functions in range(1, 5):
            stages = list(grouped[1].stages)
            stages[stage] = choice.model_copy(update={"functions": functions})
            for groups in (grouped[1].groups, ()):
                other = grouped[1].model_copy(update={"stages": tuple(stages), "groups": groups})
                if all(finding.ok for finding in schedule_rules(form.options, other)):
                    tried += 1
                    assert least_s is not None
                    assert form.simulated(other)[0] >= least_s * (1 - 1e-9)
    assert tried > 4


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"groups": [{"stages": ["scan", "top"], "server": 0}]}, "workflow.groups"),
        ({"groups": [{"stages": ["scan", "read", "join"], "server": 0}]}, "workflow.groups"),
        ({"groups": [{"stages": ["scan", "join"], "server": 7}]}, "workflow.functions"),
        ({"functions": 9}, "workflow.functions"),
    ],
)
def test_groups_and_functions_that_cannot_be_fail(
    grouped: tuple[Envelope, Any], change: dict[str, Any], rule: str
) -> None:
    envelope, data = grouped[0], json.loads(grouped[0].model_dump_json(by_alias=True))["decision"]
    if "functions" in change:
        data["stages"][0]["functions"] = change["functions"]
    else:
        data |= change
    assert rule in failed(envelope, data)


@pytest.mark.parametrize(
    ("batch", "change", "rule"),
    [
        (0, {"start_s": 0.0}, "workflow.order"),
        (-1, {"primitive": "prefill"}, "workflow.batches"),
        (0, {"queries": [2]}, "workflow.batches"),
        (-1, {"start_s": 0.2}, "workflow.order"),
    ],
)
def test_batches_that_cannot_be_fail(
    batched: tuple[Envelope, Any], batch: int, change: dict[str, Any], rule: str
) -> None:
    envelope, data = batched[0], json.loads(batched[0].model_dump_json(by_alias=True))["decision"]
    data["batches"][batch] |= change
    assert rule in failed(envelope, data)


def failed(envelope: Envelope, data: dict[str, Any]) -> set[str]:
    decision: Decision = KIND.decision.model_validate(data)
    findings = check_plan(envelope.model_copy(update={"decision": data}), decision)
    return {finding.rule for finding in findings if finding.verdict == FAILED}


@pytest.mark.parametrize("target", ["argo", "kserve-graph", "ray-serve-graph", "vllm-omni"])
def test_launchers_refuse_a_schedule_and_say_why(schedule: tuple[Envelope, Any], target: str) -> None:
    with pytest.raises(PlannerError, match=r"no launcher|engines batch|no pools of stages"):
        emit(*schedule, target)


@pytest.mark.parametrize(
    ("text", "override", "what"),
    [
        (SERVERS, "options.servers.slots=[2]", "4 stages, and servers with 2 slots"),
        (SERVERS, "options.servers=null", "has `work`, and there are no `servers`"),
        (SERVERS, "objective={minimize: cost}", "has no effect with `servers`"),
        (SERVERS, "models={m: {name: Qwen/Qwen3-8B}}", "has no effect with `servers`"),
        (SERVERS, "options.simulated_requests=300", "has no effect with `servers`"),
        (SERVERS, "options.stages.1.after=[top]", "stages wait for each other"),
        (SERVERS, "options.stages.2={name: read}", "has no options"),
        (ENGINES, "options.stages.0.primitive=other", "which is not given"),
        (ENGINES, "options.engines.primitives.embed={engine: small}", "takes no time"),
        (ENGINES, "options.engines.primitives.rank={engine: small, setup: 1s}", "no stage is of primitive `rank`"),
        (ENGINES, "seed=3", "has no effect with `engines`"),
        (ENGINES, "options.engines.queries_s=[]", "at least 1"),
    ],
)
def test_problems_that_are_none_are_refused(text: str, override: str, what: str) -> None:
    with pytest.raises(PlannerError, match=what):
        KIND.solve(resolved(text, override), Limits())


def test_a_time_limit_before_any_schedule_is_told() -> None:
    with pytest.raises(Stopped):
        KIND.solve(resolved(SERVERS), Limits(time_limit_s=0.0))

"""Workflows of functions and served models: chosen together, stated again, judged on fresh streams, refused clearly."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from planner.check import check_plan
from planner.documents.read import given_document
from planner.errors import Infeasible, PlannerError
from planner.kinds.registry import find_kind
from planner.kinds.workflow.graph.candidates import Engines, candidates_of, graph_on
from planner.kinds.workflow.graph.choose import chosen_stream
from planner.kinds.workflow.graph.draws import draw
from planner.kinds.workflow.graph.serving import embedded
from planner.kinds.workflow.graph.setting import read_setting
from planner.load.problems import resolve_document
from planner.plan.findings import FAILED
from planner.plan.placement import devices
from planner.plan.schema import Decision, Envelope
from planner.problem.recorded import AtHand
from planner.problem.resolve import Resolved
from planner.progress import Limits

PROBLEM = """
schema: planner.problem/1
kind: workflow
models: {small: {name: Qwen/Qwen3-0.6B}, large: {name: Qwen/Qwen3-1.7B}}
cluster: {pools: [{name: p, gpu: h100_sxm, gpus: 4, price: 2USD/h}]}
workloads:
  - name: q
    model: large
    input_tokens: {mean: 900, cv: 0.5}
    output_tokens: 24
    load: {rate: 6/s}
    slo: {latency: 2s}
objective: {minimize: cost}
options:
  simulated_requests: 400
  correlation: 0.5
  stages:
    - name: answer
      after: [search, embed]
      serve: {limits_s: [1.5, 0.5], options: &one {modes: [colocated], tp: [1], pp: [1], chunk_tokens: [4096]}}
    - name: embed
      serve: {model: small, output_tokens: 1, limits_s: [1.0], options: *one}
    - name: search
      options:
        - {name: slow, latency: {mean: 300ms, cv: 1}, servers: [2, 3, 4, 6], price: 0.10USD/h}
        - {name: fast, latency: {mean: 60ms, cv: 0.5}, servers: [1, 2], price: 0.90USD/h}
        - {name: calls, latency: {mean: 100ms, cv: 0.5}, usd_per_call: 0.0001}
"""


def resolved(*overrides: str, **options: Any) -> Resolved:  # noqa: ANN401 - parsed JSON
    data = yaml.safe_load(PROBLEM)
    data["options"] |= options
    return resolve_document(given_document(data, "problem"), overrides=overrides, base=Path())


@pytest.fixture(scope="module")
def solved() -> tuple[Envelope, Decision]:
    envelope = find_kind("workflow").solve(resolved(), Limits(seed=0))
    return envelope, find_kind("workflow").decision.model_validate(envelope.decision)


def test_every_rule_of_a_solved_workflow_holds_and_its_bound_is_derived_again(
    solved: tuple[Envelope, Decision],
) -> None:
    findings = check_plan(*solved, proof=True)
    assert [finding for finding in findings if finding.verdict == FAILED] == []
    assert {"certificate.bound_again", "workflow.stages", "restated.decision", "slo.latency"} <= {
        f.rule for f in findings
    }


def test_a_claim_says_that_each_pool_serves_alone_where_two_together_cost_less() -> None:
    data = yaml.safe_load(PROBLEM)
    data["models"] = {"large": {"name": "Qwen/Qwen3-8B"}}
    data["cluster"]["pools"] = [
        {"name": "l4", "gpu": "l4", "gpus": 8, "price": "0.80USD/h"},
        {"name": "h100", "gpu": "h100_sxm", "gpus": 8, "price": "2.50USD/h"},
    ]
    (workload,) = data["workloads"]
    workload |= {"input_tokens": {"mean": 4000, "cv": 0.3}, "output_tokens": 1, "slo": {"latency": {"p95": "4.4s"}}}
    workload["load"] = {"rate": "10/s"}
    own: dict[str, Any] = {"modes": ["colocated"], "judged_by": "queueing"}
    options = {"simulated_requests": 400, "stages": [{"name": "answer", "serve": {"options": own}}]}
    prices = {}
    for kind, chosen in (("workflow", options), ("serve", own)):
        problem = resolve_document(given_document(data | {"kind": kind, "options": chosen}, "problem"), base=Path())
        certificate = find_kind(kind).solve(problem, Limits(seed=0)).certificate
        assert certificate.status == "optimal"
        assert ("engines over several pools" in certificate.claim) == (kind == "workflow")
        prices[kind] = certificate.objective.value or 0.0
    assert prices["serve"] < prices["workflow"]


@pytest.mark.parametrize(
    ("limit", "stated", "kept"),
    [("p50", None, "p50"), ("p99", None, "p95"), ("p50", [4.0], "p95")],
)
def test_stages_are_limited_on_no_higher_percentile_than_the_whole(
    limit: str, stated: list[float] | None, kept: str
) -> None:
    """A plan whose p95 is beyond the limit on the median of the whole may be the cheapest that keeps it."""
    data = yaml.safe_load(PROBLEM)
    data["workloads"][0]["slo"] = {"latency": {limit: "4s"}}
    data["options"]["stages"][0]["serve"]["limits_s"] = stated
    setting = read_setting(resolve_document(given_document(data, "problem"), base=Path()))
    slo = embedded(setting, setting.places.index(0), 0, setting.latency_s).problem.workloads[0].slo
    assert slo.latency is not None
    assert slo.latency.statistics() == {kept: 4.0}


def test_a_stage_whose_end_nobody_waits_for_is_limited_on_its_first_tokens_alone() -> None:
    data = yaml.safe_load(PROBLEM)
    data["workloads"][0]["slo"] = {"ttft": {"p95": "4s"}}
    for stage in data["options"]["stages"][:2]:
        del stage["serve"]["limits_s"]

    def limited(data: dict[str, Any]) -> dict[str, str]:
        setting = read_setting(resolve_document(given_document(data, "problem"), base=Path()))
        rows = {place: embedded(setting, setting.places.index(place), 0, 4.0).problem.workloads[0] for place in (0, 1)}
        return {row.name: name for row in rows.values() for name, _, _ in row.slo.limits()}

    assert limited(data) == {"answer": "ttft", "embed": "latency"}
    data["workloads"][0]["slo"]["latency"] = {"p95": "9s"}
    assert limited(data) == {"answer": "latency", "embed": "latency"}


def test_serving_plans_of_stages_are_plans_of_their_own_that_hold(solved: tuple[Envelope, Decision]) -> None:
    plans = [choice.plan for choice in solved[1].stages if choice.plan is not None]  # type: ignore[attr-defined]  # of workflows
    assert len(plans) == 2
    for plan in plans:
        envelope = Envelope.model_validate(plan)
        decision = find_kind("serve").decision.model_validate(envelope.decision)
        assert [f.rule for f in check_plan(envelope, decision) if f.verdict == FAILED] == []


def test_no_device_serves_two_stages(solved: tuple[Envelope, Decision]) -> None:
    used = [device for block in solved[1].placement for device in devices(block)]
    assert len(used) == len(set(used)) > 1


def test_the_limit_holds_on_streams_that_nothing_was_chosen_on(solved: tuple[Envelope, Decision]) -> None:
    judged = find_kind("workflow").simulated(*solved, AtHand())
    assert judged is not None
    findings, document = judged
    assert all(finding.verdict != FAILED for finding in findings)
    (row,) = document["beside_stated"]
    assert row["share"] >= 0.95
    assert row["stated_s"] == pytest.approx(row["simulated_s"], rel=0.2)


@pytest.mark.parametrize(
    ("path", "value", "rule"),
    [
        (("stages", 0, "usd_per_hour"), 0.01, "restated.decision"),
        (("stages", 0, "stage"), "other", "workflow.stages"),
        (("stages", 2, "roles"), [], "workflow.roles"),
        (("stages", 1, "option"), "none", "restated.plan"),
    ],
)
def test_a_plan_that_says_otherwise_fails(
    solved: tuple[Envelope, Decision], path: tuple[str | int, ...], value: object, rule: str
) -> None:
    envelope = solved[0]
    data: Any = json.loads(envelope.model_dump_json(by_alias=True))["decision"]
    names = {choice["stage"]: index for index, choice in enumerate(data["stages"])}
    at = data["stages"][[names["search"], names["search"], names["answer"]][int(path[1])]]
    at[path[2]] = value
    decision = find_kind("workflow").decision.model_validate(data)
    findings = check_plan(envelope.model_copy(update={"decision": data}), decision)
    assert rule in {finding.rule for finding in findings if finding.verdict == FAILED}


def test_requests_alone_on_engines_are_never_slower_than_among_others() -> None:
    setting = read_setting(resolved())
    stream = chosen_stream(setting)
    candidates, engines = candidates_of(setting), Engines(setting, (stream,))
    graph = graph_on(setting, candidates, engines, stream)
    for stage in graph.stages:
        for option in stage.options:
            times = option.run(graph.arrival_s_R)
            assert (times.end_s_R - graph.arrival_s_R >= option.alone.end_s_R - 1e-9).all()


def test_stages_of_a_request_are_slow_together_as_far_as_they_are_said_to_be() -> None:
    def apart(share: float) -> float:
        stream = draw(read_setting(resolved(correlation=share, simulated_requests=4000)), 3, fresh=True)
        return float(np.corrcoef(stream.normal_SR[0], stream.normal_SR[1])[0, 1])

    assert apart(0.0) == pytest.approx(0.0, abs=0.05)
    assert apart(0.6) == pytest.approx(0.6, abs=0.05)


def test_scenarios_are_judged_on_those_that_options_were_not_chosen_on() -> None:
    samples = ", ".join(map(str, range(1, 41)))
    setting = read_setting(resolved(f"{STAGE}.options=[{{name: a, latency: {{samples_s: [{samples}]}}}}]"))
    chosen, fresh = (set(draw(setting, 1, fresh=each).scenario_SR[0]) for each in (False, True))
    assert chosen & fresh == set()
    assert chosen | fresh == set(range(40))


STAGE = "options.stages.2"


@pytest.mark.parametrize(
    ("overrides", "what", "hint"),
    [
        ((f"{STAGE}.options=[]",), "stage `search` has no options", "give it `options`"),
        ((f"{STAGE}.after=[answer]",), "stages wait for each other: ", "take one out of `after`"),
        ((f"{STAGE}.after=[nowhere]",), "waits for `nowhere`", "the stages are"),
        (
            (f"{STAGE}.options.0.latency={{samples_s: [1, 2]}}", f"{STAGE}.options.1.latency={{samples_s: [1, 2, 3]}}"),
            "`search.slow` has 2 scenarios, and `search.fast` has 3",
            "the same scenarios",
        ),
        ((f"{STAGE}.least_recall=90%",), "state no recall", "`recall`"),
        ((f"{STAGE}.options.1.recall=90%",), "`recall` has no effect in stage `search`", "least_recall"),
        (("workloads.0.slo={}",), "has no limit", "slo:"),
        (("workloads.0.slo={latency: {mean: 1s}}",), "a mean is of none", "percentile"),
        (("cluster.pools.0={gpu: h100_sxm, gpus: 4}",), "has no price", "price:"),
        (("options.stages.1.serve.model=large",), "no stage serves model `small`", "serve.model"),
        (("options.stages.1.serve.model=smal",), "unknown model `smal`", "did you mean `small`"),
        (("options.stages.1.serve.options.tp=[0]",), "must be at least 1", ""),
        (("objective={maximize: attainment}",), "do not read `objective.maximize`", "minimize: cost"),
    ],
)
def test_what_is_no_workflow_is_refused_with_what_to_do(overrides: tuple[str, ...], what: str, hint: str) -> None:
    with pytest.raises(PlannerError) as raised:
        find_kind("workflow").solve(resolved(*overrides), Limits(seed=0))
    assert what in raised.value.what
    assert hint in raised.value.hint


def test_a_limit_below_the_critical_path_names_the_least_possible() -> None:
    with pytest.raises(Infeasible) as raised:
        find_kind("workflow").solve(resolved("workloads.0.slo={latency: 50ms}"), Limits(seed=0))
    (conflict,) = raised.value.conflict
    assert raised.value.proved
    assert "critical path" in conflict["limit"]
    assert conflict["nearest"].startswith("latency ")


def test_a_cap_on_price_below_the_cheapest_is_told_with_that() -> None:
    with pytest.raises(Infeasible) as raised:
        find_kind("workflow").solve(resolved("limits.price=1USD/h"), Limits(seed=0))
    assert raised.value.conflict[-1]["nearest"].endswith("USD/h")

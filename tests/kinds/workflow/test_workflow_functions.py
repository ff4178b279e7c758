"""Graphs of functions alone: every scenario, orders of clusters beyond GPU memory, options fixed and asked about."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from planner.alternatives.ranking import alternatives
from planner.alternatives.why_not import why_not
from planner.check import check_plan
from planner.documents.read import given_document
from planner.emit.registry import emit
from planner.errors import Infeasible, PlannerError
from planner.kinds.registry import find_kind
from planner.load.problems import resolve_document
from planner.plan.findings import FAILED
from planner.plan.schema import Envelope
from planner.problem.resolve import Resolved
from planner.progress import Limits

KIND = find_kind("workflow")
MOVED = (  # name, transfer, compute, size
    ("x", 0.2, 0.5, 60),
    ("y", 0.5, 0.1, 50),
    ("z", 0.4, 0.4, 40),
    ("w", 0.1, 0.3, 90),
)


def problem(seed: int, limit_s: float = 6.0, scenarios: int = 8) -> dict[str, Any]:
    draws = np.random.default_rng(seed)
    stages: list[dict[str, Any]] = []
    for number in range(3):
        mean_s, usd = sorted(draws.uniform(0.5, 4.0, 3), reverse=True), sorted(draws.uniform(0.001, 0.01, 3))
        options = [
            {
                "name": f"o{o}",
                "usd_per_call": float(usd[o]),
                "latency": {"samples_s": [float(v) for v in mean_s[o] * draws.lognormal(0, 0.3, scenarios)]},
            }
            for o in range(3)
        ]
        stages.append({"name": f"s{number}", "after": [f"s{number - 1}"] if number else [], "options": options})
    return {
        "schema": "planner.problem/1",
        "kind": "workflow",
        "workloads": [{"name": "v", "load": {"rate": "2/s"}, "slo": {"latency": {"p75": f"{limit_s}s"}}}],
        "objective": {"minimize": "cost"},
        "options": {"stages": stages},
    }


def moved() -> dict[str, Any]:
    data = problem(1, 9.0)
    clusters = [{"name": n, "transfer": f"{t}s", "compute": f"{c}s", "size": f"{b}MB"} for n, t, c, b in MOVED]
    option = {"name": "gpu", "latency": {"transfers": {"buffer": "110MB", "clusters": clusters}}}
    data["options"]["stages"].append({"name": "search", "after": ["s2"], "options": [option]})
    return data


def resolved(data: dict[str, Any], *overrides: str) -> Resolved:
    return resolve_document(given_document(json.loads(json.dumps(data)), "problem"), Path(), overrides=overrides)


def solved(data: dict[str, Any]) -> tuple[Envelope, Any]:
    envelope = KIND.solve(resolved(data), Limits())
    return envelope, KIND.decision.model_validate(envelope.decision)


def cheapest(data: dict[str, Any], limit_s: float, share: float) -> float | None:
    """By the definition: every option of every stage, the longest path of every scenario."""
    stages = data["options"]["stages"]
    costs = []
    for chosen in itertools.product(*(stage["options"] for stage in stages)):
        ends_s: dict[str, list[float]] = {}
        for stage, option in zip(stages, chosen, strict=True):
            before = [ends_s[name] for name in stage["after"]] or [[0.0] * len(option["latency"]["samples_s"])]
            own_s = option["latency"]["samples_s"]
            ends_s[stage["name"]] = [max(ready) + own for *ready, own in zip(*before, own_s, strict=True)]
        within = sum(max(ends) <= limit_s for ends in zip(*ends_s.values(), strict=True))
        if within >= round(share * len(own_s), 9):
            costs.append(sum(option["usd_per_call"] for option in chosen))
    return min(costs, default=None)


@pytest.mark.parametrize("seed", range(20))
def test_the_cheapest_functions_are_those_of_an_enumeration(seed: int) -> None:
    data = problem(seed, scenarios=10)
    data["workloads"][0]["slo"] = {"latency": {"p80": "5s"}}  # 8 of 10, a share that no float is
    if seed % 2:
        data["options"]["stages"][2]["after"] = ["s0"]  # beside the second
    least = cheapest(data, 5.0, 0.8)
    if least is None:
        with pytest.raises(Infeasible):
            solved(data)
        return
    envelope, _ = solved(data)
    assert envelope.certificate.objective.value == pytest.approx(least * 2 * 3600, rel=1e-9)
    assert envelope.certificate.status == "optimal"


def test_functions_need_neither_models_nor_a_cluster_and_hold_at_every_level() -> None:
    envelope, decision = solved(moved())
    assert "cluster" not in envelope.inputs
    findings = check_plan(envelope, decision, proof=True)
    assert [finding for finding in findings if finding.verdict == FAILED] == []


def test_half_of_many_scenarios_choose_and_the_other_half_judge() -> None:
    envelope, _ = solved(problem(3, scenarios=40))
    assert any("20 scenarios, those that options were not chosen on" in note for note in envelope.evidence.notes)


def makespan_s(order: tuple[int, ...], buffer: float) -> float:
    """Moves and computes in an order, each as early as can be, by trying every start that anything ends at."""
    moved, done, link_s, gpu_s = list[float](), list[float](), 0.0, 0.0
    for place, cluster in enumerate(order):
        _, transfer_s, compute_s, size = MOVED[cluster]
        for start_s in sorted({link_s, *(end for end in done if end >= link_s)}):
            held = sum(MOVED[order[other]][3] for other in range(place) if done[other] > start_s + 1e-12)
            if held + size <= buffer:
                break
        link_s = start_s + transfer_s
        gpu_s = max(gpu_s, link_s) + compute_s
        moved.append(link_s)
        done.append(gpu_s)
    return gpu_s


def test_clusters_beyond_gpu_memory_are_moved_in_the_shortest_order() -> None:
    envelope, decision = solved(moved())
    choice = decision.stages[-1]
    names = [name for name, *_ in MOVED]
    least_s = min(makespan_s(order, 110.0) for order in itertools.permutations(range(4)))
    assert makespan_s(tuple(names.index(name) for name in choice.transfer_order), 110.0) == pytest.approx(least_s)
    (row,) = [row for row in envelope.predictions if row.of == "search" and row.statistic == "mean"]
    assert row.value == pytest.approx(least_s)
    assert json.loads(emit(envelope, decision, "argo")["orders.json"]) == {"search": list(choice.transfer_order)}


def test_an_order_without_a_cluster_or_a_longer_one_fails() -> None:
    envelope, decision = solved(moved())
    for order, rule in ((["x", "y", "z"], "workflow.transfers"), (["y", "z", "w", "x"], "restated.predictions")):
        data = json.loads(envelope.model_dump_json(by_alias=True))["decision"]
        data["stages"][-1]["transfer_order"] = order
        other = KIND.decision.model_validate(data)
        findings = check_plan(envelope.model_copy(update={"decision": data}), other)
        assert rule in {finding.rule for finding in findings if finding.verdict == FAILED}
    assert decision.stages[-1].transfer_order


def test_alternatives_differ_in_an_option_and_cost_ever_more() -> None:
    data = problem(5)
    answer = alternatives(resolved(data), 4, Limits())
    values = [plan.certificate.objective.value for plan in answer.plans]
    assert values == sorted(values)  # type: ignore[type-var]  # workflows have a price
    chosen = [tuple(stage["option"] for stage in plan.decision["stages"]) for plan in answer.plans]  # type: ignore[union-attr,index,call-overload]  # a list of records
    assert len(set(chosen)) == 4
    costs = sorted(
        sum(option["usd_per_call"] for option in picked) * 7200
        for picked in itertools.product(*(stage["options"] for stage in data["options"]["stages"]))
        if np.mean(np.sum([option["latency"]["samples_s"] for option in picked], axis=0) <= 6.0) >= 0.75
    )
    assert values == pytest.approx(costs[:4])


def test_an_option_that_is_not_taken_is_priced_or_breaks_a_limit() -> None:
    data = problem(5)
    plan = solved(data)
    others = {stage.stage: {"o0", "o1", "o2"} - {stage.option} for stage in plan[1].stages}
    texts = [next(iter(why_not(*plan, f"{stage}={name}"))).what for stage, names in others.items() for name in names]
    assert any("worse" in text or "as good" in text for text in texts)
    text = next(iter(why_not(*plan, "s0=o0,s1=o0,s2=o0"))).what
    assert "no plan with" in text
    assert "nearest: latency" in text


@pytest.mark.parametrize(
    ("override", "what"),
    [
        ("options.choices={s9: {options: [o0]}}", "which has none"),
        ("options.choices={s0: {options: [o9]}}", "has no option `o9`"),
        ("options.choices={s0: {servers: [2]}}", "has servers"),
        ("options.scenarios=never", "together"),
        ("options.simulated_requests=300", "every scenario is looked at"),
        ("workloads.0.input_tokens=300", "no stage serves a model"),
        ("limits.gpus=2", "no stage serves a model"),
        ("workloads.0.load.arrival_cv=2", "no effect where no call waits"),
        ("cluster={pools: [{gpu: h100_sxm, gpus: 1}]}", "no stage serves a model"),
        ("options.stages.0.options.0.latency={samples_s: [1, 2]}", "scenarios"),
        ("workloads.0.slo.tpot=30ms", "has no effect without `images`"),
        ("options.stages.3.options.0.latency.transfers.buffer=70MB", "cluster `w` has 9e\\+07 bytes"),
        ("options.stages.3.options.0.latency.mean=70ms", "give one of the three|one of the three|a `mean`"),
    ],
)
def test_what_is_no_graph_of_functions_is_refused(override: str, what: str) -> None:
    with pytest.raises(PlannerError, match=what):
        KIND.solve(resolved(moved(), override), Limits())


def test_a_problem_with_a_model_stage_and_no_cluster_is_refused() -> None:
    data = yaml.safe_load("{schema: planner.problem/1, kind: workflow, options: {stages: [{name: a, serve: {}}]}}")
    with pytest.raises(PlannerError, match="`models` is missing"):
        resolved(data)

"""Plans simulated with what is done to their engines: the file, its errors, and what comes of it."""

import json
from pathlib import Path

import numpy as np
import pytest

from planner.cli.main import main
from planner.errors import PlannerError
from planner.load.problems import load_plan
from planner.simulate.fleet.operation_spec import OperationSpec, load_operation
from planner.simulate.plans.fleet import fleet_of_plan
from planner.simulate.plans.setting import Policies
from planner.simulate.requests.stream import Requests
from planner.simulate.run.engine import simulate

PROBLEM = """
schema: planner.problem/1
kind: serve
models: {llama: {name: MODEL}}
cluster:
  pools: [{gpu: h100, nodes: 1, name: first}, {gpu: h100, nodes: 1, name: second}]
  links: [{pools: [first, second], bandwidth: 1GB/s, latency: 1ms}]
workloads:
  - input_tokens: 500
    output_tokens: 100
    load: {rate: 8/s}
objective: {minimize: gpus}
options: OPTIONS
"""
DENSE, MOE = "meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-30B-A3B"
APART = "{modes: [disaggregated], tp: [1], max_batch: [32]}"
REQUESTS = Requests.open_stream(np.arange(120) / 8.0, np.full(120, 500), np.full(120, 100))


def solved(folder: Path, model: str, options: str) -> Path:
    (folder / "problem.yaml").write_text(PROBLEM.replace("MODEL", model).replace("OPTIONS", options))
    assert main(["solve", str(folder / "problem.yaml"), "-o", str(folder / "plan.json")]) == 0
    return folder / "plan.json"


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return solved(tmp_path_factory.mktemp("operated"), DENSE, APART)


def operation(folder: Path, text: str) -> str:
    path = folder / "operation.yaml"
    path.write_text(text)
    return str(path)


def test_drafts_save_time_and_a_failure_costs_some(plan: Path, tmp_path: Path) -> None:
    text = "speculation: {draft_tokens: 3, acceptance: 70%, draft_step: 0.1ms}"
    spec = load_operation(operation(tmp_path, text))
    plain, drafting = (
        simulate(fleet_of_plan(*load_plan(plan), REQUESTS, Policies(operation=operation)).fleet, REQUESTS)
        for operation in (None, spec)
    )
    assert float(np.nanmean(drafting.tpot_s)) < 0.8 * float(np.nanmean(plain.tpot_s))
    assert int(drafting.accepted_tokens.sum()) > 0


def test_the_verb_reports_what_was_done(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, decision = load_plan(plan)
    role = decision.roles[0].name
    text = f"""
schema: planner.operation/1
changes:
  - {{time: 2s, role: {role}, replica: 0, action: fail}}
  - {{time: 5s, role: {role}, replica: 0, action: start}}
adapters: {{count: 20, slots: 4, load: 5ms}}
prefix_store: {{size: 1TB, bandwidth: 10GB/s}}
"""
    capsys.readouterr()
    given = ("--first", "100", "--prefix-caching", "--json")
    code = main(["simulate", str(plan), "--operation", operation(tmp_path, text), *given])
    document = json.loads(capsys.readouterr().out)
    assert code == 0
    assert document["drained"]
    assert document["preemptions"] > 0
    assert document["adapter_loads"] > 4
    assert document["up_share"] < 1.0


@pytest.mark.parametrize(
    ("text", "caching", "message"),
    [
        (
            "prefix_eviction: pgdsf",
            True,
            "prefix_eviction: `pgdsf` is for memory tiers of prefixes",
        ),
        ("prefix_store: {size: 1TB, bandwidth: 10GB/s}", False, "prefix_store: engines fill it that keep prefixes"),
        ("prefix_store: {size: 1kB, bandwidth: 10GB/s}", True, "prefix_store.size: 1000 bytes hold no token"),
    ],
)
def test_stores_that_nothing_fills_and_evictions_of_no_store_are_refused(
    plan: Path, tmp_path: Path, text: str, caching: bool, message: str
) -> None:
    policies = Policies(operation=load_operation(operation(tmp_path, text)), prefix_caching=caching)
    with pytest.raises(PlannerError, match=message):
        fleet_of_plan(*load_plan(plan), REQUESTS, policies)


def test_pools_of_a_plan_share_the_link_that_the_problem_states(plan: Path) -> None:
    envelope, decision = load_plan(plan)
    first, *others = decision.roles
    moved = decision.model_copy(update={"roles": (first.model_copy(update={"pool": "second"}), *others)})
    assert {role.pool for role in moved.roles} == {"first", "second"}
    fleet = fleet_of_plan(envelope, moved, REQUESTS, Policies()).fleet
    assert {(link.source, link.goal) for link in fleet.pool_links} == {(0, 1), (1, 0)}
    bytes_a_token = 2 * 32 * 8 * 128 * 2  # of Llama 3.1 8B
    assert fleet.pool_links[0].tokens_per_s == pytest.approx(1e9 / bytes_a_token)
    assert fleet_of_plan(envelope, decision, REQUESTS, Policies()).fleet.pool_links == ()


def test_attention_ranks_that_share_experts_step_together(tmp_path: Path) -> None:
    options = "{modes: [colocated], tp: [1], dp: [4], max_batch: [32]}"
    envelope, decision = load_plan(solved(tmp_path, MOE, options))
    (role,) = decision.roles
    assert role.parallelism.dp == 4
    fleet = fleet_of_plan(envelope, decision, REQUESTS, Policies()).fleet
    assert fleet.groups == (4,) * role.replicas
    assert simulate(fleet, REQUESTS).drained


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("speculation: {draft_tokens: 3, acceptance: 1.2}", "operation.yaml:1.*acceptance"),
        ("speculation: {draft_tokens: 3, acceptance: 70%, draft_step: 2}", "draft_step.*such as"),
        ("changes: [{time: 2s, role: x, replica: 0, action: stop}]", "changes"),
        ("control: {period: 0s}", "period"),
        ("skew: [0.5]", "skew"),
        ("drafts: 3", "drafts"),
        ("[1, 2]", "a mapping"),
    ],
)
def test_bad_operations_are_refused_with_their_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(PlannerError, match=message):
        load_operation(operation(tmp_path, text))


def test_changes_of_roles_and_replicas_that_are_not_there_are_refused() -> None:
    data = {"changes": [{"time": "1s", "role": "decode", "replica": 3, "action": "fail"}]}
    spec = OperationSpec.model_validate(data)
    with pytest.raises(PlannerError, match="has no replica 3"):
        spec.changes_of({"decode": [[0], [1]]})
    with pytest.raises(PlannerError, match="no role `decode`"):
        spec.changes_of({"colocated": [[0]]})

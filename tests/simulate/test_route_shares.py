"""Requests shared out between the roles of a plan as its routes say."""

from dataclasses import replace

import numpy as np
import pytest

from planner.cli.main import main
from planner.load import load_plan
from planner.plan.schema import Decision, Envelope, Route
from planner.simulate.engine import simulate
from planner.simulate.fleet import Fleet, Instance
from planner.simulate.operation_spec import OperationSpec
from planner.simulate.plan_fleet import Policies
from planner.simulate.play import Load, play
from planner.simulate.requests import Requests
from planner.simulate.shares import Chains, chain_of_request, chains_of, shared_out
from planner.simulate.step_grid import StepGrid

PROBLEM = """
schema: planner.problem/1
kind: serve
models: {llama: {name: meta-llama/Llama-3.1-8B-Instruct}}
cluster: {pools: [{gpu: h100, gpus: 4}]}
workloads: [{name: chat, input_tokens: 500, output_tokens: 100, load: {rate: 8/s}, slo: {ttft: 2s}}]
objective: {minimize: gpus}
options: {modes: [disaggregated], max_batch: [16], tp: [1]}
"""
GRID = StepGrid.affine(5e-3, sequence_s=2e-5, token_s=1e-5)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Envelope, Decision]:
    """A plan with prefill and decode apart, and as many GPUs beside them that do both."""
    folder = tmp_path_factory.mktemp("shares")
    (folder / "problem.yaml").write_text(PROBLEM)
    assert main(["solve", str(folder / "problem.yaml"), "-o", str(folder / "plan.json")]) == 0
    envelope, decision = load_plan(folder / "plan.json")
    decode = next(role for role in decision.roles if role.function == "decode")
    both = decode.model_copy(update={"name": "both", "function": "colocated"})
    routes = tuple(route.model_copy(update={"share": 0.75}) for route in decision.routing)
    entry = Route(workload="chat", to="both", share=0.25)
    return envelope, decision.model_copy(update={"roles": (*decision.roles, both), "routing": (entry, *routes)})


def colocated(mixed: tuple[Envelope, Decision], policies: Policies) -> float:
    """The share of 400 requests that the role which does both has played."""
    played = play(*mixed, Load(first=400), policies)
    homes = [played.planned.role_of_instance[home] for home in played.result.home]
    return homes.count("both") / len(homes)


def test_roles_get_the_shares_that_the_plan_routes_to_them(mixed: tuple[Envelope, Decision]) -> None:
    for routing in ("least-loaded", "round-robin", "power-of-two"):
        assert colocated(mixed, Policies(routing=routing)) == pytest.approx(0.25, abs=0.005)


def test_routers_that_look_for_caches_and_engines_that_come_and_go_have_no_shares(
    mixed: tuple[Envelope, Decision],
) -> None:
    changes = [{"time": "1000s", "role": "both", "replica": 0, "action": "drain"}]
    operation = OperationSpec.model_validate({"schema": "planner.operation/1", "changes": changes})
    free = colocated(mixed, Policies(operation=operation))
    assert free != pytest.approx(0.25, abs=0.005)
    assert colocated(mixed, Policies(routing="cache-aware")) != pytest.approx(0.25, abs=0.005)


def test_a_note_says_which_shares_are_played(mixed: tuple[Envelope, Decision]) -> None:
    (note,) = play(*mixed, Load(first=50), Policies()).planned.notes
    assert "25.0% to both, 75.0% to" in note


def test_roles_that_hand_caches_over_get_one_share_together(mixed: tuple[Envelope, Decision]) -> None:
    chains = chains_of(mixed[1])
    assert chains is not None
    assert chains.shares == pytest.approx((0.25, 0.75))
    assert sorted(chains.chain_of_role.values()) == [0, 1, 1]


def test_one_chain_several_workloads_and_roles_without_a_route_have_no_shares(
    mixed: tuple[Envelope, Decision],
) -> None:
    decision = mixed[1]
    entry, *routes = decision.routing
    other = entry.model_copy(update={"workload": "other"})
    alone = decision.roles[:-1]
    assert chains_of(decision.model_copy(update={"roles": alone, "routing": tuple(routes)})) is None
    assert chains_of(decision.model_copy(update={"routing": (other, *routes)})) is None
    assert chains_of(decision.model_copy(update={"routing": tuple(routes)})) is None


def test_every_stretch_of_requests_has_nearly_the_shares() -> None:
    chosen = chain_of_request((0.125, 0.5, 0.375), 4000)
    for start in range(0, 4000, 200):
        counted = np.bincount(chosen[start : start + 200], minlength=3) / 200
        assert counted == pytest.approx([0.125, 0.5, 0.375], abs=0.02)


def test_a_request_that_its_chain_cannot_hold_goes_to_the_one_with_most_room() -> None:
    fleet = Fleet((Instance(GRID, kv_tokens=640), Instance(GRID, kv_tokens=64_000)))
    inputs = np.where(np.arange(100) % 10 == 0, 2000, 100)
    requests = Requests.open_stream(np.arange(100) * 0.1, inputs, np.full(100, 20))
    shared = shared_out(fleet, ("small", "large"), requests, Chains({"small": 0, "large": 1}, (0.5, 0.5)))
    result = simulate(*shared)
    assert result.complete.all()
    assert set(result.home[inputs == 2000]) == {1}
    assert set(result.home[inputs == 100]) == {0, 1}


def test_adapters_of_requests_are_kept() -> None:
    fleet = Fleet((replace(Instance(GRID, kv_tokens=64_000), adapter_slots=2),) * 2)
    requests = Requests.open_stream([0.0, 1.0], [10, 10], [2, 2]).of_models(0, [1, 0])
    _, shared = shared_out(fleet, ("one", "two"), requests, Chains({"one": 0, "two": 1}, (0.5, 0.5)))
    assert shared.adapter is not None
    assert shared.adapter.tolist() == [1, 0]

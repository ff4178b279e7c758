"""Requests shared out between the roles of a plan as its routes say."""

from dataclasses import replace

import numpy as np
import pytest
from step_simulator import StepSimulator

from planner.cli.main import main
from planner.errors import PlannerError
from planner.load.problems import load_plan
from planner.plan.schema import Decision, Envelope, Route
from planner.simulate.fleet.instances import Fleet, Instance, RequestPath
from planner.simulate.fleet.operation_spec import OperationSpec
from planner.simulate.fleet.shares import shared_out
from planner.simulate.fleet.step_grid import StepGrid
from planner.simulate.loop.routing import draw
from planner.simulate.plans.paths import paths_of
from planner.simulate.plans.setting import Policies
from planner.simulate.plans.simulation import Traffic, simulate_plan
from planner.simulate.requests.stream import Requests
from planner.simulate.run.engine import simulate

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
    """The share of 400 requests that the role which does both has simulated."""
    simulated = simulate_plan(*mixed, Traffic(first=400), policies)
    homes = [simulated.planned.role_of_instance[home] for home in simulated.result.home]
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


def test_a_note_says_which_shares_are_simulated(mixed: tuple[Envelope, Decision]) -> None:
    (note,) = simulate_plan(*mixed, Traffic(first=50), Policies()).planned.notes
    assert "75.0% to prefill and decode" in note
    assert "25.0% to both" in note
    assert "`chat` goes" in note
    (unshared,) = simulate_plan(*mixed, Traffic(first=50), Policies(routing="cache-aware")).planned.notes
    assert "not in the shares of the plan" in unshared
    whole = tuple(route.model_copy(update={"share": 1.0}) for route in mixed[1].routing if route.to != "both")
    alone = mixed[1].model_copy(update={"roles": mixed[1].roles[:-1], "routing": whole})
    assert simulate_plan(mixed[0], alone, Traffic(first=50), Policies()).planned.notes == ()


def test_a_path_is_a_role_that_does_both_or_one_that_hands_to_another(mixed: tuple[Envelope, Decision]) -> None:
    names = [role.name for role in mixed[1].roles]
    split = paths_of(mixed[1], ["chat"])
    assert split is not None
    (paths,) = split.paths
    shares = {(names[path.first], names[path.last]): path.share for path in paths}
    assert shares == pytest.approx({("both", "both"): 0.25, ("prefill", "decode"): 0.75})


def test_caches_go_to_each_decode_role_in_its_share(mixed: tuple[Envelope, Decision]) -> None:
    envelope, decision = mixed
    decode = next(role for role in decision.roles if role.name == "decode")
    second = decode.model_copy(update={"name": "second"})
    (handing,) = (route for route in decision.routing if route.source is not None)
    routes = tuple(
        handing.model_copy(update={"to": name, "share": 0.75 * share})
        for name, share in (("decode", 0.9), ("second", 0.1))
    )
    others = tuple(route for route in decision.routing if route.source is None)
    plan = decision.model_copy(update={"roles": (*decision.roles, second), "routing": (*others, *routes)})
    simulated = simulate_plan(envelope, plan, Traffic(first=400), Policies())
    homes = [simulated.planned.role_of_instance[home] for home in simulated.result.home]
    counted = {name: homes.count(name) / len(homes) for name in ("both", "decode", "second")}
    assert counted == pytest.approx({"both": 0.25, "decode": 0.675, "second": 0.075}, abs=0.006)


def test_one_path_and_routes_that_leave_a_role_or_a_workload_out_have_no_shares(
    mixed: tuple[Envelope, Decision],
) -> None:
    decision = mixed[1]
    entry, *routes = decision.routing
    alone = decision.roles[:-1]
    assert paths_of(decision.model_copy(update={"roles": alone, "routing": tuple(routes)}), ["chat"]) is None
    assert paths_of(decision, ["chat", "other"]) is None
    assert paths_of(decision.model_copy(update={"routing": tuple(routes)}), ["chat"]) is None
    assert entry.to == "both"


def test_every_stretch_of_requests_has_nearly_the_shares() -> None:
    chosen = shared_out((0.125, 0.5, 0.375), 4000)
    for start in range(0, 4000, 200):
        counted = np.bincount(chosen[start : start + 200], minlength=3) / 200
        assert counted == pytest.approx([0.125, 0.5, 0.375], abs=0.02)


def _two_roles(engines: tuple[int, int], places: int, routing: str = "round-robin") -> Fleet:
    """Two roles, each with as large a part of the requests as of the engines."""
    role = (Instance(GRID, kv_tokens=64_000, most_sequences=places, model=number) for number in (0, 1))
    instances = tuple(each for each, count in zip(role, engines, strict=True) for _ in range(count))
    whole = sum(engines)
    paths = tuple(RequestPath(number, number, count / whole) for number, count in enumerate(engines))
    return Fleet(instances, routing=routing, paths=(paths,))


@pytest.mark.parametrize("engines", [(2, 3), (3, 5), (4, 6), (8, 4)])
def test_round_robin_takes_turns_in_each_role_by_itself(engines: tuple[int, int]) -> None:
    fleet = _two_roles(engines, 16)
    stream = Requests.open_stream(np.arange(400) * 0.01, np.full(400, 100), np.full(400, 20))
    slow = StepSimulator(fleet, stream, draw)
    slow.run()
    slow_homes = [request.home.id for request in slow.requests if request.home]
    for homes in (simulate(fleet, stream).home.tolist(), slow_homes):
        counts = np.bincount(homes, minlength=sum(engines))
        for role in (counts[: engines[0]], counts[engines[0] :]):
            assert np.ptp(role) <= 1


def test_a_mix_of_two_types_waits_for_places_no_longer_than_one_type() -> None:
    """Loads drawn at .93 of the places: of two roles, and of one with as many engines."""
    for seed, engines in enumerate(((4, 8), (3, 5), (6, 9))):
        draw, whole = np.random.default_rng(seed), sum(engines)
        alone = Fleet(tuple(Instance(GRID, kv_tokens=64_000, most_sequences=16) for _ in range(whole)),
                      routing="round-robin")  # fmt: skip
        stay_s = 200 * (5e-3 + 16 * 2e-5)
        arrival_s = np.cumsum(draw.exponential(stay_s / (0.93 * 16 * whole), 3000))
        stream = Requests.open_stream(arrival_s, np.full(3000, 50), np.full(3000, 200))
        mixed, same = (
            np.quantile((run.first_token_s - stream.arrival_s)[1000:], 0.95)
            for run in (simulate(_two_roles(engines, 16), stream), simulate(alone, stream))
        )
        assert mixed <= same * 1.5 + 0.02


def test_a_request_that_its_path_cannot_hold_goes_to_the_one_with_most_room() -> None:
    paths = ((RequestPath(0, 0, 0.5), RequestPath(1, 1, 0.5)),)
    fleet = Fleet((Instance(GRID, kv_tokens=640), Instance(GRID, kv_tokens=64_000, model=1)), paths=paths)
    inputs = np.where(np.arange(100) % 10 == 0, 2000, 100)
    result = simulate(fleet, Requests.open_stream(np.arange(100) * 0.1, inputs, np.full(100, 20)))
    assert result.complete.all()
    assert set(result.home[inputs == 2000]) == {1}
    assert set(result.home[inputs == 100]) == {0, 1}


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (((),), "has no path"),
        (((RequestPath(0, 0, 0.0),),), "without requests"),
        (((RequestPath(0, 7, 1.0),),), "a path of workload 0 from instances 0 to 7"),
    ],
)
def test_paths_that_lead_nowhere_are_refused(paths: tuple[tuple[RequestPath, ...], ...], message: str) -> None:
    with pytest.raises(PlannerError, match=message):
        Fleet((Instance(GRID, kv_tokens=640),), paths=paths)


def test_a_request_of_a_workload_without_paths_is_refused() -> None:
    fleet = Fleet((Instance(GRID, kv_tokens=640),), paths=((RequestPath(0, 0, 1.0),),))
    requests = replace(Requests.open_stream([0.0], [10], [2]), workload=np.array([1]))
    with pytest.raises(PlannerError, match="request 0 is for workload 1"):
        simulate(fleet, requests)

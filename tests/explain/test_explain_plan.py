"""What an explanation says holds: each claim is tried on the mix that it is about."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from static_level import solve

from planner.errors import PlannerError
from planner.explain import explain_plan, field_names
from planner.explain.facts import Fact
from planner.explain.mix import Mix, NodeSizes, limited, read_mix
from planner.explain.moves import move_facts, replica_facts
from planner.explain.rows import row_facts, used_share
from planner.explain.worth import worth_facts
from planner.kinds.registry import find_kind, kind_names
from planner.load.problems import load_problem
from planner.plan.placement import num_ranks
from planner.plan.schema import Decision, Envelope
from planner.solvers.backends.mathopt import Relaxation
from planner.solvers.backends.model import ModelRow, check_feasible
from planner.solvers.mix import MixDemand, MixProblem, MixShape
from planner.solvers.mix_model import build

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
Solved = Callable[[str], tuple[Envelope, Decision]]
CHEAP, MOST, CLIENTS = "serve-cost-two-pools", "serve-qwen3-32b-h200", "serve-trace-closed-loop"


def mix_of(plan: tuple[Envelope, Decision]) -> Mix:
    mix = read_mix(*plan)
    assert mix is not None
    return mix


def fact(facts: list[Fact], words: str) -> Fact:
    (matching,) = (told for told in facts if words in told.what)
    return matching


def relaxed(problem: MixProblem) -> float:
    model, explained = build(problem)
    answer = Relaxation(model).solve(model.lower, model.upper)
    assert answer.objective is not None
    return answer.objective * explained.objective_unit


def with_rate(problem: MixProblem, factor: float) -> MixProblem:
    def scaled(demand: MixDemand) -> MixDemand:
        return replace(demand, rate_per_s=(demand.rate_per_s or 0.0) * factor)

    return replace(problem, demands=tuple(scaled(demand) for demand in problem.demands))


@pytest.mark.parametrize("name", [CHEAP, MOST, CLIENTS])
def test_the_plan_is_a_feasible_point_of_its_mix_with_the_objective_that_it_states(solved: Solved, name: str) -> None:
    envelope, decision = solved(name)
    mix = mix_of((envelope, decision))
    assert check_feasible(mix.model, mix.values) == []
    assert mix.objective * mix.factor == pytest.approx(envelope.certificate.objective.value, rel=1e-9)
    assert set(mix.shape_of_role) == {role.name for role in decision.roles}
    assert all(mix.count(mix.shape_of_role[role.name]) == role.replicas for role in decision.roles)


@pytest.mark.parametrize("name", [CHEAP, MOST, CLIENTS])
def test_devices_taken_are_those_of_the_placement(solved: Solved, name: str) -> None:
    envelope, decision = solved(name)
    taken = {f.about[0]: f.figures["taken"] for f in row_facts(mix_of((envelope, decision))) if "taken" in f.figures}
    placed: dict[str, float] = dict.fromkeys(taken, 0.0)
    for block in decision.placement:
        placed[block.pool] += num_ranks(block)
    assert taken == placed


def test_a_pool_that_is_taken_whole_binds_and_one_with_room_does_not(solved: Solved) -> None:
    assert fact(list(row_facts(mix_of(solved(MOST)))), "all 32 GPUs of pool `h200`").topic == "binding"
    assert fact(list(row_facts(mix_of(solved(CHEAP)))), "GPUs of pool `hopper` are idle").topic == "limit"


def test_traffic_between_pools_is_that_of_the_decision(solved: Solved) -> None:
    envelope, decision = solved(CHEAP)
    told = fact(list(row_facts(mix_of((envelope, decision)))), "network from `lovelace` to `hopper`")
    moved = decision.model_dump()["kv_transfer_bytes_per_s"]
    assert told.figures["used"] * 12.5e9 == pytest.approx(moved, rel=1e-6)


@pytest.mark.parametrize(
    ("row", "share"),
    [
        (ModelRow("C", (0, 1), (1.0, -1.0), -float("inf"), 0.0), 0.75),
        (ModelRow("C", (0,), (2.0,), -float("inf"), 8.0), 0.75),
        (ModelRow("C", (0,), (1.0,), 1.5, float("inf")), 0.5),
        (ModelRow("C", (2,), (1.0,), -float("inf"), 0.0), 1.0),
    ],
)
def test_the_used_share_of_a_row_is_what_is_needed_of_its_room(row: ModelRow, share: float) -> None:
    assert used_share(row, (3.0, 4.0, 0.0)) == pytest.approx(share)


def test_the_worth_of_a_request_is_the_slope_of_the_relaxation(solved: Solved) -> None:
    mix = mix_of(solved(CHEAP))
    told = fact(list(worth_facts(mix)), "one request/s more of `chat`")
    slope = (relaxed(with_rate(mix.problem, 1.0005)) - relaxed(mix.problem)) / (20.0 * 0.0005)
    assert told.figures["gain"] == pytest.approx(slope, rel=1e-3)


def test_the_worth_of_a_gpu_bounds_what_a_node_adds_and_what_its_loss_costs(solved: Solved) -> None:
    mix = mix_of(solved(MOST))
    gain = fact(list(worth_facts(mix)), "one GPU more in pool `h200`").figures["gain"]

    def requests_per_s(nodes: int) -> float:
        pools = tuple(replace(pool, nodes=((8, nodes),)) for pool in mix.problem.pools)
        return relaxed(replace(mix.problem, pools=pools)) * mix.factor * mix.devices

    more, fewer = requests_per_s(5) - requests_per_s(4), requests_per_s(4) - requests_per_s(3)
    assert more <= 8 * gain * (1 + 1e-6) <= fewer * (1 + 2e-6)


def test_a_node_more_and_a_node_fewer_are_those_of_mixes_with_them(solved: Solved) -> None:
    mix = mix_of(solved(MOST))
    facts = list(move_facts(mix))
    for count, words in ((5, "one node more"), (3, "one node fewer")):
        best = mix.best(replace(mix.problem, pools=(replace(mix.problem.pools[0], nodes=((8, count),)),)))
        assert best is not None
        assert fact(facts, words).figures["relative"] == pytest.approx(best / mix.objective - 1.0, rel=1e-4)


def test_nodes_that_share_a_scale_up_domain_come_and_go_one_by_one(solved: Solved) -> None:
    mix = mix_of(solved(MOST))

    def with_domains(*domains: tuple[int, int]) -> MixProblem:
        return replace(mix.problem, pools=(replace(mix.problem.pools[0], nodes=domains),))

    racks = replace(mix, problem=with_domains((8, 1), (24, 1)), node_sizes={"h200": NodeSizes(4, 24)})
    facts = list(move_facts(racks))
    for word, domains in (("more", ((12, 1), (24, 1))), ("fewer", ((8, 1), (20, 1)))):
        best = mix.best(with_domains(*domains))
        assert best is not None
        told = fact(facts, f"one node {word} in pool `h200` (4 GPUs)")
        assert told.figures["relative"] == pytest.approx(best / mix.objective - 1.0, rel=1e-4)


def test_the_instances_hold_the_load_up_to_the_stated_one_and_no_more(solved: Solved) -> None:
    mix = mix_of(solved(CHEAP))
    factor = fact(list(move_facts(mix)), "hold").figures["load_factor"]
    fixed = limited(mix.problem, {c: mix.count(c) for c in range(len(mix.problem.shapes))})
    assert factor > 1.0
    assert mix.best(with_rate(fixed, factor * 0.999)) == pytest.approx(mix.objective)
    assert mix.best(with_rate(fixed, factor * 1.001)) is None


def test_a_better_plan_takes_over_below_the_stated_load_and_not_above(solved: Solved) -> None:
    mix = mix_of(solved(CHEAP))
    factor = fact(list(move_facts(mix)), "a better plan takes over").figures["load_factor"]
    below, above = mix.best(with_rate(mix.problem, factor * 0.9999)), mix.best(with_rate(mix.problem, factor * 1.0001))
    assert below is not None
    assert above is not None
    assert below < mix.objective * (1 - 1e-4)
    assert above == pytest.approx(mix.objective)


def test_the_plan_is_the_cheapest_between_the_stated_prices_and_not_beyond(solved: Solved) -> None:
    mix = mix_of(solved(CHEAP))
    facts = list(move_facts(mix))
    ends = 0
    for p, pool in enumerate(mix.problem.pools):
        told = fact(facts, f"with a GPU of `{pool.name}`")
        figures = told.figures

        def cheapest(price: float, p: int = p) -> bool:
            def priced(shape: MixShape) -> MixShape:
                return replace(shape, price_per_hour=shape.devices * price) if shape.pool == p else shape

            shapes = tuple(priced(shape) for shape in mix.problem.shapes)
            ours = sum(shape.price_per_hour * mix.count(c) for c, shape in enumerate(shapes))
            best = mix.best(replace(mix.problem, shapes=shapes))
            return best is not None and ours <= best * (1 + 1e-6)

        low, high = figures["low_usd_per_gpu_hour"], figures["high_usd_per_gpu_hour"]
        assert cheapest(low * 1.002)
        assert cheapest(high * 0.998)
        for end, price, beyond in (("from below", low, 0.998), ("and more", high, 1.002)):
            if end not in told.what:  # else no price that was tried makes another plan cheaper
                assert not cheapest(price * beyond)
                ends += 1
    assert ends >= 3


def test_fewer_instances_are_never_better(solved: Solved) -> None:
    for name in (CHEAP, MOST):
        mix = mix_of(solved(name))
        for role in mix.shape_of_role:
            losses = [told.figures["loss"] for told in replica_facts(mix, role) if "loss" in told.figures]
            assert losses == sorted(losses)
            assert all(loss >= -1e-6 for loss in losses)


def test_limits_and_memory_that_are_nearly_used_up_bind(solved: Solved) -> None:
    most, cheap = explain_plan(*solved(MOST)), explain_plan(*solved(CHEAP))
    limits = [told for told in (*most.facts, *cheap.facts) if "limit_s" in told.figures]
    assert {told.topic for told in limits} == {"binding", "limit"}
    for told in limits:
        assert (told.topic == "binding") is (told.figures["value_s"] >= 0.9 * told.figures["held_to_s"])


@pytest.mark.parametrize("name", [CHEAP, MOST])
def test_every_field_of_a_solved_plan_can_be_explained(
    solved: Solved, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planner.explain.explanation.move_facts", lambda mix: iter(()))
    envelope, decision = solved(name)
    names = field_names(envelope, decision)
    decode = next(role.name for role in decision.roles if role.function == "decode")
    own = {f"{decode}.max_batch", f"{decode}.limits.max_batch"}
    assert {"objective", "ttft", "chat.ttft", "mode"} | own <= set(names)
    for field in dict.fromkeys(names):
        if not field.startswith("prefill"):
            assert explain_plan(envelope, decision, field).field == field


@pytest.mark.parametrize("kind", kind_names())
def test_a_stated_plan_of_any_kind_is_explained_as_far_as_it_goes(
    kind: str, edited_plan: Callable[..., dict[str, Any]]
) -> None:
    envelope = Envelope.model_validate(edited_plan(kind))
    decision = find_kind(kind).decision.model_validate(envelope.decision)
    for field in (None, field_names(envelope, decision)[0]):
        explained = explain_plan(envelope, decision, field)
        assert any(told.topic == "note" and "was stated" in told.what for told in explained.facts)


def test_a_field_narrows_the_facts_to_what_is_about_it(solved: Solved) -> None:
    decode = next(role for role in solved(CHEAP)[1].roles if role.name == "decode")
    batch = int(decode.limits["max_batch"])
    explained = explain_plan(*solved(CHEAP), "decode.max_batch")
    assert explained.value == str(batch)
    assert explained.facts
    assert explained.facts[0].topic == "meaning"
    assert all("decode" in told.about for told in explained.facts[1:])
    most = fact(list(explained.facts), "memory would hold a batch of")
    assert decode.memory is not None
    spare = decode.memory.capacity_bytes - decode.memory.used_bytes
    each = decode.memory.kv_cache_bytes / batch
    assert most.figures["most"] - batch == pytest.approx(spare / each, abs=1)


def test_an_unknown_field_is_refused_with_the_nearest_ones(solved: Solved) -> None:
    with pytest.raises(PlannerError, match=r"did you mean `decode.max_batch`"):
        explain_plan(*solved(CHEAP), "decode.max_bach")


@pytest.mark.parametrize("part", ["mix", "values"])
def test_a_proof_that_is_not_of_the_plan_is_said_to_be_and_the_rest_is_still_told(solved: Solved, part: str) -> None:
    envelope, decision = solved(CHEAP)
    broken: dict[str, Any] = {"mix": {"objective": "price"}, "values": [1.0]}
    proof = {**envelope.certificate.proof, part: broken[part]}
    other = envelope.model_copy(update={"certificate": envelope.certificate.model_copy(update={"proof": proof})})
    explained = explain_plan(other, decision)
    assert [told for told in explained.facts if told.topic == "note"]
    assert fact(list(explained.facts), "mean ttft of `chat`")


def test_time_by_operator_adds_up_to_the_step(edited_plan: Callable[..., dict[str, Any]]) -> None:
    step = {"seconds": {"attention": 0.004, "gemm": 0.006, "host": 0.0005}, "basis": {"measured": 1.0}}
    envelope = Envelope.model_validate(edited_plan("serve", {"evidence.steps": {"decode": step}}))
    decision = find_kind("serve").decision.model_validate(envelope.decision)
    told = fact(list(explain_plan(envelope, decision, "decode.step").facts), "a step of `decode`")
    assert "10.5 ms = gemm 6.00 ms + attention 4.00 ms + host 500 µs   (measured 100 %)" in told.what
    assert sum(told.figures.values()) == pytest.approx(0.0105)


def test_deep_solves_again_with_each_limit_that_the_field_is_about() -> None:
    envelope = solve(load_problem(EXAMPLES / "serve-cost-one-pool.yaml", overrides=["load.rate=11/s"]))
    decision = find_kind("serve").decision.model_validate(envelope.decision)
    explained = explain_plan(envelope, decision, "requests_per_s", deep=True)
    moved = [told for told in explained.facts if told.what.startswith("rate of `chat`")]
    lower, higher = (told.figures["relative"] for told in moved)
    assert lower < 0.0 == higher  # a GPU fewer for less, and the same for more
    assert not [told for told in explained.facts if "ttft" in told.what]


def test_deep_counts_the_limits_that_it_has_no_time_to_move(solved: Solved, monkeypatch: pytest.MonkeyPatch) -> None:
    envelope, decision = solved(CHEAP)
    monkeypatch.setattr("planner.explain.deep.MOST_S", 0.0)
    monkeypatch.setattr("planner.explain.deep._solved", lambda *given: envelope)
    facts = list(explain_plan(envelope, decision, deep=True).facts)
    moved = [told.what for told in facts if told.what.startswith("mean ttft of `chat` <=")]
    assert len(moved) == 2  # the first, down and up
    left = fact(facts, "after 0 s, ").what
    assert "rate of `chat`" in left
    assert "`planner explain PLAN FIELD --deep`" in left


def test_deep_refuses_a_plan_whose_kind_is_not_solved(
    edited_plan: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    envelope = Envelope.model_validate(edited_plan("place"))
    monkeypatch.setattr("planner.kinds.place.KIND", replace(find_kind("place"), solvable=False))
    decision = find_kind("place").decision.model_validate(envelope.decision)
    with pytest.raises(PlannerError, match="can be checked but not solved"):
        explain_plan(envelope, decision, deep=True, base=Path())

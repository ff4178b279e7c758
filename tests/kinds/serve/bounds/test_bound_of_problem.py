"""Bounds of whole problems: against every plan of a small space simulated, monotone, and judged from the plan alone."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from planner import verify
from planner.api import solve
from planner.kinds.serve.bounds.bound import (
    NEAR_ENOUGH,
    PROOF_NODES,
    ProblemBounds,
    bound_of_types,
    price_step,
    proof_of,
    proven_bound,
)
from planner.kinds.serve.bounds.certified import with_bound
from planner.kinds.serve.bounds.demands import workloads_of
from planner.kinds.serve.bounds.engines import engine_types, least_types, listed_types
from planner.kinds.serve.bounds.types import type_bound
from planner.kinds.serve.simulated.load_streams import drawn
from planner.kinds.serve.steady.search import ServeSetting, prepare
from planner.load.problems import load_problem
from planner.plan.store import plan_json
from planner.simulate.fleet.instances import Fleet
from planner.simulate.goodput.rate import goodput
from planner.solvers.backends.model import LinearModel, total
from planner.solvers.dualtree import DualTree
from planner.solvers.dualtree import verify as derive

PROBLEM = """
schema: planner.problem/1
kind: serve
models: {llama: {name: meta-llama/Llama-3.1-8B-Instruct}}
cluster: {pools: [{gpu: h100, gpus: 2}]}
workloads:
  - input_tokens: {mean: 800, cv: 0.5}
    output_tokens: {mean: 60, cv: 0.5}
    slo: {ttft: {p95: TTFT}, tpot: {p90: TPOT}}
objective: {maximize: goodput_per_gpu}
options:
  {modes: [colocated], tp: [1, 2], pp: [1], max_batch: [8, 32, 128], chunk_tokens: [512, 2048], judged_by: queueing}
"""


def setting(folder: Path, ttft: str = "400ms", tpot: str = "20ms", *overrides: str) -> ServeSetting:
    path = folder / "problem.yaml"
    path.write_text(PROBLEM.replace("TTFT", ttft).replace("TPOT", tpot))
    return prepare(load_problem(path, overrides=list(overrides)))


def bound(of: ServeSetting) -> float:
    value = proven_bound(of).value
    assert value is not None
    return value


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> float:
    """The bound of the problem as it stands."""
    return bound(setting(tmp_path_factory.mktemp("strict")))


def test_no_plan_of_a_small_space_beats_the_bound(tmp_path: Path, strict: float) -> None:
    of, most, best = setting(tmp_path), strict, 0.0
    mixture = drawn(of, (1.0,), 4000, 400, 11)
    for engine in engine_types(of, workloads_of(of, (1.0,))):
        for batch in (8, 32, 128):
            for chunk in (512, 2048):
                instance = replace(engine.instance, most_sequences=batch, token_budget=chunk)
                fleet = Fleet((instance,) * (2 // engine.shape.devices))
                (draws,), (slo,) = mixture.draws, mixture.slos
                best = max(best, goodput(fleet, draws, slo, most_per_s=4.0 * most, tolerance=0.02).rate_per_s / 2)
    assert 0.6 * most < best <= 1.02 * most


def test_types_bounded_by_the_shortest_context_give_the_bound_of_all(tmp_path: Path, strict: float) -> None:
    of = setting(tmp_path)
    workloads, context = workloads_of(of, (1.0,)), of.targets[0].context_tokens
    (pool_costs,) = of.costs_of_pool.values()
    every = []
    for listed in listed_types(of, workloads):
        (least,) = least_types(of, [listed])
        way_s = float(pool_costs.costs.engine.request_s(of.resolved.workloads[0].input.mean_tokens))
        least_s, own_s = (type_bound(each, workloads, (0,), context, way_s) for each in (least, listed.priced(of)))
        every.append(own_s)
        for low, high in zip(least_s.workloads, own_s.workloads, strict=True):
            assert low is not None
            assert high is not None
            assert 0.5 * high.base_s < low.base_s < high.base_s
    assert bound_of_types(of, every, workloads).value == pytest.approx(strict, rel=1e-9)


@pytest.mark.parametrize(("ttft", "possible"), [("240ms", False), ("400ms", True)])
def test_no_prompt_is_seen_before_it_is_handed_over(tmp_path: Path, ttft: str, possible: bool) -> None:
    of = setting(tmp_path, ttft, "20ms", "options.modes=[disaggregated]")
    (pool_costs,) = of.costs_of_pool.values()
    assert 0.24 <= pool_costs.costs.engine.handover_s < 0.4
    assert (bound(of) > 1.0) is possible


def test_looser_limits_never_lower_a_bound(tmp_path: Path, strict: float) -> None:
    assert bound(setting(tmp_path, "800ms", "40ms")) >= strict * 0.995


def test_prompts_alone_are_priced_the_same_at_the_shortest_context(tmp_path: Path) -> None:
    of = setting(tmp_path, "400ms", "20ms", "options.modes=[disaggregated]", "options.tp=[1]")
    workloads, context = workloads_of(of, (1.0,)), of.targets[0].context_tokens
    listed = next(each for each in listed_types(of, workloads) if each.function == "prefill")
    priced = listed.priced(of)
    decoding_too = replace(listed, function="colocated").priced(of).instance.grid
    assert len(priced.instance.grid.contexts) == 1 < len(decoding_too.contexts)
    whole = replace(priced, instance=replace(priced.instance, grid=decoding_too))
    short, long = (type_bound(each, workloads, (0,), context, 0.0).workloads[0] for each in (priced, whole))
    assert short is not None
    assert long is not None
    assert short.base_s == pytest.approx(long.base_s, rel=1e-9)
    assert short.late_share == long.late_share


def test_a_larger_tree_proves_what_a_small_one_leaves_open() -> None:
    """Odd room for even parts: no half of them may be left out."""
    model = LinearModel()
    parts = [model.integer_variable(f"x[{index}]", 0, 1) for index in range(7)]
    best = model.continuous("best", 0.0, 20.0)
    model.add(2.0 * total(parts) <= 7.0, "room")
    model.add(best <= 2.0 * total(parts), "reached")
    model.maximise(best)
    tree, proven = proof_of(model, 6.0)
    assert len(tree.nodes) > PROOF_NODES
    assert proven is not None
    assert 6.0 - 1e-9 <= proven <= 6.0 * (1.0 + NEAR_ENOUGH)


@pytest.mark.parametrize(
    ("prices", "step"),
    [
        ([2.0, 4.0, 16.0], 2.0),
        ([2.5, 3.75, 0.0], 1.25),
        ([0.1, 0.1 + 0.2], 0.1),
        ([0.0], None),
        ([1.0, 2.0**0.5], None),
    ],
)
def test_prices_are_whole_multiples_of_their_step(prices: list[float], step: float | None) -> None:
    assert price_step(prices) == (None if step is None else pytest.approx(step, rel=1e-9))


def test_a_bound_on_the_cost_is_a_price_that_instances_can_have(tmp_path: Path) -> None:
    priced = "cluster.pools=[{gpu: h100, gpus: 8, price: 2.5USD/h}]"
    bounds = [
        bound(
            setting(
                tmp_path, "400ms", "20ms", priced, "objective={minimize: cost}", f"workloads.0.load={{rate: {r}/s}}"
            )
        )
        for r in (4, 30)
    ]
    assert bounds[0] <= bounds[1]
    assert all(value % 2.5 == pytest.approx(0.0) for value in bounds)
    assert bounds[0] > 0.0


def test_limits_that_no_engine_keeps_are_proven_to_leave_nothing(tmp_path: Path) -> None:
    assert bound(setting(tmp_path, "400ms", "1ms")) == pytest.approx(0.0, abs=1e-9)


def test_what_is_not_priced_has_no_bound_and_says_why(tmp_path: Path) -> None:
    unknown = proven_bound(setting(tmp_path, "400ms", "20ms", "workloads.0.prefix_hits=50%"))
    assert unknown.value is None
    assert "prefix hits" in unknown.why


def test_more_shapes_than_may_be_priced_have_no_bound_and_say_how_many(tmp_path: Path) -> None:
    of = setting(tmp_path)
    (space,) = of.spaces.values()
    count = len(space.shapes)
    assert ProblemBounds(of, count - 1).whole.why == f"there are more than {count - 1} shapes"
    assert ProblemBounds(of, count - 1).most_per_s("colocated", space.shapes[0], alone=True) == math.inf
    assert ProblemBounds(of, count).most_per_s("colocated", space.shapes[0], alone=True) < math.inf


def test_a_bound_is_judged_from_the_plan_alone(tmp_path: Path, strict: float) -> None:
    of = setting(tmp_path)
    static = solve(of.resolved)
    value = 0.7 * strict
    certificate = static.certificate.model_copy(
        update={
            "objective": static.certificate.objective.model_copy(update={"value": value}),
            "claim": "the plan keeps its limits in simulation; nothing else",
            "proof": {"verified": {"limits": []}},
        }
    )
    plan = with_bound(of, static.model_copy(update={"certificate": certificate, "predictions": ()}))
    stated = json.loads(plan_json(plan))
    stated["certificate"]["proof"]["checksum"] = verify.checksum(stated["certificate"])
    verdicts = {line.rule.partition(".")[2]: line.verdict for line in verify.judge(stated)}
    assert verdicts["status"] == verdicts["claim"] == verdicts["gap"] == "verified"
    assert verdicts["rests_on"] == "as stated"
    proof = stated["certificate"]["proof"]
    model, tree = LinearModel.from_dict(proof["model"]), DualTree.from_dict(proof["tree"])
    derived = derive(tree, model)
    assert derived is not None
    assert derived * proof["objective_unit"] == pytest.approx(stated["certificate"]["bound"])
    stated["certificate"]["bound"] *= 0.99
    assert any(line.verdict == "REFUSED" for line in verify.judge(stated))


@pytest.mark.parametrize("modes", ["colocated", "colocated, disaggregated"])
def test_a_bound_that_prices_what_its_mix_uses_is_that_of_all_types(tmp_path: Path, modes: str) -> None:
    of = setting(tmp_path, "400ms", "20ms", f"options.modes=[{modes}]", "options.tp=[1]")
    lazy, whole = ProblemBounds(of), ProblemBounds(of)
    whole._list()
    for row in range(len(whole._listed)):
        whole._price(row)
    every = bound_of_types(of, whole._bounds, whole._workloads).value
    assert lazy.whole.value == pytest.approx(every, rel=1e-6)

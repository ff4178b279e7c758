"""Attention ranks that share experts: what they do together stands apart, and steady state says what a run does."""

from dataclasses import fields, replace
from functools import cache

import numpy as np
import pytest

from planner.costs.operators.forward import ranks_in_step
from planner.costs.operators.work import Shards
from planner.costs.rates.near_runs import NearRuns
from planner.costs.rates.roofline import Roofline
from planner.costs.rates.spread import GroupBias, SeenRun
from planner.kinds.serve.steady.search import prepare
from planner.kinds.serve.steady.steps.formulas import Costs, colocated_tpot_s, decode_step, prefill_mixed
from planner.load.problems import load_problem
from planner.simulate.fleet.instances import Fleet, Instance
from planner.simulate.fleet.step_grid import GridAxes, StepGrid, step_grid, step_grids
from planner.simulate.goodput.step_prices import least_grid
from planner.simulate.requests.stream import Requests
from planner.simulate.run.engine import simulate

PROBLEM = """
schema: planner.problem/1
kind: serve
models: {deepseek: {name: deepseek-ai/DeepSeek-V3, weights: fp8, kv_cache: fp8}}
cluster: {pools: [{gpu: h200, gpus: 16}]}
workloads: [{name: chat, input_tokens: 1000, output_tokens: 200, slo: {ttft: 2s, tpot: 60ms}}]
objective: {maximize: goodput_per_gpu}
"""
ISL, OSL, CHUNK, RANKS = 1000, 200, 2048, 8
SHAPE = (2, 1, RANKS, 1, 2 * RANKS)  # tp, pp, dp, moe_tp, ep
SHAPES = (SHAPE, (1, 1, 2 * RANKS, 1, 2 * RANKS), (4, 1, 4, 2, 8))
OWN = GroupBias(0.1, 0.05, 2, (SeenRun(3.0, (4.0, 1.0, 3.0, 4.0, 0.0), (1000.0, 200.0), 0.3),))


@pytest.fixture(scope="module")
def costs(tmp_path_factory: pytest.TempPathFactory) -> Costs:
    path = tmp_path_factory.mktemp("joint") / "problem.yaml"
    path.write_text(PROBLEM)
    (pool_costs,) = prepare(load_problem(path)).costs_of_pool.values()
    return pool_costs.costs


@cache
def grid_of(costs: Costs, joint_apart: bool) -> StepGrid:
    return step_grid(
        costs.arch,
        costs.pricer,
        Shards.of(*SHAPE),
        costs.engine,
        most_sequences=16,
        longest_tokens=ISL + OSL,
        chunk_tokens=CHUNK,
        joint_apart=joint_apart,
    )


@pytest.mark.parametrize("joint_apart", [False, True])
def test_tables_of_several_shapes_are_those_of_each_alone(costs: Costs, joint_apart: bool) -> None:
    assert isinstance(costs.pricer, Roofline)
    pricer = replace(costs.pricer, near=NearRuns(OWN, 2.0, (1000.0, 200.0)))
    shapes = [Shards.of(*shape) for shape in SHAPES]
    axes: GridAxes = {"most_sequences": 8, "longest_tokens": 600, "chunk_tokens": 256}
    joined = Shards.joined(shapes)
    together = step_grids(costs.arch, pricer, joined, costs.engine, joint_apart=joint_apart, **axes)
    for grid, shards in zip(together, shapes, strict=True):
        own = step_grid(costs.arch, pricer, shards, costs.engine, joint_apart=joint_apart, **axes)
        for field in fields(StepGrid):
            assert getattr(grid, field.name) == pytest.approx(getattr(own, field.name), rel=1e-12)
    assert together[0].mixed_s[1:] != pytest.approx(together[1].mixed_s[1:], rel=0.01)


def test_own_runs_tell_as_much_of_shapes_on_any_axes() -> None:
    near, each = NearRuns(OWN, 2.0, (1000.0, 200.0)), [Shards.of(*shape) for shape in (*SHAPES, SHAPE)]
    shards = Shards.joined(each)
    longer = near.longer(shards)
    assert near.longer(shards.reshaped(2, 2)) == pytest.approx(longer.reshape(2, 2), rel=1e-12)
    assert near.longer(shards.reshaped(4, 1, 1)) == pytest.approx(longer[:, None, None], rel=1e-12)
    assert longer == pytest.approx(np.concatenate([near.longer(own) for own in each]), rel=1e-12)
    assert np.ptp(longer) > 0.01
    alike = shards.take(np.zeros(6, dtype=np.intp)).reshaped(3, 2)
    assert near.longer(alike) == pytest.approx(np.full((3, 2), longer[0]), rel=1e-12)


def test_equal_ranks_take_as_long_as_where_nothing_stands_apart(costs: Costs) -> None:
    whole, apart = (grid_of(costs, joint_apart) for joint_apart in (False, True))
    tokens = (whole.batches[:, None] + whole.tokens)[:, None, :, None]
    joined = apart.mixed_s + np.interp(tokens, apart.rank_tokens, apart.joint_s)
    joined[:, :, 1:] = np.maximum(joined, np.interp(tokens, apart.rank_tokens, apart.least_s))[:, :, 1:]
    assert joined[1:, ..., 1:] == pytest.approx(whole.mixed_s[1:, ..., 1:], rel=0.04)
    assert joined[1:] == pytest.approx(whole.mixed_s[1:], rel=0.12)  # hundreds of prompts in a step cost the host more
    assert apart.least_s.max() > 0.0


@pytest.mark.parametrize("batch", [4, 16])
def test_steady_state_of_ranks_that_wait_for_each_other_is_that_of_a_run(costs: Costs, batch: int) -> None:
    unit, shards = np.ones(1), Shards.of(*SHAPE)
    context = unit * (ISL + OSL / 2)
    decode_s = decode_step(costs, shards, batch * unit, context).seconds
    prefill = prefill_mixed(costs, shards, ISL * unit, OSL * unit, CHUNK * unit, batch * unit, context, decode_s)
    ranks = ranks_in_step(costs.arch, shards.dp)
    tpot_s = colocated_tpot_s(decode_s, prefill.stretch_s, prefill.steps, batch * unit, OSL * unit, ranks)[0]
    engine = Instance(grid_of(costs, True), 10**6, token_budget=CHUNK, most_sequences=batch)
    clients = batch * RANKS
    outputs = np.full(8 * clients, OSL)
    outputs[:clients] = np.random.default_rng(0).integers(1, OSL + 1, clients)
    load = Requests.closed_loop(np.full(8 * clients, ISL), outputs, clients=clients)
    result = simulate(Fleet((engine,) * RANKS, groups=(RANKS,)), load)
    settled = slice(2 * clients, 7 * clients)
    assert tpot_s == pytest.approx(float(np.mean(result.tpot_s[settled])), rel=0.04)
    assert 0.99 < float(np.mean(result.ttft_s[settled])) / prefill.latency_s[0] < 1.12  # a few wait for another prompt
    alone_s = colocated_tpot_s(decode_s, prefill.stretch_s, prefill.steps, batch * unit, OSL * unit, unit)[0]
    assert tpot_s > 1.2 * alone_s


def test_a_rank_beside_idle_ones_is_faster_than_beside_equals_and_no_faster_than_the_bound(costs: Costs) -> None:
    grid = grid_of(costs, True)
    grid = replace(grid, least_s=np.zeros_like(grid.least_s))
    engine = Instance(grid, 10**6, token_budget=CHUNK, most_sequences=16)
    fleet = Fleet((engine,) * RANKS, groups=(RANKS,), routing="round-robin")

    def first_s(prompts: int) -> float:
        return float(simulate(fleet, Requests.open_stream(np.zeros(prompts), np.full(prompts, ISL), 1)).ttft_s[0])

    alone_s, beside_s = first_s(1), first_s(RANKS)
    assert alone_s < beside_s == pytest.approx(grid.prefill_s(ISL, (ISL + 1) / 2))
    least = least_grid(grid, RANKS)
    assert least.prefill_s(ISL, (ISL + 1) / 2) <= alone_s


def test_steps_are_priced_at_the_sequences_that_they_have_not_at_those_that_pad_their_graph(costs: Costs) -> None:
    decode_s_B = grid_of(costs, False).decode_s[:, -1]
    assert np.all(np.diff(decode_s_B[1:17]) > 0.0)

"""Tables of what to recompute at each input size: as good as trying all, within memory, ahead of one set for all."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
from train_problems import job, problem

from planner.costs.operators.recompute import BY_OPERATOR
from planner.costs.training.config import RecomputeConfig, Schedule
from planner.errors import PlannerError
from planner.kinds.train.evaluation.choice import PlanChoice
from planner.kinds.train.evaluation.choice_layouts import even_layers
from planner.kinds.train.evaluation.evaluate import evaluate
from planner.kinds.train.evaluation.evaluation import Evaluation
from planner.kinds.train.space.mean_table import sized
from planner.kinds.train.space.states import ShardShape
from planner.kinds.train.space.tables import CostTable, sharing_of
from planner.kinds.train.whole_run.recompute_table import (
    WHOLE,
    RecomputeTable,
    SizeRow,
    options,
    recompute_table,
)

SIZES = (2048, 8192, 16384, 24576, 32768)


def _plan(
    model: str,
    shape: ShardShape,
    dp: int,
    pp: int = 1,
    vpp: int = 1,
    num_layers: int = 0,
    recompute: tuple[str, ...] | None = None,
) -> Evaluation:
    """A plan for sequences of 32,768 tokens that recomputes all layers."""
    asked = problem(
        model,
        nodes=8,
        global_batch=256,
        sequence_tokens=SIZES[-1],
        memory_utilisation=0.94,
        search={"recompute": recompute},
    )
    asked_job = job(asked)
    if num_layers:
        asked_job = replace(asked_job, arch=replace(asked_job.arch, layers=asked_job.arch.layers[:num_layers]))
    table = CostTable(asked_job, shape)
    schedule: Schedule = "interleaved" if vpp > 1 else "1f1b"
    sharing = sharing_of(table, dp, 1, frozenset())
    choice = PlanChoice(table, sharing, pp, dp, schedule, vpp, 1, frozenset(), table.modes[-1])
    counts = even_layers(asked_job.arch.num_layers, pp * vpp)
    assert counts is not None
    return evaluate(choice, counts)


@cache
def dense() -> Evaluation:
    return _plan("meta-llama/Llama-3.1-8B", ShardShape(2, 1, 1, 1, 1), dp=4)


@cache
def moe() -> Evaluation:
    return _plan("Qwen/Qwen3-30B-A3B", ShardShape(1, 1, 8, 1, 1), dp=32)


@cache
def pipeline() -> Evaluation:
    return _plan("meta-llama/Llama-3.1-70B", ShardShape(8, 1, 1, 1, 1), dp=4, pp=2)


@cache
def rounds() -> Evaluation:
    return _plan("meta-llama/Llama-3.1-70B", ShardShape(8, 1, 1, 1, 1), dp=4, pp=2, vpp=4)


PLANS = [dense, moe, pipeline, rounds]  # made by the first test that asks, not by every process that collects


def _bytes(plan: Evaluation, row: SizeRow, longest: SizeRow) -> float:
    """What the rank holds, its layers counted one by one, with all in flight of one size and what the longest needs."""
    memory, rates = plan.memory, plan.choice.table.job.rates
    again = max(_again(plan.choice.table, names) for names in longest.layers_of_set)
    work = plan.choice.table.work(1, RecomputeConfig())
    at_work = work.layer_bytes + again
    if row.rank == plan.choice.pp - 1:
        at_work = max(at_work, work.loss_bytes)
    fixed = float(memory.state_R[row.rank]) + rates.get("memory.context_bytes") + at_work
    table = sized(plan.choice.table, row.tokens)
    depth = float(plan.choice.pipe.peak_R[row.rank])
    return fixed + depth * sum(options(table, kind)[names][1] * layers for kind, names, layers in row.sets)


def _again(table: CostTable, names: tuple[str, ...]) -> float:
    """What a layer that recomputes this set takes while it does, beside what it keeps."""
    return max(kept.total_bytes - kept.input_bytes for kept in table.activations) if names == (WHOLE,) else 0.0


@pytest.mark.parametrize("plan", PLANS)
def test_no_row_exceeds_memory_and_each_counts_every_layer(plan: Callable[[], Evaluation]) -> None:
    evaluation = plan()
    table = recompute_table(evaluation, SIZES)
    assert len(table.rows) == len(SIZES) * evaluation.choice.pp
    longest = {row.rank: row for row in table.rows if row.tokens == SIZES[-1]}
    for row in table.rows:
        assert row.bytes <= row.capacity_bytes * (1 + 1e-9)
        assert row.bytes == pytest.approx(_bytes(evaluation, row, longest[row.rank]), rel=1e-9)
        assert sum(row.layers_of_set.values()) == evaluation.choice.table.job.arch.num_layers // evaluation.choice.pp


def test_what_moves_to_the_host_has_room_there_at_every_length() -> None:
    """Half of the activations of the longest: shorter ones have room, and recompute nothing."""
    plan = dense()
    table, moved = plan.choice.table, frozenset({"activations"})
    room = plan.choice.table.job.arch.num_layers * table.activations[0].total_bytes / 2.0
    node = replace(table.job.machine.node, host_memory_bytes=room * 8 * 1.5)
    less = replace(table.job, machine=replace(table.job.machine, node=node))
    hosted = replace(plan, choice=replace(plan.choice, table=CostTable(less, table.shape), offload=moved))
    for row in recompute_table(hosted, SIZES).rows:
        own = options(sized(table, row.tokens), 0)
        used = sum(own[names][1] * layers for _, names, layers in row.sets)
        assert used <= room
        assert (row.recompute_s > 0.0) is (row.tokens > SIZES[-1] / 2)


@pytest.mark.parametrize("model", ["meta-llama/Llama-3.1-8B", "Qwen/Qwen3-30B-A3B"])
@pytest.mark.parametrize("tokens", [8192, 32768])
def test_every_row_is_that_of_trying_all_sets(model: str, tokens: int) -> None:
    """On four layers, within the room that would hold half of the activations of the longest."""
    plan = _plan(model, ShardShape(1, 1, 1, 1, 1), dp=8, num_layers=4)
    table = plan.choice.table
    work = table.work(1, RecomputeConfig())
    plain = float(plan.memory.state_R[0]) + table.job.rates.get("memory.context_bytes")
    capacity = plain + work.on_last_bytes + 2.0 * table.activations[0].total_bytes
    job_of_less = replace(table.job, machine=replace(table.job.machine, memory_bytes=capacity / 0.94))
    less = replace(plan, choice=replace(plan.choice, table=CostTable(job_of_less, table.shape)))

    def best(size: int, level: float) -> float | None:
        able = options(sized(table, size), 0)
        reserve = max(work.layer_bytes + level, work.loss_bytes)
        chosen = (
            chosen
            for chosen in itertools.combinations_with_replacement(able, 4)
            if max(_again(table, names) for names in chosen) <= level
            and plain + reserve + sum(able[names][1] for names in chosen) <= capacity
        )
        return min((sum(able[names][0] for names in sets) for sets in chosen), default=None)

    levels = {_again(table, names) for names in options(table, 0)}
    of_longest = {level: best(32768, level) for level in levels}
    level = min((seconds, level) for level, seconds in of_longest.items() if seconds is not None)[1]
    rows = {row.tokens: row for row in recompute_table(less, [tokens, 32768]).rows}
    assert rows[tokens].recompute_s == pytest.approx(best(tokens, level), rel=1e-9)


@pytest.mark.parametrize("plan", PLANS)
def test_the_table_is_never_slower_than_the_set_of_the_longest_input(plan: Callable[[], Evaluation]) -> None:
    table = recompute_table(plan(), SIZES)
    assert (table.table_NR <= table.static_NR * (1 + 1e-9)).all()
    assert table.table_NR[-1] == pytest.approx(table.static_NR[-1])
    assert table.gain([16, 8, 4, 2, 1]) > 0.05
    assert table.gain([0, 0, 0, 0, 1]) == pytest.approx(0.0)


def test_the_longest_input_takes_no_longer_than_the_plan_with_one_set() -> None:
    table = recompute_table(dense(), SIZES)
    assert table.step_s([0, 0, 0, 0, 1]) <= dense().step_s


def test_short_inputs_recompute_nothing_and_longer_ones_never_less() -> None:
    table = recompute_table(dense(), SIZES)
    assert table.rows[0].layers_of_set == {(): 32}
    again = [row.recompute_s / row.tokens for row in table.rows]
    assert again == sorted(again)


def test_ways_to_recompute_that_the_problem_leaves_out_are_left_out() -> None:
    plan = _plan("meta-llama/Llama-3.1-8B", ShardShape(2, 1, 1, 1, 1), dp=4, recompute=("none", "full"))
    rows: RecomputeTable = recompute_table(plan, SIZES)
    assert {names for row in rows.rows for names in row.layers_of_set} <= {(), (WHOLE,)}


def test_engines_that_recompute_by_operator_have_their_policy_in_place_of_modules() -> None:
    data = {**problem("meta-llama/Llama-3.1-8B"), "engine": {"name": "torchtitan"}}
    sets = options(CostTable(job(data), ShardShape(1, 1, 1, 1, 1)), 0)
    assert set(sets) == {(), (BY_OPERATOR,), (WHOLE,)}
    assert sets[()][0] == 0.0 < sets[(BY_OPERATOR,)][0] < sets[(WHOLE,)][0]
    assert sets[()][1] > sets[(BY_OPERATOR,)][1] > sets[(WHOLE,)][1]


def test_inputs_that_fit_under_no_set_are_refused() -> None:
    with pytest.raises(PlannerError, match=r"sequences of 262144 tokens leave .* GB for activations"):
        recompute_table(dense(), [2048, 262144])

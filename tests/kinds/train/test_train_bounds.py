"""Bounds of the search against all layouts of small pipelines: never above, and tight where they can be reached."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from train_problems import job, problem, recomputations

from planner.costs.training.config import RecomputeConfig, Schedule
from planner.costs.training.zero_overlap import beside, each_micro_batch, exposed_s, lost_share
from planner.kinds.train.evaluation.choice import PlanChoice
from planner.kinds.train.evaluation.evaluate import evaluate, shown
from planner.kinds.train.evaluation.stages import stage_costs
from planner.kinds.train.pools.speeds import PoolFloor, pool_floor
from planner.kinds.train.search.bounds import Floor, floor_s
from planner.kinds.train.space.contexts import undominated, undominated_rows
from planner.kinds.train.space.distinct import distinct
from planner.kinds.train.space.space import space_of
from planner.kinds.train.space.states import ShardShape
from planner.kinds.train.space.tables import CostTable, RecomputeMode, sharing_of

JOB = job(problem(global_batch=32, reduce_gradients="bf16"))
SMALL = replace(JOB, arch=replace(JOB.arch, layers=JOB.arch.layers[:9]))
TABLE = CostTable(SMALL, ShardShape(2, 1, 1, 1, 1))


def _choice(
    pp: int, dp: int, *, zero: int = 1, schedule: Schedule = "1f1b", mode: RecomputeMode | None = None, full: int = 0
) -> PlanChoice:
    plain = TABLE.mode(RecomputeConfig())
    sharing = sharing_of(TABLE, dp, zero, frozenset())
    return PlanChoice(TABLE, sharing, pp, dp, schedule, 1, zero, frozenset(), mode or plain, full)


def _cuts(layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    """Every way to cut layers into stages; those at the ends may be empty."""
    for edges in combinations(range(layers + stages + 1), stages - 1):
        edges_with_ends = (-1, *edges, layers + stages - 1)
        counts = tuple(b - a - 1 for a, b in pairwise(edges_with_ends))
        if min(counts) >= 0 and all(counts[1:-1]):
            yield counts


@pytest.mark.parametrize("pp", [1, 2, 3, 4])
@pytest.mark.parametrize("again", ["nothing", "all", "two layers of a stage"])
def test_the_slowest_rank_of_the_best_layout_takes_no_less_than_its_floor_and_little_more(pp: int, again: str) -> None:
    mode = TABLE.mode(RecomputeConfig("full")) if again == "all" else None
    full = 2 if again.startswith("two") else 0
    choice = _choice(pp, 1, mode=mode, full=full)
    cuts = [(9,)] if pp == 1 else [cut for cut in _cuts(9, pp) if min(cut) >= full]
    slowest_s = min(float(stage_costs(choice, cut).pass_S3.sum(axis=1).max()) for cut in cuts)
    floor = Floor(TABLE, pp, mode, full)
    assert floor.slowest_s <= slowest_s * (1 + 1e-12)
    assert floor.slowest_s >= (0.93 if len(cuts) > 10 or pp == 1 else 0.7) * slowest_s  # few cuts leave little choice
    work_s = float(stage_costs(choice, cuts[0]).pass_S3.sum())
    assert floor.work_s == pytest.approx(work_s, rel=1e-12)
    paired = replace(floor, paired=True)
    assert paired.slowest_s == pytest.approx(work_s / pp, rel=1e-12)


def test_the_forward_share_is_the_largest_of_any_layer_or_end() -> None:
    floor = Floor(TABLE, 2)
    passes = [*TABLE.pass_K3.tolist(), TABLE.first.pass_s, TABLE.last.pass_s]
    assert floor.forward_share == max(forward / (forward + back + weight) for forward, back, weight in passes)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_on_one_rank_the_floor_is_the_step_itself(zero: int) -> None:
    choice = _choice(1, 8, zero=zero)
    step_s = evaluate(choice, (9,)).step_s
    bound_s = floor_s(choice, Floor(TABLE, 1))
    assert bound_s <= step_s * (1 + 1e-12)
    assert bound_s >= (0.9 if zero < 3 else 1 - 1e-9) * step_s  # exchanges once a step count with their tail


@pytest.mark.parametrize("schedule", ["1f1b", "zb_h1", "dualpipe"])
@pytest.mark.parametrize("zero", [1, 2, 3])
def test_the_floor_of_a_pipeline_is_near_the_step_of_its_best_layout(schedule: Schedule, zero: int) -> None:
    choice = _choice(2, 4, zero=zero, schedule=schedule)
    step_s = min(evaluate(choice, cut).step_s for cut in _cuts(9, 2) if min(cut) > 1)
    bound_s = floor_s(choice, Floor(TABLE, 2, paired=schedule == "dualpipe"))
    assert 0.7 * step_s <= bound_s <= step_s * (1 + 1e-12)


@pytest.mark.parametrize("model", ["meta-llama/Llama-3.1-8B", "Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-V2-Lite"])
def test_every_set_of_modules_is_as_bad_as_one_that_is_tried_and_none_of_these_is_as_bad_as_another(model: str) -> None:
    own = job(problem(model))
    table = CostTable(own, ShardShape(1, 1, 1, 1, 1))
    counts = np.array(own.count_of_kind)

    def figures(mode: RecomputeMode) -> tuple[float, float]:
        return float(counts @ mode.extra_s), float(counts @ mode.in_flight_bytes)

    tried = [figures(mode) for mode in table.modes]
    every = [figures(mode) for mode, whole in recomputations(table, 1) if not whole]
    close = 1 + 1e-8
    assert all(any(s <= extra * close and b <= resident * close for s, b in tried) for extra, resident in every)
    assert all(a[0] < b[0] and a[1] > b[1] for a, b in pairwise(tried))
    assert set(tried) <= set(every)


def test_rows_that_another_beats_are_left_out_and_the_first_of_equal_ones_stays() -> None:
    rows = [(2.0, 2.0), (1.0, 3.0), (2.0, 1.0), (1.0, 3.0), (2.0, 2.0), (3.0, 3.0)]
    assert undominated_rows([np.array(row) for row in rows]) == [False, True, True, False, False, False]


@pytest.mark.parametrize(
    ("seconds", "kept"), [([(1.0, 2.0)], {"ring"}), ([(1.0, 2.0), (2.0, 1.0)], {"ring", "all_gather"})]
)
def test_a_method_is_left_out_that_another_beats_everywhere(seconds: list[tuple[float, float]], kept: set[str]) -> None:
    search = {"tp": 1, "cp": 2, "pp": 1, "micro_batch": 1, "context_parallel": ["ring", "all_gather"]}
    space = space_of(job(problem(global_batch=8, search=search)))

    def tables(shape: ShardShape) -> list[Any]:
        method = ("ring", "all_gather").index(shape.context)
        return [
            SimpleNamespace(layers=(), pass_K3=np.full((1, 3), pool[method]), gathered_kv_bytes=0.0) for pool in seconds
        ]

    assert {space.shape(node).context for node in np.flatnonzero(undominated(space, tables)).tolist()} == kept


def test_a_joined_pass_hides_exchange_behind_products_on_fewer_multiprocessors() -> None:
    """A forward pass beside a backward one saves all but the longer of the two; 20 of 132 multiprocessors exchange."""
    own = job(problem("Qwen/Qwen3-30B-A3B", nodes=4))
    table = CostTable(own, ShardShape(1, 1, 16, 1, 1))
    sharing = sharing_of(table, 16, 1, frozenset())
    choice = PlanChoice(table, sharing, 2, 16, "dualpipe", 1, 1, frozenset(), table.mode(RecomputeConfig()))
    costs = stage_costs(choice, (24, 24))
    exchange_s = 24 * table.layers[0].exchange_s["ep"]
    for (forward_s, *backward_s), joined_s in zip(costs.pass_S3.tolist(), costs.joined_S.tolist(), strict=True):
        both_s = forward_s + sum(backward_s)
        assert joined_s == pytest.approx(min(both_s - max(exchange_s, (both_s - exchange_s) * 132 / 112), forward_s))
        assert 0.0 < joined_s < forward_s
    unjoined = replace(choice, schedule="zb_h1")
    floor = Floor(table, 2, paired=True)
    saved_s = floor_s(unjoined, floor) - floor_s(choice, floor)
    assert saved_s == pytest.approx(4 * 2.0 * exchange_s)  # 4 micro-batches of a rank with twice the mean of experts


def test_what_overlaps_no_pass_shows_whole_once_a_step_and_not_at_all_where_it_goes_with_micro_batches() -> None:
    gather, reduce, passes = np.array([3.0]), np.array([5.0]), np.array([[1.0, 1.0, 1.0]])
    own = job(problem(overlap=[]))
    wanted = {(0, 4): 8.0, (1, 4): 8.0, (2, 1): 8.0, (2, 4): 3.0, (3, 4): 0.0}
    assert {case: float(shown(own, *case, gather, reduce, passes)[0]) for case in wanted} == wanted
    behind = job(problem(overlap=["grad_reduce"]))
    tail, room = behind.rates.get("dp.tail"), behind.rates.get("dp.room")
    left_s = 3.0 + tail * 5.0 + max((1.0 - tail) * 5.0 - room * 2.0, 0.0)
    assert float(shown(behind, 1, 4, gather, reduce, passes)[0]) == pytest.approx(left_s)


def test_passes_wait_for_the_longer_of_work_and_exchange_and_lose_a_share_of_the_shorter() -> None:
    passes = np.array([[4.0, 3.0, 2.0], [1.0, 1.0, 1.0]])
    gather, reduce = np.array([1.0, 3.0]), np.array([2.0, 4.0])
    assert beside(passes, gather, reduce, 0.5).tolist() == [[4.5, 6.5 - 2.0, 2.0], [3.5, 8.0 - 1.0, 1.0]]
    assert beside(passes, gather, reduce, 1.0).sum() == pytest.approx(passes.sum() + 2 * gather.sum() + reduce.sum())


def test_an_exchange_once_a_step_shows_its_tail_and_what_its_pass_has_no_room_for() -> None:
    tail, room = JOB.rates.get("dp.tail"), JOB.rates.get("dp.room")
    moved, passes = np.array([1.0, 1.0]), np.array([10.0 / room, 0.5 * (1 - tail) / room])
    assert exposed_s(moved, passes, JOB.rates).tolist() == pytest.approx([tail, tail + 0.5 * (1 - tail)])


def test_gradients_go_behind_every_micro_batch_where_they_are_sharded() -> None:
    wanted = {(0, 8): False, (1, 8): False, (2, 1): False, (2, 2): True, (3, 1): True}
    assert {case: each_micro_batch(*case) for case in wanted} == wanted


@pytest.mark.parametrize(
    ("overlap", "zero", "hidden"),
    [
        (("grad_reduce", "param_gather"), 3, True),
        (("grad_reduce",), 3, False),
        (("grad_reduce",), 2, True),
        (("param_gather",), 2, False),
    ],
)
def test_exchanges_are_hidden_where_all_of_them_overlap(overlap: tuple[str, ...], zero: int, hidden: bool) -> None:
    assert lost_share(JOB.rates, overlap, zero) == (JOB.rates.get("contention.zero3") if hidden else 1.0)


def test_the_pipelines_of_a_pool_fill_and_drain_beside_their_slowest_rank() -> None:
    """Work of 12 s, 3 s on the slowest of four ranks and half a second of hand-overs, a third of it forward."""
    floor: Any = SimpleNamespace(slowest_s=3.0, work_s=12.0, forward_share=1 / 3)
    four, alone, other = _choice(4, 1), _choice(1, 1), _choice(4, 1, schedule="zb_h1")
    assert pool_floor(four, floor, 0.5) == PoolFloor(3.5, 12.0 - 2.0 * 3.5, 2.0)
    assert pool_floor(four, floor, 4.0) == PoolFloor(7.0, 0.0, 2.0)
    assert pool_floor(alone, floor, 0.0) == pool_floor(other, floor, 0.0) == PoolFloor(3.0)


@given(st.integers(0, 30), st.integers(1, 4), st.integers(0, 2**16))
def test_distinct_combinations_are_those_of_a_sort_of_rows(number: int, columns: int, seed: int) -> None:
    rows = np.random.default_rng(seed).integers(0, 5, (columns, number))
    kinds, place = distinct(*rows)
    assert (kinds[:, place] == rows).all()
    assert [tuple(kind) for kind in kinds.T.tolist()] == sorted({tuple(row) for row in rows.T.tolist()})

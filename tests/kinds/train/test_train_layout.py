"""Layers dealt to ranks and stages: the slowest rank as fast as can be, nothing lost, ends relieved."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from train_problems import every_candidate, job, problem

from planner.costs.training.flops import model_flop_per_token
from planner.costs.training.optimizers.host import HELD_SHARE
from planner.kinds.train.evaluation.choice_layouts import lay_out
from planner.kinds.train.evaluation.evaluate import evaluate
from planner.kinds.train.evaluation.evaluation import fits
from planner.kinds.train.evaluation.layout import (
    LayoutProblem,
    cut_layers,
    deal_layers,
    least_layers,
    spread_over_stages,
)
from planner.kinds.train.space.tables import CostTable
from planner.models.library import find_model
from planner.solvers.partition import SecondMemory
from planner.solvers.schedules.pipeline import stages_of_ranks


@settings(max_examples=120, deadline=None)
@given(st.integers(1, 3), st.integers(1, 7), st.data())
def test_dealt_layers_make_the_slowest_rank_as_fast_as_any_deal_does(
    ranks: int, layers: int, data: st.DataObject
) -> None:
    def drawn(high: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        return np.array(data.draw(st.lists(st.integers(0, high), min_size=ranks, max_size=ranks)), dtype=np.float64)

    more, room, depth = drawn(3), drawn(20), drawn(3)
    each = np.array(data.draw(st.lists(st.integers(1, 3), min_size=ranks, max_size=ranks)), dtype=np.float64)
    one_L, host_room = np.ones(layers), drawn(20) if data.draw(st.booleans()) else np.full(ranks, np.inf)
    host = SecondMemory(one_L, 2.0 * one_L, host_room)
    load = LayoutProblem(np.repeat(each[:, None], layers, axis=1), one_L, one_L, more, room, depth, host)
    least = tuple(data.draw(st.lists(st.integers(0, 1), min_size=ranks, max_size=ranks)))
    dealt = deal_layers(load, least)
    legal = [
        counts
        for counts in product(range(layers + 1), repeat=ranks)
        if sum(counts) == layers
        and all(count >= low for count, low in zip(counts, least, strict=True))
        and all(count * (1 + d) <= r + 1e-9 for count, d, r in zip(counts, depth, room, strict=True))
        and all(count * (2 + d) <= r + 1e-9 for count, d, r in zip(counts, depth, host_room, strict=True))
    ]

    def slowest(counts: tuple[int, ...]) -> float:
        return max(float(t * count + e) for count, e, t in zip(counts, more, each, strict=True))

    assert (dealt is None) == (not legal)
    if dealt is not None:
        assert dealt in legal
        assert slowest(dealt) == pytest.approx(min(map(slowest, legal)))


@pytest.mark.parametrize("moved", [("optimizer",), ("optimizer", "activations")])
def test_hosts_with_little_room_get_another_layout_where_one_fits(moved: tuple[str, ...]) -> None:
    """The fastest of all cuts whose hosts and devices have room, where the fastest of all overfills a host."""
    search = {"tp": 2, "pp": 2, "cp": 1, "micro_batch": 1, "zero_stage": 1, "schedule": "1f1b", "recompute": "none"}
    plain = job(problem(nodes=1, search={**search, "offload": moved}, memory_utilisation=0.5))
    wide = next(each for each in every_candidate(plain) if each.offload == frozenset(moved))
    fastest = lay_out(wide)
    assert fastest is not None
    need = float(evaluate(wide, fastest).memory.host_R.max())
    node = replace(plain.machine.node, host_memory_bytes=0.99 * need * 8 / HELD_SHARE)
    less = replace(plain, machine=replace(plain.machine, node=node))
    tight = replace(wide, table=CostTable(less, wide.table.shape))
    cuts = [(first, less.arch.num_layers - first) for first in range(1, less.arch.num_layers)]
    able = {counts: each.step_s for counts in cuts if fits(each := evaluate(tight, counts))}
    assert fastest not in able
    assert lay_out(tight) == min(able, key=lambda counts: able[counts])


@pytest.mark.parametrize(("schedule", "ranks", "chunks"), [("interleaved", 4, 3), ("zb_v", 4, 2), ("dualpipe", 4, 1)])
def test_stages_share_out_what_their_rank_has_and_ends_get_no_more_than_others(
    schedule: str, ranks: int, chunks: int
) -> None:
    units = tuple(dict.fromkeys(stages_of_ranks(schedule, ranks, chunks)))
    counts = tuple(7 + unit % 2 for unit in range(len(units)))
    stages = spread_over_stages(counts, units)
    assert sum(stages) == sum(counts)
    for count, unit in zip(counts, units, strict=True):
        layers = [stages[stage] for stage in unit]
        assert sum(layers) == count
        assert max(layers) - min(layers) <= 1
    for end in (0, len(stages) - 1):
        (unit,) = (unit for unit in units if end in unit)
        inner = [stages[stage] for stage in unit if stage not in (0, len(stages) - 1)]
        assert stages[end] <= min(inner, default=stages[end])
    assert least_layers(units)[0] <= len(units[0])


def test_operations_of_gpt_3_are_those_of_the_published_formula() -> None:
    """72 L h^2 (1 + s / 6h + V / 12 h L) a token without recomputation (arXiv:2104.04473, appendix)."""
    L, h, s, V = 96, 12288, 2048, 50257
    wanted = 72 * L * h * h * (1 + s / (6 * h) + V / (12 * h * L))
    assert model_flop_per_token(find_model("openai/gpt-3-175b"), s) == pytest.approx(wanted, rel=2e-3)


def test_of_two_ranks_either_may_be_left_without_layers_where_ends_are_long() -> None:
    for more, empty, full in (([0.0, 9.0], (3, 0), (2, 1)), ([9.0, 0.0], (0, 3), (1, 2))):
        load = LayoutProblem(np.ones((2, 3)), np.ones(3), np.ones(3), np.array(more), np.full(2, 99.0), np.ones(2))
        assert cut_layers(load, first_may_be_empty=True) == empty
        assert cut_layers(load) == full

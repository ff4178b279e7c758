"""Experts that lie by number or by load: the fullest rank, what it costs, and the memory of copies."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.arrays import Floats, Ints
from planner.costs.operators.balanced import DRIFT, balanced_rank, copied, fullest_rows, packed, placed_rank
from planner.costs.operators.kernels import Experts, demand
from planner.costs.operators.work import Shards
from planner.costs.rates.calibration import Efficiencies
from planner.costs.rates.roofline import Roofline
from planner.costs.serving.attention_ffn import ffn_weight_bytes
from planner.costs.serving.memory import footprint, weight_bytes
from planner.models.library import find_model
from planner.plan.records import BY_NUMBER

ONE = np.ones(1)
CONCENTRATION = 1.74
LAYOUTS = [(256, 16, 32), (256, 32, 0), (256, 64, 0), (256, 128, 128), (256, 144, 32), (128, 64, 64), (48, 16, 0)]
"""Experts, ranks, redundant experts."""


def eplb(load_E: Floats, slots: int, ranks: int) -> Floats:
    """Loads [R] of ranks under EPLB's global policy, by its definition: copies one by one, then slots one by one."""
    copies_E: Ints = np.ones(len(load_E), np.int64)
    for _ in range(slots - len(load_E)):
        copies_E[np.argmax(load_E / copies_E)] += 1
    load_R, held_R = np.zeros(ranks), np.zeros(ranks, np.int64)
    for load in -np.sort(-np.repeat(load_E / copies_E, copies_E)):
        lightest = np.argmin(np.where(held_R < slots // ranks, load_R, np.inf))
        load_R[lightest] += load
        held_R[lightest] += 1
    return load_R


def arrays(ranks: int, copies: int) -> tuple[Floats, Floats]:
    return ranks * ONE, copies * ONE


@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 2), st.randoms(use_true_random=False))
def test_copies_and_packing_are_those_of_eplb(ranks: int, each: int, more: int, draw: random.Random) -> None:
    loads = tuple(draw.random() + 0.01 for _ in range(ranks * each))
    slots = len(loads) + more * ranks
    ours = packed(copied(loads, slots), ranks)
    assert sorted(ours) == pytest.approx(sorted(eplb(np.array(loads), slots, ranks)))


@pytest.mark.parametrize(("experts", "ranks", "copies"), LAYOUTS)
def test_experts_at_their_quantiles_meet_the_mean_of_drawn_loads(experts: int, ranks: int, copies: int) -> None:
    draw = np.random.default_rng(1)
    drawn = [eplb(draw.gamma(CONCENTRATION, size=experts), experts + copies, ranks) for _ in range(20)]
    wanted = np.mean([load_R.max() / load_R.mean() for load_R in drawn])
    assert balanced_rank(CONCENTRATION, experts, *arrays(ranks, copies))[0] == pytest.approx(wanted, rel=0.1)


@pytest.mark.parametrize(("experts", "ranks", "copies"), [(256, 16, 0), (256, 32, 32), (128, 16, 16)])
def test_loads_that_move_meet_the_mean_of_drawn_moves(experts: int, ranks: int, copies: int) -> None:
    """Experts are placed by gamma loads, and then serve these and normal ones of DRIFT of their variance."""
    draw, shares = np.random.default_rng(2), []
    slots = experts + copies
    for _ in range(40):
        load_E = draw.gamma(CONCENTRATION, size=experts) / CONCENTRATION
        copies_E = np.ones(experts, np.int64)
        for _ in range(copies):
            copies_E[np.argmax(load_E / copies_E)] += 1
        moved = draw.normal(scale=(DRIFT / CONCENTRATION) ** 0.5, size=experts)
        order = np.argsort(-np.repeat(load_E / copies_E, copies_E), kind="stable")
        expert_P = np.repeat(np.arange(experts), copies_E)[order]
        load_R, now_R, held_R = np.zeros(ranks), np.zeros(ranks), np.zeros(ranks)
        for expert in expert_P:
            lightest = np.argmin(np.where(held_R < slots // ranks, load_R, np.inf))
            load_R[lightest] += load_E[expert] / copies_E[expert]
            now_R[lightest] += (load_E[expert] + moved[expert]) / copies_E[expert]
            held_R[lightest] += 1
        shares.append(now_R.max() / now_R.mean())
    assert placed_rank(CONCENTRATION, experts, *arrays(ranks, copies))[0] == pytest.approx(np.mean(shares), rel=0.05)


@given(st.sampled_from([64, 128, 256]), st.sampled_from([1, 2, 8, 16, 32, 64]), st.integers(0, 2), st.floats(0.5, 20.0))
def test_placing_by_load_is_never_worse_than_by_number(
    experts: int, ranks: int, each: int, concentration: float
) -> None:
    ep, copies = arrays(ranks, each * ranks)
    placed, number = fullest_rows(concentration, experts, ep, copies)[0], fullest_rows(concentration, experts, ep)[0]
    assert 1.0 - 1e-12 <= placed <= number
    assert number == fullest_rows(concentration, experts, ep, BY_NUMBER * ONE)[0]


def test_every_rank_waits_however_many_there_are() -> None:
    ranks = np.array([8.0, 16.0, 32.0, 64.0])
    full = fullest_rows(CONCENTRATION, 256, ranks)
    assert (np.diff(full) > 0.1).all()
    assert fullest_rows(np.inf, 256, ranks, 0.0 * ranks).tolist() == [1.0] * 4


def test_slots_that_do_not_divide_have_a_price_until_they_are_refused() -> None:
    assert balanced_rank(CONCENTRATION, 256, *arrays(32, 1))[0] >= 1.0


def test_the_price_of_many_rows_follows_the_fullest_rank(ideal: Roofline) -> None:
    known = Efficiencies(routing_concentration=CONCENTRATION)
    both = np.array([BY_NUMBER, 32.0])
    op = Experts(
        "e", 1.0, np.full(2, 1e6), np.ones(2), np.full(2, 32.0), 7168, 2048, 8, 256, True, "fp8", "fp8", redundant=both
    )
    number_s, placed_s = Roofline(ideal.accelerator, ideal.topology, known).price(op).seconds
    full = fullest_rows(CONCENTRATION, 256, op.ep, both)
    assert placed_s / number_s == pytest.approx(full[1] / full[0], rel=1e-6)


def test_few_tokens_read_the_copies_that_they_touch() -> None:
    """One token reads eight slots either way; many read all slots of a rank, copies among them."""

    def read(tokens: float, copies: float) -> float:
        op = Experts(
            "e", 1.0, tokens * ONE, ONE, 32 * ONE, 7168, 2048, 8, 256, True, "fp8", "fp8", redundant=copies * ONE
        )
        return float(demand(op).size_bytes[0])

    assert read(1.0, 32.0) == pytest.approx(read(1.0, BY_NUMBER), rel=0.02)
    weights = 3.0 * 7168 * 2048
    assert read(1e5, 32.0) - read(1e5, 0.0) == pytest.approx(weights, rel=1e-9)
    assert read(1e5, 0.0) == read(1e5, BY_NUMBER)


@pytest.mark.parametrize("copies", [0, 32, 64])
def test_copies_take_the_memory_of_experts(copies: int) -> None:
    arch = find_model("deepseek-ai/DeepSeek-V3")
    of_experts = footprint(arch).layers["experts"] / 256
    by_number, placed = (Shards.of(1, 1, 32, 1, 32, redundant=number) for number in (BY_NUMBER, copies))
    more = weight_bytes(arch, placed)[0] - weight_bytes(arch, by_number)[0]
    assert more == pytest.approx(copies / 32 * of_experts, abs=1.0)
    apart = ffn_weight_bytes(arch, placed)[0] - ffn_weight_bytes(arch, by_number)[0]
    assert apart == pytest.approx(more, rel=0.02, abs=1.0)

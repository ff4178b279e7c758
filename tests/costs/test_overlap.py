"""Exchanges hidden behind the work next to them: what holds for every shape, and a line simulated piece by piece."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from overlap import split_slowdown

from planner.arrays import Floats
from planner.costs.operators.work import Shards, Work
from planner.costs.rates.calibration import load_calibration
from planner.costs.rates.overlap import MOST_HIDDEN, flow_line_s, fused_s, halved, split_s, waves
from planner.costs.rates.roofline import Roofline
from planner.costs.rates.step import StepTime, step_time
from planner.hardware.cluster import Pool
from planner.hardware.library import find_node, known_library
from planner.models.library import find_model

SECONDS = st.floats(1e-7, 1e-1)
H100 = find_node("h100_sxm").accelerator.num_multiprocessors


def simulated_s(compute_s: float, transfer_s: float, pieces: int) -> float:
    """A line of two machines, piece after piece."""
    computed = moved = 0.0
    for _ in range(pieces):
        computed += compute_s / pieces
        moved = max(moved, computed) + transfer_s / pieces
    return moved


@given(SECONDS, SECONDS, st.integers(1, 200))
def test_the_line_takes_as_long_as_its_pieces_simulated_one_by_one(
    compute: float, transfer: float, pieces: int
) -> None:
    assert float(flow_line_s(compute, transfer, pieces)) == pytest.approx(simulated_s(compute, transfer, pieces))
    assert float(flow_line_s(transfer, compute, pieces)) == pytest.approx(simulated_s(compute, transfer, pieces))


@given(SECONDS, SECONDS, st.integers(1, 1000))
def test_a_fused_kernel_hides_no_more_than_the_cap_and_never_takes_longer(
    compute: float, transfer: float, pieces: int
) -> None:
    together = float(fused_s(compute, transfer, pieces))
    assert max(compute, transfer) * (1 - 1e-12) <= together <= (compute + transfer) * (1 + 1e-12)
    assert together >= compute + (1.0 - MOST_HIDDEN) * transfer - 1e-15


@given(SECONDS, SECONDS)
def test_one_wave_hides_nothing(compute: float, transfer: float) -> None:
    assert float(fused_s(compute, transfer, 1.0)) == pytest.approx(compute + transfer)


@given(SECONDS, SECONDS, st.integers(1, 500))
def test_more_waves_never_take_longer(compute: float, transfer: float, pieces: int) -> None:
    assert float(fused_s(compute, transfer, pieces + 1.0)) <= float(fused_s(compute, transfer, pieces)) * (1 + 1e-12)


def test_the_share_hidden_hangs_on_the_shape() -> None:
    batches = np.array([16.0, 128.0, 2048.0, 16384.0])
    compute, transfer = 2e-7 * batches, 5e-8 * batches
    shown = (fused_s(compute, transfer, waves(batches, 7168.0, H100)) - compute) / transfer
    assert shown[0] == shown[1] == pytest.approx(1.0)
    assert np.all(np.diff(shown) <= 0)
    assert shown[-1] == pytest.approx(1.0 - MOST_HIDDEN)


def test_waves_are_counted_in_tiles_over_multiprocessors() -> None:
    assert float(waves(4096.0, 6144.0, H100)) == 6.0  # 32 x 24 tiles of 128 x 256 over 132
    assert float(waves(1.0, 128.0, H100)) == 1.0


def test_an_accelerator_of_unknown_width_hides_nothing() -> None:
    assert float(waves(65536.0, 8192.0, 0)) == 1.0


def test_pieces_of_a_short_product_leave_multiprocessors_idle() -> None:
    slowdown = split_slowdown(np.array([512.0, 2048.0, 65536.0]), 4096.0, 8.0, H100)
    assert slowdown[0] == 4.0
    assert slowdown[0] > slowdown[1] >= 1.0
    assert slowdown[2] < 1.1
    assert float(split_slowdown(65536.0, 8192.0, 1.0, H100)) == 1.0


@given(SECONDS, SECONDS, st.integers(2, 16), st.floats(1.0, 4.0), st.floats(0.0, 1e-4))
def test_a_split_product_lasts_at_least_as_long_as_its_pieces(
    compute: float, transfer: float, pieces: int, slowdown: float, start: float
) -> None:
    together = float(split_s(compute, transfer, pieces, slowdown, start))
    assert together >= compute * slowdown + pieces * start - 1e-12
    assert together >= transfer + pieces * start
    assert together <= compute * slowdown + transfer + pieces * start + 1e-12


def test_small_products_lose_by_being_split_and_large_ones_gain() -> None:
    small, large = 20e-6, 5e-3
    assert float(split_s(small, small / 2, 8.0, 4.0, 5e-6)) > 1.5 * small
    assert float(split_s(large, large / 2, 8.0, 1.0, 5e-6)) < 1.1 * large


def moe_step(work: Work, micro_batches: int, gpu: str = "h100_sxm") -> StepTime:
    """Of DeepSeek-V3 on 4 nodes, a rank a GPU, experts spread over all."""
    node = find_node(gpu)
    calibration = load_calibration()
    roofline = Roofline(node.accelerator, Pool(gpu, node, 4).topology(), calibration.efficiencies)
    unit = np.ones(len(work.tokens))
    shards = Shards.of(unit, 1, 32, 1, 32, micro_batches)
    return step_time(find_model("deepseek-ai/DeepSeek-V3"), roofline, shards, work, calibration.engine("sglang"))


def exchange_s(step: StepTime) -> Floats:
    return np.asarray(step.by_operator["dispatch"] + step.by_operator["combine"])


def test_two_batches_hide_the_exchange_of_long_prompts_and_cost_short_ones() -> None:
    work = Work.prefill([64.0, 16384.0], 0.0, [1.0, 8.0])
    whole, halves = moe_step(work, 1), moe_step(work, 2)
    assert halves.seconds[0] > whole.seconds[0]
    assert whole.seconds[1] > halves.seconds[1] > whole.seconds[1] - exchange_s(whole)[1]


def test_decoding_small_batches_in_halves_reads_weights_twice() -> None:
    work = Work.decode([4.0, 512.0], 2000.0)
    whole, halves = moe_step(work, 1), moe_step(work, 2)
    assert halves.seconds[0] > 1.2 * whole.seconds[0]
    assert halves.seconds[1] < whole.seconds[1]


def test_a_step_in_halves_adds_up() -> None:
    work = Work.of([4096.0, 0.0], [2.0, 0.0], 0.0, 64.0, 2000.0)
    step = moe_step(work, 2)
    assert sum(step.by_operator.values()) == pytest.approx(step.device_s)
    assert step.by_basis.sum(axis=0) == pytest.approx(step.device_s)
    assert np.all(exchange_s(step) >= 0.0)


def test_one_token_cannot_be_cut() -> None:
    work = Work.decode([1.0], 100.0)
    assert moe_step(work, 2).seconds == moe_step(work, 1).seconds


def test_halves_hold_all_tokens_and_their_attention() -> None:
    tokens, sequences = np.array([2.0, 1000.0, 1000.0, 10500.5, 1e5]), np.array([1.0, 1.0, 2.0, 5.0, 64.0])
    work = Work.of(tokens, sequences, 300.0, 16.0, 500.0)
    half = halved(work)
    assert 2.0 * half.tokens == pytest.approx(work.tokens)

    def pairs(part: Work) -> Floats:
        each = part.prefill_tokens / part.prefill_sequences
        return part.prefill_tokens * (part.prefill_context + each / 2.0)

    assert 2.0 * pairs(half) == pytest.approx(pairs(work))


def test_every_accelerator_of_the_catalog_says_how_wide_it_is() -> None:
    assert {
        accelerator.name
        for accelerator in known_library().accelerators.values()
        if accelerator.num_multiprocessors < 50
    } == set()

"""Switches of the training costs that MegaScale's ablation turns: what each one changes, and by how much it may."""

from dataclasses import replace
from typing import Any

import pytest

from planner.costs.training.config import FRAMEWORKS, MEGATRON, TrainingConfig, machine_of
from planner.costs.training.eras import ERAS, windowed
from planner.costs.training.host_idle import READ_S, REFILL_CALLS, idle_s
from planner.costs.training.layer_costs import host_launch_s, layer_cost
from planner.costs.training.rates import default_rates
from planner.costs.training.step import step_time
from planner.hardware.library import find_node
from planner.models.library import find_model

RATES = default_rates()
CONFIG = TrainingConfig(
    find_model("openai/gpt-3-175b"), machine_of(find_node("a100_sxm")), 2048, 256, 1,
    tp=8, pp=8, vpp=6, dp=4, zero_stage=2, schedule="interleaved", overlap=frozenset(),
)  # fmt: skip


def test_a_parallel_block_exchanges_half_as_much() -> None:
    layer = CONFIG.arch.layers[0]
    serial = layer_cost(CONFIG.machine, layer, CONFIG.shard, RATES)
    parallel = replace(CONFIG, framework=replace(MEGATRON, parallel_block=True))
    joined = layer_cost(parallel.machine, layer, parallel.shard, RATES)
    assert joined.exchange_s["tp"] == pytest.approx(serial.exchange_s["tp"] / 2)
    assert joined.backward_weight_s == pytest.approx(serial.backward_weight_s)
    assert joined.total_s < serial.total_s


def test_experts_take_no_part_in_a_parallel_block() -> None:
    config = TrainingConfig(find_model("Qwen/Qwen3-30B-A3B"), CONFIG.machine, 4096, 256, 1, tp=2, ep=8, dp=16)
    parallel = replace(config, framework=replace(MEGATRON, parallel_block=True))
    assert step_time(parallel).step_s == step_time(config).step_s


@pytest.mark.parametrize("overlap", ["tp_comm", "tp_fused", "p2p", "grad_reduce"])
def test_every_overlap_shortens_the_step(overlap: str) -> None:
    assert step_time(replace(CONFIG, overlap=frozenset({overlap}))).step_s < step_time(CONFIG).step_s


def shown(tp: int, gpu: str = "a100_sxm", way: str = "tp_comm", micro_batch: int = 1) -> float:
    """Share of the exchange between tensor-parallel ranks that is left where it is overlapped."""
    config = replace(CONFIG, machine=machine_of(find_node(gpu)), tp=tp, micro_batch=micro_batch)
    alone, beside = (
        layer_cost(c.machine, c.arch.layers[0], c.shard, RATES).exchange_s["tp"]
        for c in (config, replace(config, overlap=frozenset({way})))
    )
    return beside / alone


def test_what_shows_of_an_overlapped_exchange_hangs_on_its_shape() -> None:
    assert shown(8) < shown(4) < shown(2) < 0.75  # more pieces: a smaller one stands alone at either end
    assert shown(8, "l40s_pcie") > 2.0 * shown(8)  # the product is shorter than an exchange over PCIe


def test_fused_kernels_hide_more_the_more_waves_of_tiles_there_are() -> None:
    assert shown(2, way="tp_fused") < 0.5 * shown(2)  # two pieces by rank, many waves
    assert 0.04 <= shown(8, way="tp_fused", micro_batch=8) < 0.5 * shown(8, way="tp_fused")
    assert shown(8, micro_batch=8) == pytest.approx(shown(8), rel=0.15)  # as many ranks, as many pieces


def test_a_larger_batch_spends_less_of_its_time_in_bubbles() -> None:
    small, large = step_time(CONFIG), step_time(replace(CONFIG, global_batch=768))
    assert large.step_s < 3.0 * small.step_s
    assert large.bubble_s == pytest.approx(small.bubble_s)


def with_habits(config: TrainingConfig, **habits: Any) -> TrainingConfig:  # noqa: ANN401
    return replace(config, framework=replace(config.framework, **habits))


def test_hosts_wait_for_every_hand_over_and_read_every_sample() -> None:
    assert idle_s(CONFIG, RATES) == 0.0
    waiting = with_habits(CONFIG, blocking_hand_overs=True)
    wait_s = RATES.get("start.sync") + REFILL_CALLS * host_launch_s(RATES, CONFIG.shard)
    assert idle_s(waiting, RATES) == pytest.approx(2 * 64 * 6 * wait_s)
    assert idle_s(replace(waiting, pp=1, vpp=1), RATES) == 0.0
    reading = with_habits(CONFIG, loaders_per_node=8)
    assert idle_s(reading, RATES) == pytest.approx(64 * 8 * READ_S)
    assert step_time(reading).step_s == pytest.approx(step_time(CONFIG).step_s + 64 * 8 * READ_S)


def test_a_window_shortens_the_attention_and_nothing_else() -> None:
    narrow = windowed(CONFIG.arch, 512)
    whole, windows = (layer_cost(CONFIG.machine, arch.layers[0], CONFIG.shard, RATES) for arch in (CONFIG.arch, narrow))
    assert windows.forward_s < whole.forward_s
    assert windows.backward_weight_s == whole.backward_weight_s
    assert windowed(CONFIG.arch, None) is CONFIG.arch


def test_megascale_is_faster_than_what_it_started_from() -> None:
    config = replace(CONFIG, zero_stage=1)  # a pipeline scatters gradients once a step
    before, after = (step_time(replace(config, framework=ERAS[name])).step_s for name in ("megatron_2022", "megascale"))
    assert before > 1.1 * after


def test_older_codes_are_slower() -> None:
    older = replace(CONFIG, framework=replace(FRAMEWORKS["megatron_2021"], sequence_parallel=True))
    assert step_time(older).step_s > step_time(CONFIG).step_s

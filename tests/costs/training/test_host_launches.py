"""What hosts dispatch in a layer of experts, and what devices wait for it."""

from dataclasses import replace

import pytest

from planner.costs.training.config import FRAMEWORKS, MEGATRON, TrainingConfig, machine_of
from planner.costs.training.kernels import PASSES, sums
from planner.costs.training.layer_costs import host_launch_s, kernel_columns, layer_cost
from planner.costs.training.layers.host import LOOP_SHARE
from planner.costs.training.rates import default_rates
from planner.hardware.library import find_node
from planner.models.library import find_model

RATES = default_rates()
CONFIG = TrainingConfig(find_model("Qwen/Qwen3-30B-A3B"), machine_of(find_node("h100_sxm")), 4096, 256, 1, ep=8, dp=16)
LAYER = CONFIG.arch.layers[0]  # 128 experts


def launches(config: TrainingConfig) -> list[float]:
    """Of the three passes of a layer."""
    table = kernel_columns("layer", config.machine, config.shard, 0, LAYER)
    return [float(count) for count in sums(table.part_K, table.launches_K, PASSES)]


def coded(name: str, **changes: int) -> TrainingConfig:
    return replace(CONFIG, framework=FRAMEWORKS[name], **changes)  # type: ignore[arg-type]  # degrees are numbers


def test_fewer_experts_of_a_rank_are_fewer_launches() -> None:
    few = replace(CONFIG, ep=16)  # 8 experts less: two products a pass, each launched from a loop
    assert [a - b for a, b in zip(launches(CONFIG), launches(few), strict=True)] == pytest.approx([16 * LOOP_SHARE] * 3)


def test_quantised_experts_are_launched_and_quantised_one_by_one() -> None:
    more = [a - b for a, b in zip(launches(replace(CONFIG, precision="fp8")), launches(CONFIG), strict=True)]
    assert more[0] > 2 * 15 * LOOP_SHARE
    assert more[2] == 0.0


def test_chunks_of_plain_dispatch_are_sorted_one_by_one() -> None:
    plain = [a - b for a, b in zip(launches(coded("nemo")), launches(CONFIG), strict=True)]
    assert plain[0] > 3 * 128 * LOOP_SHARE
    assert plain[1] > 3 * 128 * LOOP_SHARE
    alone, forwarded = launches(coded("nemo", ep=1)), launches(replace(CONFIG, ep=1))
    assert 0.0 < alone[0] - forwarded[0] < 128 * LOOP_SHARE


def test_small_layers_wait_for_their_host_and_graphs_do_not() -> None:
    eager = layer_cost(CONFIG.machine, LAYER, replace(CONFIG, sequence_tokens=256).shard, RATES)
    least_s = launches(CONFIG)[0] * host_launch_s(RATES, CONFIG.shard)
    assert eager.forward_s > least_s
    graphs = coded("megatron_graphs", sequence_tokens=256)
    assert layer_cost(graphs.machine, LAYER, graphs.shard, RATES).forward_s < 0.5 * least_s


def test_no_dispatch_costs_milliseconds_of_its_own() -> None:
    """Plain dispatch of a large layer is hidden behind what the device computes."""
    large, plain = replace(CONFIG, micro_batch=8), coded("nemo", micro_batch=8)
    forwarded, sorted_s = (layer_cost(c.machine, LAYER, c.shard, RATES).forward_s for c in (large, plain))
    assert forwarded < sorted_s < 1.5 * forwarded
    assert MEGATRON.forwarded_experts


def test_fused_permutations_of_a_plain_exchange_are_launched_as_those_that_forward() -> None:
    fused = replace(CONFIG, framework=replace(MEGATRON, forwarded_experts=False, fused_dispatch=True))
    assert launches(fused) == launches(CONFIG)


def test_boards_of_one_peak_hold_other_clocks() -> None:
    """Products of a large layer take longer on the board that sustains less, and on no other."""
    slower = replace(RATES, values={**RATES.values, "sustained.h100_sxm": 0.5}, _found={})
    other = replace(RATES, values={**RATES.values, "sustained.gb200": 0.5}, _found={})
    large = replace(CONFIG, micro_batch=8).shard
    known, slow, same = (layer_cost(CONFIG.machine, LAYER, large, rates).forward_s for rates in (RATES, slower, other))
    assert slow > 1.2 * known
    assert same == known

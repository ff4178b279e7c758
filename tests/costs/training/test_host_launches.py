"""What hosts dispatch in a layer of experts, and what devices wait for it."""

from dataclasses import replace

import pytest

from planner.costs.operators.experts import EVEN, ExpertLoad
from planner.costs.training.config import FRAMEWORKS, MEGATRON, GraphScope, TrainingConfig, machine_of
from planner.costs.training.kernels import PASSES, sums
from planner.costs.training.layer_costs import host_launch_s, kernel_columns, layer_cost
from planner.costs.training.layers.host import LOOP_SHARE
from planner.costs.training.rates import default_rates
from planner.hardware.library import find_node
from planner.models.architecture import MoeFfn
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


def test_graphs_of_parts_of_layers_leave_what_differs_from_step_to_step_to_the_host() -> None:
    """Launches one by one: fewer with every part that is captured, never as few as with whole steps."""

    def apart(*scopes: GraphScope, padded: bool = False) -> float:
        code, load = replace(MEGATRON, captured=frozenset(scopes)), ExpertLoad(1.0, 1.0, padded) if padded else EVEN
        config = replace(CONFIG, framework=code, expert_load=load)
        table = kernel_columns("layer", config.machine, config.shard, 0, LAYER)
        return float(table.launches_K[~table.captured_K].sum())

    counts = [apart(), apart("attn"), apart("attn", "moe_router"), apart("attn", "moe_router", "moe_preprocess")]
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] > 0.3 * counts[0]
    assert apart("attn", "moe", padded=True) == 8.0  # the call of one graph, forward and backward
    assert apart("mlp") == counts[0]  # which this layer has not


def test_experts_padded_to_their_capacity_wait_for_no_counts() -> None:
    padded = replace(coded("nemo"), expert_load=ExpertLoad(1.0, 1.0, padded=True))
    table, other = (kernel_columns("layer", c.machine, c.shard, 0, LAYER) for c in (padded, coded("nemo")))
    assert ("counts" in other.kinds, "counts" in table.kinds) == (True, False)
    assert table.launches_K.sum() < other.launches_K.sum() - 2 * 3 * 128 * LOOP_SHARE


def test_a_schedule_that_exchanges_beside_products_dispatches_more() -> None:
    beside = replace(CONFIG, overlap=CONFIG.overlap | {"ep_comm"})
    assert [a - b for a, b in zip(launches(beside), launches(CONFIG), strict=True)] == [32.0, 32.0, 0.0]


def test_fused_products_of_experts_leave_activations_and_half_of_the_quantisation_out() -> None:
    plain, fused = (
        kernel_columns("layer", c.machine, c.shard, 0, LAYER)
        for c in (
            replace(CONFIG, precision="mxfp8"),
            replace(CONFIG, precision="mxfp8", framework=replace(MEGATRON, fused_experts=True)),
        )
    )
    quantised = [
        sum(kind.startswith("quantise") for kind, m in zip(t.kinds, t.modules, strict=True) if m == "moe")
        for t in (plain, fused)
    ]
    assert quantised == [4, 2]
    assert ("moe_activation" in plain.modules, "moe_activation" in fused.modules) == (True, False)


def test_no_dispatch_costs_milliseconds_of_its_own() -> None:
    """Plain dispatch of a large layer is hidden behind what the device computes."""
    large, plain = replace(CONFIG, micro_batch=8), coded("nemo", micro_batch=8)
    forwarded, sorted_s = (layer_cost(c.machine, LAYER, c.shard, RATES).forward_s for c in (large, plain))
    assert forwarded < sorted_s < 1.5 * forwarded
    assert MEGATRON.forwarded_experts


def test_fused_permutations_of_a_plain_exchange_sort_no_chunks_one_by_one() -> None:
    fused = replace(CONFIG, framework=replace(MEGATRON, forwarded_experts=False, fused_dispatch=True))
    forwarded, once, sorted_apart = (launches(config)[0] for config in (CONFIG, fused, coded("nemo")))
    assert forwarded < once < sorted_apart - 3 * 128 * LOOP_SHARE


def test_experts_with_biases_add_them_one_by_one_and_are_never_fused() -> None:
    assert isinstance(LAYER.ffn, MoeFfn)
    biased = replace(LAYER, ffn=replace(LAYER.ffn, bias=True))
    code = replace(CONFIG, framework=replace(MEGATRON, fused_experts=True)).shard
    plain, more = (kernel_columns("layer", CONFIG.machine, CONFIG.shard, 0, layer) for layer in (LAYER, biased))
    forward = [t.launches_K[t.part_K == 0].sum() for t in (plain, more)]
    assert forward[1] - forward[0] == 2 * 16 + 3 + 4  # two for each of 16 experts, clamps, and sums of all
    fused = kernel_columns("layer", CONFIG.machine, code, 0, biased)
    assert "moe_activation" in fused.modules


def test_boards_of_one_peak_hold_other_clocks() -> None:
    """Products of a large layer take longer on the board that sustains less, and on no other."""
    slower = replace(RATES, values={**RATES.values, "sustained.h100_sxm": 0.5}, _found={})
    other = replace(RATES, values={**RATES.values, "sustained.gb200": 0.5}, _found={})
    large = replace(CONFIG, micro_batch=8).shard
    known, slow, same = (layer_cost(CONFIG.machine, LAYER, large, rates).forward_s for rates in (RATES, slower, other))
    assert slow > 1.2 * known
    assert same == known

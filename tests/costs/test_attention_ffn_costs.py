"""Attention and feed-forward apart: costs of a token against Step-3's tables, and the turns of micro-batches."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from step3_token_costs import Device, TokenDemand, token_demand

from planner.costs.operators.work import Shards, Work
from planner.costs.rates.calibration import load_calibration
from planner.costs.rates.engine_overheads import EngineOverheads
from planner.costs.rates.overlap import cycle_s
from planner.costs.rates.roofline import Roofline
from planner.costs.serving.attention_ffn import (
    Units,
    UnitStep,
    ffn_weight_bytes,
    travelling_bytes,
    unit_step,
)
from planner.costs.serving.memory import weight_bytes
from planner.hardware.cluster import Pool
from planner.hardware.library import find_node
from planner.hardware.topology import Level, Topology
from planner.models.architecture import Architecture
from planner.models.library import find_model

CELLS = Path(__file__).parents[2].parent / "shared" / "data" / "serving" / "step3_cost_cases.csv"
MODELS = {
    "DSv3": "deepseek-ai/DeepSeek-V3",
    "Kimi_K2": "moonshotai/Kimi-K2-Instruct",
    "Qwen3_MoE": "Qwen/Qwen3-235B-A22B",
    "Step-3": "stepfun-ai/step3",
}


def with_fp8_cache(name: str) -> Architecture:
    arch = find_model(name)
    return replace(arch, precisions=replace(arch.precisions, kv_cache="fp8"))


def cells() -> list[dict[str, str]]:
    if not CELLS.exists():
        pytest.skip(f"needs {CELLS}")
    with open(CELLS, newline="") as file:
        return list(csv.DictReader(file))


def demand_of(row: dict[str, str]) -> TokenDemand:
    names = ("kv_bytes_per_tok", "attn_flop_per_tok", "linear_flop_per_tok", "ffn_flop_per_tok")
    return TokenDemand(*(float(row[name]) for name in names))


def device_of(row: dict[str, str]) -> Device:
    return Device(*(float(row[name]) for name in ("usd_per_gpu_hour", "peak_flops", "mem_bw_Bps")))


def test_cells_of_cost_are_those_of_the_paper() -> None:
    for row in cells():
        token, device = demand_of(row), device_of(row)
        usd = device.attention_usd(token) if row["part"] == "attn" else device.ffn_usd(token)
        assert usd == pytest.approx(float(row["stated_usd_per_1M_tok"]), abs=0.0013)


def test_hardware_choices_are_those_of_the_paper() -> None:
    """The cheapest device of each side gives the totals that the paper states for 8K and 32K."""
    totals: dict[tuple[str, str], dict[str, dict[str, float]]] = {}
    for row in cells():
        token, device = demand_of(row), device_of(row)
        usd = device.attention_usd(token) if row["part"] == "attn" else device.ffn_usd(token)
        totals.setdefault((row["model"], row["context"]), {}).setdefault(row["part"], {})[row["hardware"]] = usd
    wanted = {("Step-3", "8k"): 0.055, ("DSv3", "8k"): 0.068, ("Qwen3_MoE", "8k"): 0.062}
    wanted |= {("Step-3", "32k"): 0.129, ("DSv3", "32k"): 0.211, ("Qwen3_MoE", "32k"): 0.193}
    for key, stated in wanted.items():
        attention, ffn = totals[key]["attn"], totals[key[0], "8k"]["ffn"]  # which does not depend on the context
        assert min(attention.values()) + min(ffn.values()) == pytest.approx(stated, abs=0.0015)
    best = {part: min(usd, key=usd.__getitem__) for part, usd in totals["DSv3", "8k"].items()}
    assert best == {"attn": "H800", "ffn": "H800"}
    assert min(totals["Qwen3_MoE", "8k"]["attn"].items(), key=lambda pair: pair[1])[0] == "H20"


@pytest.mark.parametrize("model", sorted(MODELS))
def test_what_a_token_asks_for_follows_from_the_architecture(model: str) -> None:
    arch = with_fp8_cache(MODELS[model])
    for row in cells():
        if row["model"] == model and (row["part"], row["hardware"]) == ("attn", "H800"):
            own, stated = token_demand(arch, float(row["context"][:-1]) * 1024), demand_of(row)
            assert own.kv_bytes == pytest.approx(stated.kv_bytes, rel=0.01)
            assert own.attention_flop == pytest.approx(stated.attention_flop, rel=0.06)
            assert own.linear_flop == pytest.approx(stated.linear_flop, rel=0.01)
            assert own.ffn_flop == pytest.approx(stated.ffn_flop, rel=0.01)


def turns(stages: list[float], micro_batches: int, layers: int) -> float:
    """Seconds a layer of micro-batches that pass four stages in turn, each stage one at a time, first come first."""
    free = [0.0] * 4
    ready = [0.0] * micro_batches
    half = 0.0
    for layer in range(2 * layers):
        for stage in range(4):
            for batch in sorted(range(micro_batches), key=lambda waiting: ready[waiting]):
                start = max(ready[batch], free[stage])
                ready[batch] = free[stage] = start + stages[stage]
        if layer == layers - 1:
            half = max(ready)
    return (max(ready) - half) / layers


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=4, max_size=4), st.integers(1, 5))
def test_a_cycle_is_what_simulated_micro_batches_take(stages: list[int], micro_batches: int) -> None:
    times = [np.array([float(value)]) for value in stages]
    formula = float(cycle_s(times, micro_batches)[0])
    attention, ffn, there, back = (float(value) for value in stages)
    assert turns([attention, there, ffn, back], micro_batches, 100) == pytest.approx(formula, rel=0.02)


def test_feed_forward_weights_are_most_of_a_sparse_model_and_shrink_with_both_degrees() -> None:
    arch = find_model("deepseek-ai/DeepSeek-V3")
    whole = float(ffn_weight_bytes(arch, Shards.of(1))[0])
    assert 0.9 < whole / float(weight_bytes(arch, Shards.of(1))[0]) < 1.0
    parts = ffn_weight_bytes(arch, Shards.of([1, 1, 2], 1, [8, 8, 4], [8, 1, 1], [1, 8, 8]))
    assert np.all(parts < whole / 6.0)
    assert parts[2] < parts[1]


def test_a_token_travels_to_no_more_places_than_it_has_experts() -> None:
    arch = find_model("deepseek-ai/DeepSeek-V3")
    alone, few, many = travelling_bytes(arch, np.array([1.0, 8.0, 256.0]))[0].tolist()
    assert alone < few < many <= 61 * 8 * arch.hidden_size


STEP3, H800 = find_model("stepfun-ai/step3-fp8"), Pool("h800", find_node("h800"), 8)
SHIPPED = Roofline(H800.node.accelerator, H800.topology(), load_calibration().efficiencies)
ENGINE = EngineOverheads(step_s=1e-3, sequence_s=1e-6)


def step_of(unit: Units, sequences: float, context: float = 4096.0) -> UnitStep:
    return unit_step(STEP3, SHIPPED, ENGINE, unit, Work.decode(np.array([sequences]), context))


units = st.builds(
    lambda ranks, groups, turns: Units.of(1, ranks, 1, groups, turns, 8),
    st.sampled_from([8, 16, 24]),
    st.sampled_from([8, 16, 24]),
    st.integers(1, 4),
)


@settings(max_examples=25, deadline=None)
@given(units, st.integers(1, 200))
def test_no_step_is_shorter_than_a_round_or_than_all_turns_at_a_stage(unit: Units, sequences: int) -> None:
    step = step_of(unit, float(sequences))
    turns = float(unit.micro_batches[0])
    stages = [float(stage[0]) for stage in step.stages]
    assert float(step.seconds[0]) == pytest.approx(max(sum(stages), turns * max(stages)), rel=1e-12)
    assert (step.waits_for(0, turns) == "latency") == (sum(stages) > turns * max(stages) * (1 + 1e-9))


@settings(max_examples=25, deadline=None)
@given(units, st.integers(1, 100))
def test_more_sequences_and_longer_caches_make_no_step_shorter(unit: Units, sequences: int) -> None:
    less, more = (float(step_of(unit, float(count)).seconds[0]) for count in (sequences, 2 * sequences))
    longer = float(step_of(unit, float(sequences), 16384.0).seconds[0])
    assert less <= more
    assert less <= longer


def test_sides_in_one_domain_exchange_faster_than_over_the_network() -> None:
    near, far = Units.within(1, 4, 1, 4, 2, reach=8), Units.within(1, 8, 1, 4, 2, reach=8)
    assert (near.stride[0], far.stride[0]) == (1.0, 8.0)
    moved = step_of(near, 64.0), step_of(replace(near, stride=far.stride), 64.0)
    assert moved[0].stages[1][0] < moved[1].stages[1][0]
    assert moved[0].stages[0][0] == moved[1].stages[0][0]


def test_groups_of_several_devices_gather_and_scatter_what_single_devices_do_not() -> None:
    alone, four = (step_of(Units.of(1, 16, tp, 16 // tp, 3, 8), 128.0).ffn.by_operator for tp in (1, 4))
    assert "ffn_all_gather" not in alone
    assert four["ffn_all_gather"][0] > 0.0
    assert four["ffn_reduce_scatter"][0] > four["ffn_all_gather"][0]


def test_ranks_that_bring_less_make_feed_forward_shorter_and_attention_no_shorter() -> None:
    unit, work = Units.of(1, 16, 1, 16, 2, 8), Work.decode(np.array([100.0]), 4096.0)
    even, uneven = (
        unit_step(STEP3, SHIPPED, ENGINE, unit, replace(work, rank_tokens=mean)) for mean in (None, np.array([50.0]))
    )
    assert uneven.stages[0][0] == even.stages[0][0]
    assert all(uneven.stages[stage][0] < even.stages[stage][0] for stage in (1, 2, 3))


def test_in_a_mesh_an_activation_travels_over_the_one_link_of_two_devices() -> None:
    """Of eight devices that share 700 GB/s each among seven links, two reach each other at 100 GB/s."""
    fabric = Level("fabric", 64, 10e9, 0.0)
    inside = (Level("nvlink", 8, 700e9, 0.0, mesh=True), Level("nvlink", 8, 100e9, 0.0))
    mesh, switch = (
        unit_step(
            STEP3, replace(SHIPPED, topology=Topology((level, fabric))), ENGINE, Units.of(1, 4, 1, 4, 2, 1),
            Work.decode(np.array([64.0]), 4096.0),
        )
        for level in inside
    )  # fmt: skip
    assert [mesh.stages[way][0] for way in (1, 3)] == [switch.stages[way][0] for way in (1, 3)]

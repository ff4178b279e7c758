"""The roofline, and the time of whole steps: monotone, additive, and the same for one point as for many."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.arrays import Floats
from planner.costs.operators.experts import fullest_rank
from planner.costs.operators.forward import forward
from planner.costs.operators.kernels import DecodeAttention, Experts, Gemm, MemoryPass
from planner.costs.operators.work import Shards, Work
from planner.costs.rates.calibration import Efficiencies, load_calibration
from planner.costs.rates.engine_overheads import EngineOverheads
from planner.costs.rates.evidence import Basis
from planner.costs.rates.roofline import Roofline
from planner.costs.rates.step import OUTSIDE_GRAPHS, StepTime, launches, step_time
from planner.hardware.cluster import Pool
from planner.hardware.library import find_node
from planner.models.library import find_model

MODELS = (
    "meta-llama/Meta-Llama-3.1-8B",
    "Qwen/Qwen3-235B-A22B",
    "deepseek-ai/DeepSeek-V3",
    "deepseek-ai/DeepSeek-V3.2",
    "openai/gpt-oss-120b",
    "Qwen/Qwen3.5-397B-A17B",
)
POOL = Pool("pool", find_node("h200_sxm"), 8)
H200 = Roofline(POOL.node.accelerator, POOL.topology(), load_calibration().efficiencies)
ENGINE = EngineOverheads(step_s=1e-3, sequence_s=1e-5, prefill_s=2e-3)


def _step(name: str, shards: Shards, work: Work) -> Floats:
    return step_time(find_model(name), H200, shards, work, ENGINE).seconds


def _gemm(m: float, n: float, k: float) -> Gemm:
    return Gemm("g", 1.0, np.array([m]), np.array([n]), np.array([k]), "bf16")


def test_a_large_gemm_takes_its_operations_at_the_peak_rate(ideal: Roofline) -> None:
    assert ideal.price(_gemm(8192, 8192, 8192)).seconds == pytest.approx([2 * 8192**3 / 1e15])


def test_a_thin_gemm_takes_its_bytes_at_the_memory_bandwidth(ideal: Roofline) -> None:
    assert ideal.price(_gemm(1, 8192, 8192)).seconds == pytest.approx([2 * (8192**2 + 2 * 8192) / 1e12])


def test_efficiencies_and_starts_apply_to_their_kind_of_kernel(ideal: Roofline) -> None:
    known = Efficiencies(gemm_flop=0.5, attention_bandwidth=0.25, elementwise_bandwidth=0.1, elementwise_start_s=3e-6)
    slow = Roofline(ideal.accelerator, ideal.topology, known)
    assert slow.price(_gemm(8192, 8192, 8192)).seconds == pytest.approx([2 * 2 * 8192**3 / 1e15])
    unit = np.ones(1)
    decode = DecodeAttention("d", 1.0, unit * 64, unit * 8192, unit * 8, unit * 8, 128, 128, 0, "bf16")
    assert slow.price(decode).seconds == pytest.approx(4 * ideal.price(decode).seconds)
    assert slow.price(MemoryPass("m", 1.0, unit * 1e9, 2.0)).seconds == pytest.approx([1e9 / 1e11 + 6e-6])
    assert slow.price(MemoryPass("m", 1.0, unit, 2.0)).seconds == pytest.approx([6e-6], rel=1e-4)


def test_experts_in_blocks_and_narrow_shards_have_rates_of_their_own(ideal: Roofline) -> None:
    unit = np.ones(1)

    def seconds(known: Efficiencies, moe_tp: float, precision: str) -> float:
        op = Experts("e", 1.0, unit * 1e6, unit * moe_tp, unit, 4096, 2048, 8, 64, True, precision, "fp8")
        return float(Roofline(ideal.accelerator, ideal.topology, known).price(op).seconds[0])

    plain = seconds(Efficiencies(), 1.0, "fp8")
    assert seconds(Efficiencies(experts_flop_block=0.2), 1.0, "fp8_block") == pytest.approx(5 * plain)
    assert seconds(Efficiencies(experts_flop_block=0.2), 1.0, "fp8") == pytest.approx(plain)
    assert seconds(Efficiencies(experts_width=1024), 2.0, "fp8") == pytest.approx(2 * plain / 2)
    tokens_of_an_expert = 1e6 * 8 / 64
    half = Efficiencies(experts_rows=tokens_of_an_expert / 2)
    assert seconds(half, 1.0, "fp8") == pytest.approx(1.5 * plain)
    assert seconds(Efficiencies(experts_rows=1e9), 1.0, "fp8") == pytest.approx(2 * plain)


def test_ranks_that_share_experts_wait_for_the_one_with_most_rows(ideal: Roofline) -> None:
    """Of 64 experts of variance 1/2 in popularity, eight on a rank; tiles grow by what tokens fill."""
    unit, uneven = np.ones(1), Efficiencies(routing_concentration=2.0)
    gpu = replace(ideal.accelerator, memory_bandwidth_bytes_per_s=1e15)

    def longer(ep: float, tokens: float = 1e6, *, experts: int = 64, whole: float = 0.0) -> float:
        op = Experts("e", 1.0, unit * tokens, unit, unit * ep, 4096, 2048, 8, experts, True, "fp8_block", "fp8_block")
        even, price = (
            float(Roofline(gpu, ideal.topology, known, whole_tiles=whole).price(op).seconds[0])
            for known in (Efficiencies(), uneven)
        )
        return price / even

    spread = np.sqrt(0.5 / 8) * np.sqrt(2 * np.log(8))
    assert longer(8.0) == pytest.approx(1 + spread)
    assert longer(8.0, 64.0, whole=1.0) == pytest.approx(1 + spread * 64 / (64 + 8 * 127))
    assert longer(16.0) == pytest.approx(1 + np.sqrt(0.5 / 4) * np.sqrt(2 * np.log(16)))
    assert longer(1.0) == longer(8.0, experts=8) == 1.0


@pytest.mark.parametrize("ep", [2, 8, 16])
def test_the_fullest_rank_bounds_what_drawing_gives_from_above(ep: int) -> None:
    loads = np.random.default_rng(ep).gamma(2.0, 0.5, (4000, ep, 128 // ep)).sum(axis=2)
    drawn = float(np.mean(loads.max(axis=1))) / (128 // ep)
    assert drawn < float(fullest_rank(0.5**0.5, 128, np.float64(ep))) < 1 + 2.2 * (drawn - 1)


def test_a_step_with_prompts_takes_no_less_than_its_launches() -> None:
    """Of few tokens the host is slower; of many the device; decoding replays a graph."""
    arch, shards = find_model(MODELS[0]), Shards.of(1)
    slow = EngineOverheads(launch_s=5e-5)
    few, many, decode = (
        Work.of(64.0, 1.0, 0.0, 0.0, 0.0),
        Work.of(32768.0, 4.0, 0.0, 0.0, 0.0),
        Work.decode(8.0, 1000.0),
    )
    for work, hurried in ((few, True), (many, False), (decode, False)):
        times = step_time(arch, H200, shards, work, slow)
        kernels, _ = launches(list(forward(arch, shards, work)))
        plain = step_time(arch, H200, shards, work, EngineOverheads())
        least = 5e-5 * float(np.max(kernels)) if hurried else 0.0
        assert times.seconds[0] == pytest.approx(max(plain.seconds[0], least))
        assert not hurried or times.seconds[0] > plain.seconds[0]


def test_steps_that_graphs_hold_launch_but_a_part_of_their_kernels() -> None:
    arch, shards = find_model(MODELS[0]), Shards.of(1)
    work = Work.of(64.0, 1.0, 0.0, 0.0, 0.0)
    launched = step_time(arch, H200, shards, work, EngineOverheads(launch_s=1e-3)).seconds[0]
    captured = step_time(arch, H200, shards, work, EngineOverheads(launch_s=1e-3, captured_tokens=64.0)).seconds[0]
    beyond = step_time(arch, H200, shards, work, EngineOverheads(launch_s=1e-3, captured_tokens=40.0)).seconds[0]
    assert captured == pytest.approx(OUTSIDE_GRAPHS * launched)
    assert beyond == launched


@pytest.mark.parametrize("model", ["deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-V3.2"])
def test_latent_attention_launches_more(model: str) -> None:
    arch, shards = find_model(model), Shards.of(8)
    work = Work.of(64.0, 1.0, 0.0, 0.0, 0.0)
    more = step_time(arch, H200, shards, work, EngineOverheads(latent_launch_s=5e-3)).seconds[0]
    assert more == pytest.approx(61 * 5e-3)


def test_a_roofline_rests_on_analysis(ideal: Roofline) -> None:
    assert ideal.price(_gemm(8, 8, 8)).basis.tolist() == [Basis.ANALYTICAL]


@given(tp=st.sampled_from([1, 2, 4, 8, 16, 32]), m=st.integers(1, 10_000), n=st.integers(64, 60_000))
def test_a_rank_of_a_larger_group_never_computes_longer(tp: int, m: int, n: int) -> None:
    small, large = (H200.price(_gemm(m, n / ranks, 4096)).seconds[0] for ranks in (tp, 2 * tp))
    assert large <= small


@settings(deadline=None, max_examples=60)
@given(
    name=st.sampled_from(MODELS),
    work=st.tuples(*[st.integers(0, high) for high in (8192, 20_000, 256, 20_000)]),
    more=st.tuples(*[st.integers(0, high) for high in (4096, 20_000, 256, 20_000)]),
    tp=st.sampled_from([1, 2, 8]),
)
def test_more_work_never_takes_less_time(name: str, work: tuple[int, ...], more: tuple[int, ...], tp: int) -> None:
    tokens, before, batch, context = (np.array([low, low + add]) for low, add in zip(work, more, strict=True))
    prefilling = np.array([float(work[0] > 0), float(work[0] + more[0] > 0)])
    before = before * prefilling
    seconds = _step(name, Shards.of([tp, tp], 1, 1, 1, [tp, tp]), Work.of(tokens, prefilling, before, batch, context))
    assert seconds[0] <= seconds[1] * (1 + 1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_many_points_at_once_cost_what_each_costs_alone(name: str) -> None:
    shapes = np.array(
        [(1, 1, 1, 1, 1), (8, 1, 1, 1, 8), (4, 2, 1, 4, 1), (1, 1, 8, 1, 8), (2, 1, 4, 8, 1)], dtype=float
    )
    loads = np.array([(0, 0, 0, 16, 900), (512, 1, 0, 0, 0), (700, 2, 64, 9, 5000), (0, 0, 0, 0, 0), (1, 1, 9, 1, 1)])
    points = [(shape, load) for shape in shapes for load in loads]
    shards, work = Shards.of(*np.array([p[0] for p in points]).T), Work.of(*np.array([p[1] for p in points]).T)
    arch = find_model(name)
    together = step_time(arch, H200, shards, work, ENGINE)
    for point, (shape, load) in enumerate(points):
        alone = step_time(arch, H200, Shards.of(*shape), Work.of(*load), ENGINE)
        assert together.seconds[point] == pytest.approx(alone.seconds[0], rel=1e-12, abs=0)


def test_an_idle_step_costs_nothing() -> None:
    for name in MODELS:
        assert _step(name, Shards.of(1), Work.decode(0.0, 0.0)).tolist() == [0.0]


def _detailed() -> StepTime:
    work = Work.of([512.0, 0.0], [1.0, 0.0], 0.0, [16.0, 64.0], 1000.0)
    return step_time(find_model(MODELS[1]), H200, Shards.of([8.0, 8.0], 1, 1, 1, 8), work, ENGINE)


def test_operators_and_bases_add_up_to_the_device_time() -> None:
    time = _detailed()
    assert sum(time.by_operator.values()) == pytest.approx(time.device_s, rel=1e-12)
    assert time.by_basis.sum(axis=0) == pytest.approx(time.device_s, rel=1e-12)


def test_shares_of_what_a_step_rests_on_sum_to_one() -> None:
    time = _detailed()
    for point in range(2):
        assert sum(time.shares(point).values()) == pytest.approx(1.0, rel=1e-12)
    assert time.shares(0) == {"analytical": pytest.approx(1.0)}


def test_the_host_pays_for_steps_sequences_and_prefills() -> None:
    assert _detailed().host_s.tolist() == pytest.approx([1e-3 + 17e-5 + 2e-3, 1e-3 + 64e-5])


def test_stages_run_at_the_pace_of_the_fullest_one() -> None:
    arch, work = find_model("meta-llama/Meta-Llama-3.1-8B"), Work.decode(16.0, 1000.0)
    single, three = (step_time(arch, H200, Shards.of(1, pp), work, ENGINE) for pp in (1, 3))
    ffn_one, ffn_three = single.by_operator["ffn_up"], three.by_operator["ffn_up"]
    assert ffn_three == pytest.approx(ffn_one * 33 / 32)  # three stages of 11 layers hold 33 places
    assert three.host_s == pytest.approx(3 * single.host_s)

"""Experts in mxfp4 by Triton's kernels on Hopper: launches, tiles that dequantise, and what the host takes for them."""

import math
from dataclasses import replace

import numpy as np
import pytest

from planner.calibrate.terms import DeploymentTerms
from planner.costs.operators.kernels import Experts
from planner.costs.operators.triton import launches, serial_steps, weight_values
from planner.costs.operators.work import Shards, Work
from planner.costs.rates.calibration import Efficiencies
from planner.costs.rates.engine_overheads import EngineOverheads
from planner.costs.rates.roofline import Roofline
from planner.costs.rates.step import step_time
from planner.engines.settings import triton_experts
from planner.estimate.batches import batch_of
from planner.estimate.measured import case_of_row
from planner.hardware.cluster import Pool
from planner.hardware.library import find_node
from planner.models.library import find_model

ONE = np.ones(1)
HIDDEN = INTER = 2880
ROW = {
    "id": "c", "aic_model": "openai/gpt-oss-120b", "weights": "mxfp4", "system": "h200_sxm", "backend": "trtllm",
    "mode": "agg", "isl": "1024", "osl": "1024", "concurrency": "16", "gpus": "4", "tp": "4", "pp": "1", "dp": "1",
    "moe_tp": "1", "moe_ep": "4",
}  # fmt: skip


def on(system: str, known: Efficiencies, *, triton: bool = True) -> Roofline:
    pool = Pool("pool", find_node(system), 8)
    return Roofline(pool.node.accelerator, pool.topology(), known, triton_experts=triton)


def experts(tokens: float, moe_tp: float = 1.0, ep: float = 1.0, weights: str = "mxfp4") -> Experts:
    return Experts("e", 1.0, ONE * tokens, ONE * moe_tp, ONE * ep, HIDDEN, INTER, 4, 128, True, weights, "bf16")


def shared_out(rows: float, columns: float, depth: float, multiprocessors: int) -> float:
    """The steps of a product of whole tiles, by the definition."""
    tiles, steps = math.ceil(rows / 16) * (columns / 128), depth / 128
    return steps / max(1, min(multiprocessors / tiles, steps / 4))


@pytest.mark.parametrize("rows", [1.0, 16.0, 32.0, 64.0, 4096.0])
@pytest.mark.parametrize("tp", [1, 2, 5])
def test_tiles_fewer_than_multiprocessors_share_their_depth(rows: float, tp: int) -> None:
    inter = INTER / tp
    expected = shared_out(rows, 2 * inter, HIDDEN, 132) + shared_out(rows, HIDDEN, inter, 132)
    assert serial_steps(ONE * rows, HIDDEN, ONE * inter, 132) == pytest.approx(expected)
    assert serial_steps(ONE * 0, HIDDEN, ONE * inter, 132) == 0.0


def test_many_rows_take_the_depth_of_both_products_and_narrow_shards_less() -> None:
    wide, narrow = (serial_steps(ONE * 1e5, HIDDEN, ONE * INTER / tp, 132)[0] for tp in (1, 5))
    assert (wide, narrow) == (2 * 22.5, 22.5 + 4.5)


def test_weights_are_padded_and_ranks_that_share_experts_launch_more() -> None:
    assert weight_values(HIDDEN, ONE * INTER) == 2944 * 5888 + 2944 * 3072
    assert list(launches(np.array([1.0, 8.0]))) == [3.0, 6.0]


def test_experts_in_mxfp4_take_launches_and_steps_of_tiles_on_hopper() -> None:
    start, step = Efficiencies(experts_start_s=1e-3), Efficiencies(dequantise_step_s=1e-3)
    few = experts(8, ep=4)
    assert on("h200_sxm", start).price(few).seconds[0] == pytest.approx(9e-3, rel=0.05)
    assert on("h200_sxm", start, triton=False).price(few).seconds[0] == pytest.approx(3e-3, rel=0.05)
    steps = serial_steps(ONE * 32, HIDDEN, ONE * INTER, 132)[0]
    assert on("h200_sxm", step).price(few).seconds[0] == pytest.approx(steps * 1e-3, rel=0.05)
    for system, op in (("b200_sxm", few), ("h200_sxm", experts(8, weights="int4")), ("a100_sxm", few)):
        assert on(system, step).price(op).seconds[0] == on(system, step, triton=False).price(op).seconds[0]


def test_the_host_launches_them_one_by_one_where_prompts_are_in_the_step() -> None:
    arch, shards, engine = find_model("openai/gpt-oss-120b"), Shards.of(1), EngineOverheads(triton_launch_s=5e-3)
    prompt, decode = Work.of(64.0, 1.0, 0.0, 0.0, 0.0), Work.decode(8.0, 1000.0)
    hopper = on("h200_sxm", Efficiencies())
    assert step_time(arch, hopper, shards, prompt, engine).seconds[0] == pytest.approx(36 * 5e-3)
    for pricer, work in ((hopper, decode), (replace(hopper, triton_experts=False), prompt)):
        plain = step_time(arch, pricer, shards, work, EngineOverheads()).seconds[0]
        assert step_time(arch, pricer, shards, work, engine).seconds[0] == plain


def test_engines_that_run_them_unasked_and_rows_that_say_otherwise() -> None:
    assert [triton_experts(engine) for engine in ("trtllm", "vllm", "sglang")] == [True, True, False]
    assert [case_of_row({**ROW, "triton_experts": said}).triton_experts for said in ("", "0", "1")] == [
        True,
        False,
        True,
    ]


@pytest.mark.parametrize("said", ["0", "1"])
def test_a_fit_prices_them_as_estimates_do(said: str) -> None:
    case = case_of_row({**ROW, "triton_experts": said})
    batch = batch_of([case], None)
    shards, work = batch.steps(batch.frame())[0]
    known = Efficiencies(dequantise_step_s=1e-6, experts_start_s=3e-6, gemm_start_s=2e-6)
    fitted = DeploymentTerms.of([case]).device_s(known, {"trtllm": EngineOverheads()})
    priced = step_time(
        case.arch, replace(on("h200_sxm", known), triton_experts=said == "1"), shards, work, EngineOverheads()
    )
    assert fitted[0, 0] == pytest.approx(priced.device_s[0])

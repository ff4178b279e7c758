"""Weights handed over, and how far the length of an iteration may be off."""

from dataclasses import replace
from math import log
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.documents.read import given_document
from planner.kinds.rl.curves.beside import modelled_trainers
from planner.kinds.rl.curves.shapes import Lengths
from planner.kinds.rl.handover import (
    TENSOR_S,
    UNPINNED_BYTES_PER_S,
    host_bytes_per_s,
    hosts_s,
    num_tensors,
    unpinned_bytes_per_s,
)
from planner.kinds.rl.setting import RlSetting, read_setting
from planner.load.problems import resolve_document
from planner.models.library import find_model
from planner.rl.intervals import Spread, distance, fitted, interval_s


@pytest.mark.parametrize(
    ("name", "tensors"),
    [("Qwen/Qwen2.5-7B", 339), ("Qwen/Qwen3-32B", 707), ("Qwen/Qwen3-30B-A3B", 18_867)],
)
def test_tensors_are_those_of_the_checkpoint(name: str, tensors: int) -> None:
    """As model.safetensors.index.json lists them on the Hugging Face Hub."""
    assert num_tensors(find_model(name)) == tensors


def test_a_mixture_of_experts_is_handed_over_as_slime_measured() -> None:
    assert hosts_s(find_model("Qwen/Qwen3-30B-A3B")) == pytest.approx(15.0)
    assert hosts_s(find_model("Qwen/Qwen3-32B")) == pytest.approx(707 * TENSOR_S)


@pytest.mark.parametrize("gpu", ["h100_sxm", "gb200_nvl72"])
def test_what_training_keeps_moves_at_one_rate_whatever_it_is(gpu: str) -> None:
    """Over PCIe at that of memory as it comes, over a coherent link at the link's; less where hosts are said to."""

    def setting(**options: object) -> RlSetting:
        document = {
            "schema": "planner.problem/1",
            "kind": "rl",
            "models": {"m": {"name": "Qwen/Qwen3-0.6B"}},
            "cluster": {"pools": [{"gpu": gpu, "nodes": 1}]},
            "workloads": [{"input_tokens": 100, "output_tokens": 100}],
            "objective": {"minimize": "iteration_time"},
            "options": {"algorithm": "grpo", "reference": "m", "prompts": 8, "training_tp": [1], **options},
        }
        return read_setting(resolve_document(given_document(document, "problem.yaml"), Path()))

    free, narrow = setting(), setting(host_bandwidth="4GB/s")
    (pool,) = free.pools
    link = pool.node.pcie_bandwidth_bytes_per_s
    assert host_bytes_per_s(free, pool) == link
    assert unpinned_bytes_per_s(free, pool) == (link if gpu == "gb200_nvl72" else UNPINNED_BYTES_PER_S)
    assert unpinned_bytes_per_s(narrow, pool) == 4e9 / pool.node.num_gpus
    lengths = Lengths(200, 200)
    trainer = next(modelled_trainers(free, pool, lengths))
    (scorer,), config = trainer.helpers, trainer.config
    assert config is not None
    alone = next(modelled_trainers(replace(free, keys={"actor": "m"}), pool, lengths))
    moved_s = trainer.option.offload_s - alone.option.offload_s
    assert moved_s == pytest.approx(2.0 * scorer.kept_bytes / unpinned_bytes_per_s(free, pool))


def test_intervals_hold_the_price_and_widen_with_the_model() -> None:
    near, far = find_model("Qwen/Qwen3-32B"), find_model("deepseek-ai/DeepSeek-V3")
    widths = []
    for arch in (near, far):
        low, high = interval_s(arch, 100.0, Spread(-0.1, 0.3, 0.5))
        assert low < 100.0 < high
        widths.append(log(high / low))
    assert distance(near) == 0.0
    assert widths == pytest.approx([0.4, 0.4 * (1.0 + 0.5 * distance(far))])


@given(st.integers(0, 2**32 - 1))
def test_fitted_intervals_hold_about_four_of_five_runs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    far = rng.uniform(0.0, 4.0, 400)
    logs = (1.0 + 0.5 * far) * rng.normal(0.05, 0.2, 400)
    spread = fitted(logs.tolist(), far.tolist(), [str(place) for place in range(400)])
    wider = 1.0 + spread.by_distance * far
    held = np.mean((logs >= spread.low * wider) & (logs <= spread.high * wider))
    assert 0.72 <= held <= 0.88
    assert 0.1 <= spread.by_distance <= 1.5

"""Weights handed over, and how far the length of an iteration may be off."""

from math import log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.kinds.rl.handover import TENSOR_S, hosts_s, num_tensors
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

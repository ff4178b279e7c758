"""Hybrid sharding: who shares which states, experts in as many copies as all else, and what that moves."""

import pytest

from planner.costs.training.config import TrainingConfig, machine_of
from planner.costs.training.parameters import Parameters, sharing_ranks, state_bytes
from planner.costs.training.volumes import data_parallel_volume
from planner.hardware.library import find_node
from planner.models.library import find_model

MACHINE = machine_of(find_node("h100_sxm"))
PARAMETERS = Parameters(1e9, 4e9)


def _config(zero_ranks: int, zero_stage: int = 1) -> TrainingConfig:
    """64 ranks, experts over 8 of them: each expert is resident on 8 ranks."""
    model = find_model("Qwen/Qwen3-30B-A3B")
    return TrainingConfig(model, MACHINE, 4096, 64, 1, ep=8, dp=64, zero_stage=zero_stage, zero_ranks=zero_ranks)


def test_experts_come_in_as_many_copies_as_all_else() -> None:
    assert sharing_ranks(_config(0)) == Parameters(64.0, 8.0)
    assert sharing_ranks(_config(16)) == Parameters(16.0, 2.0)
    assert sharing_ranks(_config(8)) == Parameters(8.0, 1.0)


def test_every_copy_keeps_all_states_once() -> None:
    whole, hybrid = state_bytes(_config(0), PARAMETERS), state_bytes(_config(16), PARAMETERS)
    assert hybrid.optimizer_bytes == pytest.approx(12 * (1e9 / 16 + 4e9 / 2))
    assert hybrid.optimizer_bytes == pytest.approx(4 * whole.optimizer_bytes)
    assert hybrid.weights_bytes == whole.weights_bytes


def test_weights_are_gathered_inside_a_copy_and_gradients_reduced_once_more_between_copies() -> None:
    whole, hybrid = data_parallel_volume(_config(0, 3), PARAMETERS), data_parallel_volume(_config(8, 3), PARAMETERS)
    assert hybrid.gather_outside_s == 0.0
    assert whole.gather_outside_s > 0.0
    fabric = MACHINE.fabric_bytes_per_s
    between = (
        2 * 7 / 8 * (1e9 / 8 + 4e9) * 2 / fabric
    )  # an all-reduce over 8 copies, of a dense shard and whole experts
    assert hybrid.reduce_outside_s == pytest.approx(between)

"""Towers and generators beside a trained language model: counts by hand, what is frozen, what grows with what."""

from dataclasses import replace

import pytest

from planner.costs.operators.towers import TowerLoad, tower_layer
from planner.costs.training.config import Machine, Shard, TrainingConfig, machine_of
from planner.costs.training.kernels import BACKWARD_INPUT, FORWARD
from planner.costs.training.layer_costs import kernel_columns
from planner.costs.training.modalities.networks import (
    NetworkCost,
    Trained,
    generator_cost,
    generator_flop,
    tower_cost,
    tower_flop,
    tower_shard,
)
from planner.costs.training.rates import default_rates
from planner.hardware.library import find_node
from planner.models.architecture import Encoder
from planner.models.library import find_model

MACHINE: Machine = machine_of(find_node("hgx_h100"))
QWEN, AUDIO, DISTTRAIN = (
    find_model(name) for name in ("Qwen/Qwen3-VL-8B-Instruct", "Qwen/Qwen2-Audio-7B", "DistTrain/MLLM-72B")
)
TOWER, EAR = QWEN.encoders[0], AUDIO.encoders[0]


def shard(tp: int = 1, micro_batch: int = 1) -> Shard:
    config = TrainingConfig(QWEN, MACHINE, sequence_tokens=8192, global_batch=8, micro_batch=micro_batch, tp=tp)
    return config.dense_shard


def cost(load: TowerLoad, learns: Trained = Trained(), tp: int = 1, tower: Encoder = TOWER) -> NetworkCost:  # noqa: B008 - frozen
    return tower_cost(MACHINE, tower, shard(tp), load, default_rates(), learns)


LOAD = TowerLoad(8192.0, 4096.0)


def test_core_attention_of_images_is_of_all_pairs_of_patches() -> None:
    """2 images of 4096 patches: 4 hidden n^2 operations each, scores and their sum over values."""
    own = tower_shard(TOWER, shard(), LOAD)
    table = kernel_columns("layer", MACHINE, own, 0, tower_layer(TOWER))
    core = sum(
        flop_s * MACHINE.peak_flop_per_s["bf16"]
        for kind, part, flop_s in zip(table.kinds, table.part_K, table.flop_K, strict=True)
        if kind.startswith("attention.") and part == FORWARD
    )
    assert core == pytest.approx(2 * 4 * TOWER.hidden_size * 4096**2, rel=1e-3)


def test_operations_are_those_of_its_matrices_counted_one_by_one() -> None:
    hidden, wide = 1152, 4304
    block = 2 * (3 * hidden * hidden + hidden * hidden + 2 * hidden * wide) + 4 * hidden * 4096
    body = 8192 * (27 * block + 2 * 1536 * hidden)
    projected = 2048 * 2 * 4 * (4608 * 4608 + 4608 * 4096)
    assert tower_flop(TOWER, LOAD, Trained()) == pytest.approx(3 * (body + projected))
    assert tower_flop(TOWER, LOAD, Trained(network=False)) == pytest.approx(body + 3 * projected)


def test_a_frozen_tower_has_no_backward_pass_and_keeps_its_weights_alone() -> None:
    frozen, whole = cost(LOAD, Trained(network=False, projector=False)), cost(LOAD)
    assert frozen.pass_s[1:] == (0.0, 0.0)
    assert frozen.pass_s[0] == pytest.approx(whole.pass_s[0])
    assert frozen.trained_elements == 0
    assert frozen.frozen_bytes == pytest.approx(2.0 * TOWER.parameters)
    assert whole.trained_elements == pytest.approx(TOWER.parameters)
    assert whole.in_flight_bytes > 10 * frozen.in_flight_bytes


def test_a_frozen_tower_with_a_trained_projector_has_the_projectors_gradients_alone() -> None:
    part = cost(LOAD, Trained(network=False))
    assert {name for name, _, back, weight in part.seconds_of if back + weight > 0} == {"projector"}
    assert part.trained_elements == pytest.approx(TOWER.projector_parameters)


@pytest.mark.parametrize("tower", [TOWER, EAR])
def test_time_grows_with_tokens_and_with_the_length_they_attend_to(tower: Encoder) -> None:
    least = sum(cost(TowerLoad(4096, 512), tower=tower).pass_s)
    assert sum(cost(TowerLoad(8192, 512), tower=tower).pass_s) > least
    assert sum(cost(TowerLoad(4096, 4096), tower=tower).pass_s) > least


def test_tensor_parallel_ranks_share_parameters_and_time() -> None:
    alone, four = cost(LOAD), cost(LOAD, tp=4)
    assert four.trained_elements == pytest.approx(alone.trained_elements / 4)
    assert sum(alone.pass_s) / 4 < sum(four.pass_s) < sum(alone.pass_s)


def test_a_frozen_generator_passes_gradients_through_and_learns_nothing() -> None:
    (unet,) = DISTTRAIN.modules
    both = [
        generator_cost(MACHINE, unet, shard(), 786432.0, 262144, default_rates(), learns=learns)
        for learns in (True, False)
    ]
    assert sum(both[1].pass_s) == pytest.approx(2 / 3 * sum(both[0].pass_s))
    assert both[1].pass_s[BACKWARD_INPUT] > 0
    assert (both[0].frozen_elements, both[1].trained_elements) == (0, 0)
    assert generator_flop(unet, 512.0**2, learns=True) == pytest.approx(3 * 2 * 339e9, rel=1e-4)


@pytest.mark.parametrize(
    ("tower", "pixels", "tokens"),
    [
        (TOWER, (1024, 1024), 4096),
        (TOWER, (1000, 33), 64 * 4),
        (find_model("Llama-4-Scout").encoders[0], (336, 336), 576),
        (find_model("Llama-4-Scout").encoders[0], (672, 336), 1152),
        (DISTTRAIN.encoders[0], (512, 512), 37 * 37),
    ],
)
def test_tokens_of_an_image_are_its_patches_in_whole_merges_and_chunks(
    tower: Encoder, pixels: tuple[int, int], tokens: int
) -> None:
    assert tower.tokens_of_image(*pixels) == tokens


def test_sounds_fill_chunks_of_thirty_seconds() -> None:
    assert [EAR.tokens_of_sound(seconds) for seconds in (0.1, 30.0, 30.1)] == [1500, 1500, 3000]


def test_a_tower_whose_inputs_are_not_described_has_no_price() -> None:
    assert TOWER.is_priced
    assert not replace(TOWER, projector=()).is_priced
    assert not replace(TOWER, patch_size=0).is_priced

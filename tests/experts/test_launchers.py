"""Files that engines start from: the forms that they read, and layouts that they could not hold."""

import json

import numpy as np
import pytest
import yaml

from planner.errors import PlannerError
from planner.experts.launchers import (
    ascend_map,
    require_launchable,
    sglang_location,
    tensorrt_balancer,
    vllm_config,
    vllm_mapping,
)

LAYOUT = np.array([[0, 1, 2, 0], [1, 2, 0, 1]])  # 2 layers, 3 experts, 2 ranks of 2 slots


def test_sglang_gets_one_key_and_a_row_for_every_layer_of_the_model() -> None:
    document = json.loads(sglang_location(LAYOUT, (2, 3), 5, 3))
    assert list(document) == ["physical_to_logical_map"]
    assert document["physical_to_logical_map"] == [[0, 1, 2, 0], [0, 1, 2, 0], [0, 1, 2, 0], [1, 2, 0, 1], [0, 1, 2, 0]]


def test_vllm_gets_layers_counted_from_zero() -> None:
    record = json.loads(vllm_mapping(LAYOUT, 3))
    assert record == {
        "record_type": "eplb_initial_mapping",
        "version": 1,
        "num_redundant_experts": 1,
        "num_slots": 4,
        "initial_global_assignments": {"0": [0, 1, 2, 0], "1": [1, 2, 0, 1]},
    }
    assert json.loads(vllm_config(1)) == {"num_redundant_experts": 1}


def test_ascend_gets_the_experts_of_every_device() -> None:
    document = json.loads(ascend_map(LAYOUT, 2))
    assert document["moe_layer_count"] == 2
    assert document["layer_list"][1]["device_list"] == [
        {"device_id": 0, "device_expert": [1, 2]},
        {"device_id": 1, "device_expert": [0, 1]},
    ]


def test_tensorrt_gets_the_numbers_of_the_model_and_its_mtp_layers() -> None:
    document = yaml.safe_load(tensorrt_balancer(LAYOUT, (3, 4), (5,), 3))
    assert document == {
        "num_slots": 4,
        "layer_updates_per_iter": 0,
        "initial_global_assignments": {3: [0, 1, 2, 0], 4: [1, 2, 0, 1], 5: [0, 1, 2, 0]},
    }


@pytest.mark.parametrize(
    ("layout", "ranks", "said"),
    [
        ([[0, 1, 2]], 2, "3 slots do not spread evenly over 2 ranks"),
        ([[0, 1, 2, -1]], 2, "layer 0 has empty slots"),
        ([[0, 1, 1, 0]], 2, "layer 0 does not hold exactly the 3 experts"),
        ([[0, 1, 2, 3]], 2, "layer 0 does not hold exactly the 3 experts"),
    ],
)
def test_layouts_that_engines_cannot_hold_are_refused(layout: list[list[int]], ranks: int, said: str) -> None:
    with pytest.raises(PlannerError, match=said):
        require_launchable(np.array(layout), ranks, 3)


def test_free_shares_are_refused() -> None:
    with pytest.raises(PlannerError, match="share the tokens of an expert equally"):
        require_launchable(LAYOUT, 2, 3, free_shares=True)

"""Parts of a model beside its decoder are priced, or stop the solve."""

from dataclasses import replace
from typing import Any

import pytest
from static_level import solve

from planner.costs.operators.work import Shards
from planner.costs.serving.memory import weight_bytes
from planner.errors import PlannerError
from planner.estimate.training_columns import architecture_of_row
from planner.models.library import find_model

POOL = {"pools": [{"gpu": "h200", "gpus": 8}]}
LENGTHS = [{"input_tokens": 64, "output_tokens": 64}]
TRAINED: dict[str, dict[str, Any]] = {
    "train": {"objective": {"minimize": "step_time"}, "options": {"global_batch": 8, "sequence_tokens": 64}},
    "rl": {
        "objective": {"minimize": "iteration_time"},
        "workloads": LENGTHS,
        "options": {"algorithm": "grpo", "prompts": 8},
    },
}
RUN: dict[str, dict[str, Any]] = {
    "serve": {"workloads": LENGTHS},
    "experts": {
        "objective": {"minimize": "imbalance"},
        "options": {"ep": 8, "slots_per_rank": 16, "loads": "loads.npz"},
    },
}


def problem(kind: str, model: str, rest: dict[str, Any]) -> dict[str, Any]:
    return {"schema": "planner.problem/1", "kind": kind, "models": {"m": {"name": model}}, "cluster": POOL, **rest}


@pytest.mark.parametrize("kind", TRAINED)
@pytest.mark.parametrize(
    ("model", "part"),
    [("Qwen/Qwen3-VL-2B-Instruct", "vision tower"), ("stepfun-ai/NextStep-1-Large", "flow head, autoencoder")],
)
def test_parts_beside_a_decoder_are_not_trained_for_nothing(kind: str, model: str, part: str) -> None:
    with pytest.raises(PlannerError, match=f"training it has no cost for: {part}") as raised:
        solve(problem(kind, model, TRAINED[kind]))
    assert "models.m" in raised.value.where
    assert "`text_config`" in raised.value.hint


@pytest.mark.parametrize("kind", RUN)
def test_a_tower_of_unknown_size_is_not_run_for_nothing(kind: str) -> None:
    with pytest.raises(PlannerError, match="running it has no cost for: vision tower"):
        solve(problem(kind, "google/gemma-4-26B-A4B", RUN[kind]))


def test_weights_of_a_tower_of_known_size_are_counted() -> None:
    whole, alone = find_model("Qwen/Qwen3-VL-2B-Instruct"), Shards.of(1)
    (tower,) = whole.encoders
    text = weight_bytes(replace(whole, encoders=()), alone)
    assert float((weight_bytes(whole, alone) - text)[0]) == pytest.approx(2 * tower.parameters)


def test_rows_of_models_with_parts_beside_their_decoder_are_not_estimated_as_their_text_parts() -> None:
    with pytest.raises(PlannerError, match="vision tower beside its decoder"):
        architecture_of_row({"model": "Qwen/Qwen3-VL-2B-Instruct"})
    assert architecture_of_row({"model": "Qwen/Qwen3-1.7B"}).num_layers == 28

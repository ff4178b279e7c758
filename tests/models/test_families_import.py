"""Families whose configs are not at hand: fields as their published code reads them, against the catalog's entries."""

from dataclasses import replace
from typing import Any

import pytest

from planner.errors import PlannerError
from planner.models.architecture import Architecture
from planner.models.config_json import architecture_from_config
from planner.models.library import find_model

STEP_1 = {
    "model_type": "step1",
    "hidden_size": 12288,
    "intermediate_size": 31232,
    "num_attention_heads": 96,
    "num_attention_groups": 8,
    "num_hidden_layers": 88,
    "max_seq_len": 32768,
    "vocab_size": 74752,
    "torch_dtype": "bfloat16",
}
STEP_3 = {
    "model_type": "step3_text",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "num_attention_heads": 64,
    "num_attention_groups": 1,
    "num_hidden_layers": 61,
    "max_position_embedding": 65536,
    "vocab_size": 128815,
    "moe_intermediate_size": 5120,
    "moe_num_experts": 48,
    "moe_top_k": 3,
    "share_expert_dim": 5120,
    "share_q_dim": 2048,
    "head_dim": 256,
    "moe_layers_enum": ",".join(str(layer) for layer in range(4, 60)),
}
GEMMA_3 = {
    "model_type": "gemma3_text",
    "hidden_size": 5376,
    "intermediate_size": 21504,
    "num_attention_heads": 32,
    "num_key_value_heads": 16,
    "head_dim": 128,
    "num_hidden_layers": 62,
    "sliding_window": 1024,
    "sliding_window_pattern": 6,
    "max_position_embeddings": 131072,
    "vocab_size": 262208,
}
MINIMAX_M1 = {
    "model_type": "minimax_m1",
    "hidden_size": 6144,
    "intermediate_size": 9216,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_hidden_layers": 80,
    "num_local_experts": 32,
    "num_experts_per_tok": 2,
    "shared_intermediate_size": 0,
    "attn_type_list": ([0] * 7 + [1]) * 10,
    "max_position_embeddings": 1048576,
    "vocab_size": 200064,
}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("Step-Audio-Chat", STEP_1),
    ("step3", STEP_3),
    ("gemma-3-27b-it", GEMMA_3),
    ("MiniMax-M1", MINIMAX_M1),
]


def _decoder(arch: Architecture) -> Architecture:
    return replace(arch, name="", source="", encoders=(), modules=(), metadata={})


@pytest.mark.parametrize(("name", "config"), CASES)
def test_the_config_of_a_family_gives_the_decoder_of_its_entry(name: str, config: dict[str, Any]) -> None:
    assert _decoder(architecture_from_config(config, name="x")) == _decoder(find_model(name))


def test_layers_with_experts_may_be_a_list_and_default_to_all_but_the_first() -> None:
    listed = architecture_from_config({**STEP_3, "moe_layers_enum": list(range(4, 60))}, name="x")
    assert listed.layers == find_model("step3").layers
    without = {key: value for key, value in STEP_3.items() if key != "moe_layers_enum"}
    layers = architecture_from_config(without, name="x").layers
    assert layers[0] == find_model("step3").layers[0]
    assert set(layers[1:]) == {find_model("step3").layers[30]}


@pytest.mark.parametrize("stated", ["4,5,x", "4,61", "4,4", [4, -1]])
def test_layers_that_cannot_be_meant_are_refused(stated: object) -> None:
    with pytest.raises(PlannerError, match="moe_layers_enum"):
        architecture_from_config({**STEP_3, "moe_layers_enum": stated}, name="x")

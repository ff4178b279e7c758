"""What `quantization_config` objects and checkpoint names say about the format of each class of tensors."""

import json
from pathlib import Path
from typing import Any

import pytest

from planner.errors import PlannerError
from planner.models.architecture import BITS, Architecture, Precisions
from planner.models.config_json import architecture_from_config
from planner.models.library import find_model, load_model
from planner.models.precision import with_precision

MOE: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "moe_intermediate_size": 256,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "num_attention_heads": 8,
    "q_lora_rank": 128,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "num_hidden_layers": 4,
    "num_nextn_predict_layers": 1,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}

# folder: precisions that differ from bf16, as read by a person from the config's lists
PUBLISHED = {
    "deepseek-ai--DeepSeek-V3": {
        **dict.fromkeys(("attention", "ffn", "experts", "shared_experts", "mtp"), "fp8_block"),
        **dict.fromkeys(("activation", "expert_activation"), "fp8"),
    },
    "Qwen--Qwen3-32B-FP8-Static-PerTensor": dict.fromkeys(("attention", "ffn", "kv_cache", "activation"), "fp8"),
    "moonshotai--Kimi-K2.5": {"experts": "int4"},
    "moonshotai--Kimi-K3": {"experts": "mxfp4"},
    "openai--gpt-oss-120b": {"experts": "mxfp4"},
    "nvidia--Kimi-K2.5-NVFP4": {
        **dict.fromkeys(("ffn", "experts", "shared_experts", "activation", "expert_activation"), "nvfp4"),
        "kv_cache": "fp8",
    },
    "nvidia--Kimi-K2.6-NVFP4": {"experts": "nvfp4", "expert_activation": "nvfp4", "kv_cache": "fp8"},
    "nvidia--MiniMax-M2.5-NVFP4": {"experts": "nvfp4", "expert_activation": "nvfp4", "kv_cache": "fp8"},
    "nvidia--GLM-5.2-NVFP4": {"experts": "nvfp4", "expert_activation": "nvfp4", "kv_cache": "fp8"},
    "nvidia--Qwen3.5-397B-A17B-NVFP4": {"experts": "nvfp4", "expert_activation": "nvfp4", "kv_cache": "fp8"},
    "nvidia--Gemma-4-26B-A4B-NVFP4": {"experts": "nvfp4", "expert_activation": "nvfp4", "kv_cache": "fp8"},
    "nvidia--Gemma-4-31B-IT-NVFP4": {"ffn": "nvfp4", "activation": "nvfp4", "kv_cache": "fp8"},
    "nvidia--Qwen3.6-27B-NVFP4": {
        **{"attention": "fp8", "ffn": "nvfp4", "lm_head": "nvfp4", "kv_cache": "fp8", "activation": "fp8"},
    },
    "nvidia--Qwen3.6-35B-A3B-NVFP4": {
        **{"attention": "fp8", "experts": "nvfp4", "shared_experts": "nvfp4", "lm_head": "nvfp4", "activation": "fp8"},
    },
    "deepseek-ai--DeepSeek-V4-Flash": {
        **dict.fromkeys(("attention", "shared_experts", "mtp"), "fp8_block"),
        **{"experts": "mxfp4", "activation": "fp8", "expert_activation": "fp8"},
    },
    "nvidia--DeepSeek-V4-Flash-NVFP4": {
        **dict.fromkeys(("attention", "shared_experts", "mtp"), "fp8_block"),
        **{"experts": "nvfp4", "activation": "fp8", "expert_activation": "nvfp4"},
    },
    "nvidia--DeepSeek-V3.1-NVFP4": {
        **dict.fromkeys(("ffn", "experts", "shared_experts", "activation", "expert_activation"), "nvfp4"),
        "kv_cache": "fp8",
    },
    "nvidia--Llama-3.1-70B-Instruct-FP8": dict.fromkeys(("attention", "ffn", "kv_cache", "activation"), "fp8"),
}


def _quantised(quantisation: dict[str, Any], **fields: object) -> Architecture:
    return architecture_from_config({**MOE, **fields, "quantization_config": quantisation}, name="m", source="c.json")


@pytest.mark.parametrize("folder", PUBLISHED)
def test_published_checkpoints_have_the_formats_their_lists_say(config_folders: list[Path], folder: str) -> None:
    arch = load_model(config_folders[0].parent / folder)
    assert arch.precisions == Precisions(**PUBLISHED[folder])


def test_a_name_rule_leaves_its_reason(config_folders: list[Path]) -> None:
    arch = load_model(config_folders[0].parent / "nvidia--DeepSeek-V3.1-NVFP4")
    assert "the config states no quantisation" in arch.metadata["precision"]


def test_the_name_rule_is_for_nvidia_checkpoints_alone() -> None:
    assert architecture_from_config(MOE, name="nvidia/m-FP8").precisions.experts == "fp8"
    assert architecture_from_config(MOE, name="lab/m-FP8").precisions.experts == "bf16"


def test_a_quantisation_file_beside_the_config_comes_before_the_name(tmp_path: Path) -> None:
    folder = tmp_path / "nvidia--m-FP8"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(MOE), encoding="utf-8")
    quantisation = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head", "*self_attn*"]}
    (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": quantisation}), encoding="utf-8")
    precisions = load_model(folder).precisions
    assert (precisions.attention, precisions.experts, precisions.kv_cache) == ("bf16", "nvfp4", "fp8")


def test_ignored_modules_stay_plain_and_the_rest_is_converted() -> None:
    arch = _quantised({"quant_method": "fp8", "modules_to_not_convert": ["self_attn", "model.layers.4"]})
    assert (arch.precisions.attention, arch.precisions.mtp) == ("bf16", "bf16")
    assert (arch.precisions.ffn, arch.precisions.experts, arch.precisions.activation) == ("fp8", "fp8", "fp8")


def test_a_short_name_covers_whole_path_components_only() -> None:
    arch = _quantised({"quant_method": "fp8", "modules_to_not_convert": ["gate", "proj", "experts.0.gate"]})
    assert (arch.precisions.ffn, arch.precisions.experts) == ("fp8", "fp8")


def test_a_class_split_over_layers_takes_the_format_of_most_and_says_so() -> None:
    arch = _quantised({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["model.layers.3.mlp.experts*"]})
    assert arch.precisions.experts == "nvfp4"
    assert arch.metadata["precision.experts"] == "nvfp4 in 2 layers, bf16 in 1 layers"


def test_compressed_tensors_formats_are_told_apart() -> None:
    def fmt(weights: dict[str, Any], inputs: dict[str, Any] | None = None) -> tuple[str, str]:
        group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
        arch = _quantised({"quant_method": "compressed-tensors", "config_groups": {"group_0": group}})
        return arch.precisions.experts, arch.precisions.expert_activation

    assert fmt({"num_bits": 4, "type": "int", "group_size": 32}) == ("int4", "bf16")
    assert fmt({"num_bits": 8, "type": "int"}, {"num_bits": 8, "type": "int"}) == ("int8", "int8")
    assert fmt({"num_bits": 8, "type": "float"}, {"num_bits": 8, "type": "float"}) == ("fp8", "fp8")
    four = {"num_bits": 4, "type": "float"}
    assert fmt({**four, "group_size": 16}, {**four, "group_size": 16}) == ("nvfp4", "nvfp4")
    assert fmt({**four, "group_size": 32}) == ("mxfp4", "bf16")


def test_unknown_methods_and_formats_are_refused_by_name() -> None:
    with pytest.raises(PlannerError, match=r"c\.json: quantization_config: quantisation method `quip` is not known"):
        _quantised({"quant_method": "quip"})
    with pytest.raises(PlannerError, match="field `quant_algo` must be one of"):
        _quantised({"quant_method": "modelopt", "quant_algo": "FP3"})
    with pytest.raises(PlannerError, match="field `kv_cache_scheme` must be"):
        _quantised({"quant_method": "fp8", "kv_cache_scheme": {"type": "int", "num_bits": 2}})


def test_with_precision_equals_the_published_conversions() -> None:
    for base, weights, kv_cache, converted in [
        ("Qwen/Qwen3-235B-A22B", "fp8_block", None, "Qwen/Qwen3-235B-A22B-FP8"),
        ("zai-org/GLM-5", "fp8_block", None, "zai-org/GLM-5-FP8"),
        ("Qwen/Qwen3-32B", "fp8", "fp8", "Qwen/Qwen3-32B-FP8-Static-PerTensor"),
        ("moonshotai/Kimi-K2.5", "nvfp4", "fp8", "nvidia/Kimi-K2.5-NVFP4"),
        ("moonshotai/Kimi-K2-Instruct", "int4", None, "moonshotai/Kimi-K2.5"),
    ]:
        assert with_precision(find_model(base), weights, kv_cache).precisions == find_model(converted).precisions


@pytest.mark.parametrize("weights", ["bf16", "fp16", "fp8", "fp8_block", "nvfp4", "mxfp4", "int4", "int8"])
@pytest.mark.parametrize("name", ["Qwen/Qwen3-8B", "deepseek-ai/DeepSeek-V3", "openai/gpt-oss-20b"])
def test_conversion_is_idempotent_and_forgets_the_old_format(name: str, weights: str) -> None:
    arch = find_model(name)
    once = with_precision(arch, weights)
    assert with_precision(once, weights) == once
    assert with_precision(with_precision(arch, "fp8"), weights) == once
    assert once.layers == arch.layers
    assert {once.precisions.embedding, once.precisions.lm_head} == {"fp16" if weights == "fp16" else "bf16"}


def test_none_leaves_weights_or_cache_as_they_are() -> None:
    arch = find_model("openai/gpt-oss-20b")
    assert with_precision(arch, None) == arch
    assert with_precision(arch, None, "fp8").precisions.experts == "mxfp4"
    assert with_precision(arch, None, "fp8").precisions.kv_cache == "fp8"
    assert with_precision(with_precision(arch, None, "fp8"), "bf16").precisions.kv_cache == "fp8"


def test_unknown_formats_are_refused_with_near_ones() -> None:
    arch = find_model("Qwen/Qwen3-8B")
    with pytest.raises(PlannerError, match="unknown weight format `fp8_blok`") as error:
        with_precision(arch, "fp8_blok")
    assert "`fp8_block`" in error.value.hint
    with pytest.raises(PlannerError, match="unknown KV cache format `fp9`"):
        with_precision(arch, "fp8", "fp9")


def test_every_format_of_the_catalog_has_a_width() -> None:
    assert all(bits > 0 for bits in BITS.values())

"""What config.json files become, and what becomes of broken ones."""

import json
from pathlib import Path
from typing import Any

import pytest

from planner.documents.files import canonical_json
from planner.errors import PlannerError
from planner.models.architecture import (
    Architecture,
    DenseFfn,
    GroupedQueryAttention,
    LatentAttention,
    LinearAttention,
    MoeFfn,
)
from planner.models.config_json import architecture_from_config, read_config
from planner.models.library import find_model, load_model
from planner.models.parameters import parameter_counts

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}


def _import(config: dict[str, Any], name: str = "test/model") -> Architecture:
    return architecture_from_config(config, name=name, source="config.json")


@pytest.fixture(scope="session")
def models(config_folders: list[Path]) -> dict[str, Architecture]:
    return {folder.name.replace("--", "/", 1): load_model(folder) for folder in config_folders}


def test_every_published_config_imports(models: dict[str, Architecture]) -> None:
    assert len(models) == 85
    for name, arch in models.items():
        assert arch.num_layers > 0, name
        assert parameter_counts(arch).total > 5e8, name


@pytest.mark.parametrize(
    ("rope", "context_tokens"),
    [
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 3072}}, 12288),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6}}, 16384),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 512}}, 4096),
        ({"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e6}}}, 4096),
    ],
)
def test_yarn_extends_the_context_and_other_scalings_are_in_the_positions(
    rope: dict[str, Any], context_tokens: int
) -> None:
    assert _import(LLAMA | rope).max_context_tokens == context_tokens
    with pytest.raises(PlannerError, match="`factor` must be a positive number"):
        _import(LLAMA | {"rope_scaling": {"rope_type": "yarn", "factor": "4"}})


def test_only_layers_without_a_cost_model_are_unsupported(models: dict[str, Architecture]) -> None:
    unpriced = {name for name, arch in models.items() if arch.unsupported_parts()}
    assert unpriced == {
        "MiniMaxAI/MiniMax-M3",
        "moonshotai/Kimi-K3",
        *(f"deepseek-ai/DeepSeek-V4-{size}" for size in ("Flash", "Pro")),
        *(f"sgl-project/DeepSeek-V4-{size}-FP8" for size in ("Flash", "Pro")),
        *(f"nvidia/DeepSeek-V4-{size}-NVFP4" for size in ("Flash", "Pro")),
    }
    for name in unpriced:
        assert all(len(reason) > 20 for reason in models[name].unsupported_parts())


def test_deepseek_v3_is_latent_attention_with_three_dense_layers(models: dict[str, Architecture]) -> None:
    arch = models["deepseek-ai/DeepSeek-V3"]
    assert [isinstance(layer.ffn, DenseFfn) for layer in arch.layers] == [True] * 3 + [False] * 58
    mixer = arch.layers[0].mixer
    assert isinstance(mixer, LatentAttention)
    assert (mixer.kv_lora_rank, mixer.qk_rope_head_dim, mixer.indexer) == (512, 64, None)
    assert len(arch.mtp_layers) == 1
    assert arch.mtp_embeddings


def test_glm_5_2_shares_indexers_in_three_of_four_layers(models: dict[str, Architecture]) -> None:
    mixers = [layer.mixer for layer in models["zai-org/GLM-5.2"].layers]
    shared = [mixer.indexer.shared for mixer in mixers if isinstance(mixer, LatentAttention) and mixer.indexer]
    assert len(shared) == 78
    assert shared.count(False) == 21
    assert not any(
        mixer.indexer.shared
        for layer in models["zai-org/GLM-5"].layers
        if isinstance(mixer := layer.mixer, LatentAttention) and mixer.indexer
    )


def test_hybrids_alternate_recurrent_and_full_layers(models: dict[str, Architecture]) -> None:
    qwen = models["Qwen/Qwen3.5-35B-A3B"]
    assert sum(isinstance(layer.mixer, LinearAttention) for layer in qwen.layers) == 30
    full = qwen.layers[3].mixer
    assert isinstance(full, GroupedQueryAttention)
    assert full.output_gate
    nano = models["nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"]
    kinds = [
        "E" if layer.mixer is None else "*" if isinstance(layer.mixer, GroupedQueryAttention) else "M"
        for layer in nano.layers
    ]
    assert "".join(kinds) == "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
    k3 = models["moonshotai/Kimi-K3"]
    assert [layer + 1 for layer in range(93) if isinstance(k3.layers[layer].mixer, LatentAttention)][:3] == [4, 8, 12]
    assert sum(isinstance(layer.mixer, LinearAttention) for layer in k3.layers) == 69


def test_windows_chunks_and_sinks_are_read(models: dict[str, Architecture]) -> None:
    def mixers(name: str) -> list[GroupedQueryAttention]:
        return [m for layer in models[name].layers if isinstance(m := layer.mixer, GroupedQueryAttention)]

    oss = mixers("openai/gpt-oss-120b")
    assert [m.window_tokens for m in oss[:3]] == [128, 0, 128]
    assert all(m.sinks and m.qkv_bias and m.output_bias for m in oss)
    mimo = mixers("XiaomiMiMo/MiMo-V2-Flash")
    assert (mimo[0].num_kv_heads, mimo[0].sinks, mimo[1].num_kv_heads, mimo[1].sinks) == (4, False, 8, True)
    assert (mimo[1].window_tokens, mimo[1].head_dim, mimo[1].v_head_dim) == (128, 192, 128)
    gemma = mixers("google/gemma-4-26B-A4B")
    assert (gemma[5].head_dim, gemma[5].num_kv_heads, gemma[5].values_are_keys) == (512, 2, True)
    assert (gemma[0].head_dim, gemma[0].num_kv_heads, gemma[0].window_tokens) == (256, 8, 1024)
    scout = mixers("meta-llama/Llama-4-Scout-17B-16E-Instruct")
    assert [m.chunked for m in scout[:4]] == [True, True, True, False]


def test_nemotron_nas_layers_vary_in_width_and_drop_attention(models: dict[str, Architecture]) -> None:
    layers = models["nvidia/Llama-3_3-Nemotron-Super-49B-v1"].layers
    assert sum(layer.mixer is None for layer in layers) == 31
    assert len({layer.ffn.intermediate_size for layer in layers if isinstance(layer.ffn, DenseFfn)}) > 5


def test_llama_4_interleaves_experts_with_wide_dense_layers(models: dict[str, Architecture]) -> None:
    ffns = [layer.ffn for layer in models["meta-llama/Llama-4-Maverick-17B-128E-Instruct"].layers]
    assert isinstance(ffns[0], DenseFfn)
    assert ffns[0].intermediate_size == 16384
    assert isinstance(ffns[1], MoeFfn)
    assert (ffns[1].num_experts, ffns[1].shared_intermediate_size) == (128, 8192)


def test_generic_families_count_as_published() -> None:
    gpt2 = {"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257}
    assert parameter_counts(_import(gpt2)).total == 124_439_808  # OpenAI GPT-2 small
    neox = {
        "model_type": "gpt_neox",
        "hidden_size": 6144,
        "intermediate_size": 24576,
        "num_attention_heads": 64,
        "num_hidden_layers": 44,
        "vocab_size": 50432,
        "max_position_embeddings": 2048,
        "torch_dtype": "float16",
    }
    assert parameter_counts(_import(neox)).total == 20_554_567_680  # GPT-NeoX-20B, arXiv:2204.06745
    assert _import(neox).precisions.embedding == "fp16"


def test_an_unknown_model_type_with_plain_fields_reads_as_a_plain_decoder() -> None:
    arch = _import({**LLAMA, "model_type": "newcomer"})
    assert not arch.unsupported_parts()
    assert arch.layers == _import(LLAMA).layers
    assert "newcomer" in arch.metadata["model_type"]


def test_an_unknown_model_type_with_unknown_fields_is_unsupported() -> None:
    arch = _import({**LLAMA, "model_type": "newcomer", "warp_drive_heads": 3})
    assert arch.unsupported_parts() == ["model type `newcomer` is not known, nor are its fields `warp_drive_heads`"]


def test_an_unknown_model_type_without_heads_is_refused_with_near_names() -> None:
    with pytest.raises(PlannerError, match=r"model type `qwen_3` is not known") as error:
        _import({"model_type": "qwen_3", "hidden_size": 64})
    assert "`qwen3`" in error.value.hint


@pytest.mark.parametrize("field", ["hidden_size", "num_hidden_layers", "vocab_size", "intermediate_size", "model_type"])
def test_a_missing_field_is_named_with_its_file(field: str) -> None:
    with pytest.raises(PlannerError, match=rf"config\.json: field `{field}` is missing"):
        _import({key: value for key, value in LLAMA.items() if key != field})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_size", "512"),
        ("hidden_size", -512),
        ("num_hidden_layers", 0),
        ("num_hidden_layers", True),
        ("num_hidden_layers", 10**12),
        ("hidden_size", 10**30),
        ("num_key_value_heads", 3),
        ("num_attention_heads", 7),
        ("torch_dtype", "bfloat17"),
        ("attention_bias", "yes"),
        ("model_type", 5),
        ("quantization_config", "fp8"),
        ("text_config", [1]),
    ],
)
def test_an_impossible_value_is_named(field: str, value: object) -> None:
    with pytest.raises(PlannerError, match=rf"field `{field}` must be"):
        _import({**LLAMA, field: value})


JUNK: list[Any] = [None, "x", -1, 0, 2.5, float("nan"), float("inf"), True, [], [1, "x"], [[1]], [{}], {}, {"x": [1]}]


def _imports_or_names_the_file(config: dict[str, Any]) -> None:
    try:
        architecture_from_config(config, name="broken/model", source="config.json")
    except PlannerError as error:
        assert "config.json" in str(error)  # noqa: PT017  # a broken field that nobody reads may also import


def test_no_single_broken_field_of_a_published_config_escapes_as_another_error(config_folders: list[Path]) -> None:
    seen: set[str] = set()
    for folder in config_folders:
        whole: dict[str, Any] = read_config(folder / "config.json")
        whole.pop("quantization_config", None)
        text: dict[str, Any] = whole.get("text_config", whole)
        text.pop("quantization_config", None)
        if text["model_type"] in seen:
            continue
        seen.add(text["model_type"])
        for field in text:
            for junk in JUNK:
                broken = {**text, field: junk}
                _imports_or_names_the_file({**whole, "text_config": broken} if "text_config" in whole else broken)
        for field in whole.get("vision_config", {}):
            for junk in JUNK:
                _imports_or_names_the_file({**whole, "vision_config": {**whole["vision_config"], field: junk}})


def test_no_broken_block_of_a_varying_model_escapes_as_another_error(config_folders: list[Path]) -> None:
    whole: dict[str, Any] = read_config(
        config_folders[0].parent / "nvidia--Llama-3_3-Nemotron-Super-49B-v1/config.json"
    )
    block = whole["block_configs"][0]
    for part in block:
        for junk in JUNK:
            _imports_or_names_the_file({**whole, "block_configs": [{**block, part: junk}] * 80})
            for field in block[part]:
                broken = {**block, part: {**block[part], field: junk}}
                _imports_or_names_the_file({**whole, "block_configs": [broken] * 80})


@pytest.mark.parametrize(
    "folder", ["openai--gpt-oss-20b", "Qwen--Qwen3-32B-FP8-Static-PerTensor", "moonshotai--Kimi-K2.5"]
)
def test_no_single_broken_quantisation_field_escapes_as_another_error(config_folders: list[Path], folder: str) -> None:
    whole: dict[str, Any] = read_config(config_folders[0].parent / folder / "config.json")
    quantisation = whole.get("quantization_config") or whole["text_config"]["quantization_config"]
    for field in quantisation:
        for junk in JUNK:
            _imports_or_names_the_file({**LLAMA, "quantization_config": {**quantisation, field: junk}})


def test_a_file_that_is_no_config_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(PlannerError, match="file not found"):
        load_model(tmp_path)
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "llama",\n "hidden', encoding="utf-8")
    with pytest.raises(PlannerError, match=r"config\.json:2: not JSON"):
        load_model(tmp_path)
    path.write_text("[1]", encoding="utf-8")
    with pytest.raises(PlannerError, match="must hold an object, found list"):
        load_model(path)
    for content in (b"\xff\xfe{", b"[" * 100_000, b'{"a": ' + b"9" * 10_000 + b"}", b""):
        path.write_bytes(content)
        with pytest.raises(PlannerError, match="not JSON"):
            load_model(path)
    with pytest.raises(PlannerError, match="cannot read it"):
        load_model("nul\0byte")


def test_infinity_as_python_writes_it_is_read_as_text_that_a_plan_can_hold(tmp_path: Path) -> None:
    """Nemotron-H states `time_step_limit` so."""
    (tmp_path / "config.json").write_text('{"time_step_limit": [0.0, Infinity]}')
    contents = read_config(tmp_path / "config.json")
    assert canonical_json(contents) == '{"time_step_limit":[0.0,"Infinity"]}'


def test_a_model_is_named_after_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "lab--tiny-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    assert load_model(folder).name == "lab/tiny-model"
    assert load_model(folder / "config.json").name == "lab/tiny-model"


def test_unsupported_mixers_say_why() -> None:
    arch = _import({**LLAMA, "model_type": "qwen2", "use_sliding_window": True})
    assert arch.unsupported_parts() == ["use_sliding_window with max_window_layers"]


def test_the_tower_of_llama_4_makes_up_its_published_size(config_folders: list[Path]) -> None:
    """108,641,793,536 elements in the index of the checkpoint of Scout."""
    (folder,) = (folder for folder in config_folders if "Llama-4-Scout" in folder.name)
    vision = {
        "hidden_size": 1408, "intermediate_size": 5632, "num_hidden_layers": 34, "num_attention_heads": 16,
        "patch_size": 14, "image_size": 336, "num_channels": 3, "projector_input_dim": 4096,
        "projector_output_dim": 4096, "vision_output_dim": 4096,
    }  # fmt: skip
    config = json.loads((folder / "config.json").read_text(encoding="utf-8")) | {"vision_config": vision}
    imported = _import(config)
    assert parameter_counts(imported).stored == 108_641_793_536
    assert imported.encoders == find_model("Llama-4-Scout").encoders

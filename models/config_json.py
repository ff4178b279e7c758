"""Reads a Hugging Face config.json into an `Architecture`, without guessing."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from planner.documents.read import file_not_found
from planner.errors import PlannerError, did_you_mean
from planner.models.architecture import Architecture, Precisions
from planner.models.formats import our_name
from planner.models.importers import dense, experts, hybrid, latent, stepfun
from planner.models.importers.decoder import Decoder, Reader
from planner.models.importers.encoders import encoders
from planner.models.importers.fields import ConfigFields
from planner.models.importers.quantisation import quantise
from planner.models.precision import with_precision

_READERS: dict[str, Reader] = {
    "llama": dense.llama,
    "mistral": dense.llama,
    "qwen2": dense.qwen2,
    "qwen3": dense.qwen3,
    "qwen3_vl_text": dense.qwen3,
    "mimo": dense.mimo,
    "gemma3_text": dense.gemma3,
    "step1": stepfun.step1,
    "step3_text": stepfun.step3,
    "opt": dense.opt,
    "gpt2": dense.gpt2,
    "gpt_neox": dense.gpt_neox,
    "nemotron-nas": dense.deci,
    "qwen3_moe": experts.qwen3_moe,
    "qwen3_vl_moe_text": experts.qwen3_moe,
    "mixtral": experts.mixtral,
    "minimax_m2": experts.minimax_m2,
    "minimax_m3": experts.minimax_m3,
    "llama4_text": experts.llama4,
    "gpt_oss": experts.gpt_oss,
    "step3p7": experts.step3p7,
    "mimo_v2_flash": experts.mimo_v2_flash,
    "gemma4_text": experts.gemma4,
    "deepseek_v2": latent.deepseek,
    "deepseek_v3": latent.deepseek,
    "kimi_k2": latent.deepseek,
    "deepseek_v32": latent.deepseek_v32,
    "deepseek_v4": latent.deepseek_v4,
    "deepseek_ref": latent.deepseek_v4,
    "glm_moe_dsa": latent.glm_moe_dsa,
    "kimi_linear": latent.kimi_linear,
    "qwen3_next": hybrid.qwen3_5,
    "qwen3_5_text": hybrid.qwen3_5,
    "qwen3_5_moe_text": hybrid.qwen3_5,
    "nemotron_h": hybrid.nemotron_h,
    "minimax_m1": hybrid.minimax_m1,
}

_PLAIN_FIELDS = frozenset(
    (
        *("architectures", "auto_map", "dtype", "torch_dtype", "transformers_version", "_name_or_path", "model_type"),
        *("bos_token_id", "eos_token_id", "pad_token_id", "initializer_range", "pretraining_tp", "use_cache"),
        *("attention_bias", "attention_dropout", "head_dim", "num_attention_heads", "num_key_value_heads"),
        *("hidden_act", "hidden_size", "intermediate_size", "mlp_bias", "num_hidden_layers", "rms_norm_eps"),
        *("max_position_embeddings", "rope_parameters", "rope_scaling", "rope_theta", "sliding_window"),
        *("quantization_config", "tie_word_embeddings", "vocab_size"),
    )
)
"""What the config of a plain decoder may say; a field beyond these may change the layers in a way we do not know."""

_CONTEXT = ("max_position_embeddings", "n_positions", "max_position_embedding", "max_seq_len")
_PLAIN_FORMATS = ("bf16", "fp16", "fp32")
_NAMED_PRECISIONS = (("-nvfp4", "nvfp4", "fp8"), ("-fp4", "nvfp4", "fp8"), ("-fp8", "fp8", "fp8"))
"""For NVIDIA checkpoints: they keep their quantisation (and an FP8 cache) in hf_quant_config.json beside the config."""


def read_config(path: Path) -> dict[str, object]:
    """The JSON object in `path`, with the Infinity and NaN of Python's writer as text: plans keep the file as JSON.

    Raises PlannerError when it cannot be read or is not an object.
    """
    try:
        data = json.loads(path.read_bytes().decode("utf-8"), parse_constant=str)
    except FileNotFoundError as error:
        raise file_not_found(path, otherwise="give a config.json") from error
    except OSError as error:
        raise PlannerError(f"cannot read it: {error.strerror}", where=str(path), hint="give a config.json") from error
    except (ValueError, RecursionError) as error:
        if "\0" in str(path):
            raise PlannerError(
                "cannot read it: no such path", where=repr(str(path)), hint="give a config.json"
            ) from error
        line = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise PlannerError(f"not JSON: {reason}", where=f"{path}{line}", hint="download the file again") from error
    if not isinstance(data, dict):
        raise PlannerError(
            f"must hold an object, found {type(data).__name__}", where=str(path), hint="give a config.json"
        )
    return data


def config_of_checkpoint(path: Path) -> dict[str, object]:
    """The config.json at `path`, with the quantisation of a hf_quant_config.json beside it where it states none.

    Raises PlannerError when either cannot be read.
    """
    config, beside = read_config(path), path.with_name("hf_quant_config.json")
    if config.get("quantization_config") is not None or not beside.exists():
        return config
    stated = ConfigFields(read_config(beside), str(beside)).child("quantization").data
    ignored = stated.get("exclude_modules") or []
    return {**config, "quantization_config": {**stated, "quant_method": "modelopt", "ignore": ignored}}


def architecture_from_config(config: Mapping[str, object], *, name: str, source: str = "") -> Architecture:
    """The model that `config` describes; `source` (a path or link) is what error messages point at.

    A layer type without a cost model imports as an `UnsupportedMixer` or a line in `Architecture.unsupported`.
    Raises PlannerError for a missing or impossible field.
    """
    where = source or name
    whole = ConfigFields(config, where)
    text = _decoder_fields(whole)
    decoder = _read_decoder(text)
    plain = _plain_format(whole, text)
    arch = Architecture(
        name=name,
        hidden_size=text.count("hidden_size", "n_embd"),
        vocab_size=text.count("vocab_size"),
        layers=decoder.layers,
        tied_embeddings=_tied(whole, text, decoder),
        max_context_tokens=_context_tokens(text),
        precisions=Precisions(*(plain,) * 11),
        mtp_layers=decoder.mtp_layers,
        mtp_embeddings=decoder.mtp_embeddings,
        mtp_heads=decoder.mtp_heads,
        encoders=encoders(whole, whole.text("model_type")),
        position_embeddings=decoder.position_embeddings,
        embedding_size=decoder.embedding_size,
        norm_bias=decoder.norm_bias,
        final_norm=decoder.final_norm,
        layer_inputs=decoder.layer_inputs,
        unsupported=decoder.unsupported,
        source=source,
        metadata=decoder.metadata,
    )
    return _with_stated_precision(arch, whole, text, plain)


def _decoder_fields(whole: ConfigFields) -> ConfigFields:
    """The object that describes the decoder: `text_config` of a multimodal model, else the whole."""
    return whole.child("text_config") if whole.has("text_config") else whole


def _context_tokens(text: ConfigFields) -> int:
    """Positions that engines start the model with: where YaRN extends them, its factor times those trained before.

    As vLLM derives it (vllm/config/model.py, `_get_and_verify_max_len`): Qwen's checkpoints, among others, state
    YaRN beside an unchanged `max_position_embeddings`. Raises PlannerError for a factor that is not positive.
    """
    own = text.count(*_CONTEXT)
    rope = text.child("rope_parameters" if text.has("rope_parameters") else "rope_scaling")
    if rope.text("rope_type", default=rope.text("type", default="")) != "yarn":
        return own
    factor = rope.data.get("factor")
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < math.inf:
        raise rope.wrong("factor", "a positive number", factor)
    return int(factor * rope.count("original_max_position_embeddings", default=own))


def _read_decoder(text: ConfigFields) -> Decoder:
    model_type = text.text("model_type")
    reader = _READERS.get(model_type)
    if reader is not None:
        return reader(text)
    unknown = sorted(set(text.data) - _PLAIN_FIELDS)
    if not text.has("num_key_value_heads", "num_attention_heads"):
        raise PlannerError(
            f"model type `{model_type}` is not known and its fields are not those of a plain decoder",
            where=text.where,
            hint=did_you_mean(model_type, list(_READERS), otherwise="write a catalog entry (docs/adding-a-model.md)"),
        )
    decoder = dense.llama(text)
    if not unknown:
        return replace(decoder, metadata={"model_type": f"{model_type} is not known: read as a plain decoder"})
    fields = ", ".join(f"`{name}`" for name in unknown)
    return replace(decoder, unsupported=(f"model type `{model_type}` is not known, nor are its fields {fields}",))


def _plain_format(whole: ConfigFields, text: ConfigFields) -> str:
    """The format of unquantised tensors; bf16 when the config is silent."""
    for fields in (text, whole):
        for name in ("dtype", "torch_dtype"):
            if fields.has(name):
                stated = fields.text(name)
                if our_name(stated) not in _PLAIN_FORMATS:
                    raise fields.wrong(name, "bfloat16 or float16 or float32", stated)
                return our_name(stated)
    return "bf16"


def _tied(whole: ConfigFields, text: ConfigFields, decoder: Decoder) -> bool:
    fields = whole if whole.has("tie_word_embeddings") else text
    return fields.flag("tie_word_embeddings", default=decoder.tied_by_default)


def _with_stated_precision(arch: Architecture, whole: ConfigFields, text: ConfigFields, plain: str) -> Architecture:
    for fields in (whole, text):
        if fields.has("quantization_config"):
            return _experts_in_four_bits(quantise(arch, fields.child("quantization_config"), plain=plain), text)
    name = arch.name.casefold()
    for ending, weights, kv_cache in _NAMED_PRECISIONS:
        if name.startswith("nvidia/") and name.endswith(ending):
            note = f"{weights} by the name `{arch.name}`: the config states no quantisation"
            return replace(with_precision(arch, weights, kv_cache), metadata={**arch.metadata, "precision": note})
    return arch


def _experts_in_four_bits(arch: Architecture, text: ConfigFields) -> Architecture:
    """DeepSeek-V4 states the format of its experts apart: fp4 with an 8-bit exponent per 32 values, fp8 activations."""
    if text.data.get("expert_dtype") != "fp4" or arch.precisions.experts == "nvfp4":
        return arch
    return replace(arch, precisions=replace(arch.precisions, experts="mxfp4", expert_activation="fp8"))

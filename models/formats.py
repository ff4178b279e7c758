"""Formats of numbers by every name that engines, Hugging Face and NVIDIA's tools write them under.

Each of our names has those of vLLM's `--quantization` and `--kv-cache-dtype` and SGLang's, of `torch_dtype` and
`quantization_config` of a config.json (compressed-tensors schemes among them), of NVIDIA's Model Optimizer
(`quant_algo`), and of AIConfigurator. Case, `torch.` in front and dashes in place of underlines do not matter.
Formats of which only bytes are alike have no name here: 8-bit weights under 16-bit inputs (`int8_wo`, `w8a16`),
4-bit weights under 8-bit inputs (`w4afp8`), and `fp4`, which is nvfp4 to some and mxfp4 to others.
"""

from collections.abc import Iterable

from planner.errors import unknown_name

ALIASES: dict[str, tuple[str, ...]] = {
    "fp32": ("float32", "float", "f32"),
    "bf16": ("bfloat16",),
    "fp16": ("float16", "half", "f16"),
    "fp8": (
        *("float8", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e4m3", "float8_e5m2", "fp8_e4m3", "fp8_e5m2", "e4m3"),
        *("fp8_static", "fp8_dynamic", "fp8_ootb", "fp8_per_tensor", "fp8_per_channel_per_token", "fp8_rowwise"),
        *("modelopt_fp8", "fbgemm_fp8", "ptpc_fp8", "quark_fp8", "w8a8_fp8"),
    ),
    "fp8_block": (
        *("fp8_block_scales", "fp8_blockscale", "fp8_blockwise", "fp8_per_block", "fp8_pb", "fp8_pb_wo", "block_fp8"),
        *("blockwise_fp8", "fp8_128x128", "deepseek_fp8"),
    ),
    "mxfp8": ("mx_fp8", "modelopt_mxfp8"),
    "nvfp4": ("modelopt_fp4", "modelopt_nvfp4", "nvfp4_awq", "nvfp4a4", "w4a4_nvfp4", "fp4_nvfp4"),
    "mxfp4": ("w4a16_mxfp4", "mxfp4_moe", "gpt_oss_mxfp4", "fp4_mxfp4"),
    "int4": (
        *("int4_wo", "int4_weight_only", "uint4", "w4a16", "w4a16_awq", "w4a16_gptq", "int4_awq", "int4_gptq", "awq"),
        *("awq_marlin", "awq_int4", "gptq", "gptq_marlin", "gptq_int4", "moe_wna16", "nf4"),
    ),
    "int8": ("w8a8", "w8a8_int8", "int8_w8a8", "smoothquant", "int8_sq", "w8a8_sq_per_channel"),
}
"""Our names, each with those that mean it."""

OWN = ("auto", "checkpoint default", "")
"""What launch scripts and tables write where the checkpoint's own format stands."""

_OURS = {alias: name for name, aliases in ALIASES.items() for alias in (name, *aliases)}


def format_named(text: str, known: Iterable[str], *, what: str = "format", where: str = "") -> str:
    """Our name of a format, one of those `known`. Raises UnknownNameError with the nearest names."""
    names = list(known)
    name = our_name(text)
    if name not in names:
        accepted = [alias for alias, ours in _OURS.items() if ours in names]
        raise unknown_name(what, text, accepted, otherwise=f"use one of {', '.join(names)}", where=where)
    return name


def our_name(text: str) -> str:
    """Our name of a format; what is no name of any comes back as it is."""
    plain = text.strip().lower().removeprefix("torch.").replace("-", "_")
    return _OURS.get(plain, text)


def names_of(known: Iterable[str]) -> list[str]:
    """All that is accepted for these formats, ours first."""
    names = list(known)
    return [*names, *(alias for name in names for alias in ALIASES.get(name, ()))]

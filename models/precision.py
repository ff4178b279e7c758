"""The same architecture with its weights in another storage format (fp8, ...), as quantised checkpoints have them."""

from dataclasses import replace

from planner.models.architecture import BITS, Architecture, Precisions, holds
from planner.models.formats import format_named

_ACTIVATION = {
    "fp8": "fp8",
    "fp8_block": "fp8",
    "nvfp4": "nvfp4",
    "mxfp4": "bf16",
    "int4": "bf16",
    "int8": "int8",
}


_PARTS = ("attention", "ffn", "experts", "shared_experts")


def with_precision(arch: Architecture, weights: str | None, kv_cache: str | None = None) -> Architecture:
    """`arch` with its linear layers in `weights` and its KV cache in `kv_cache`; None leaves either as it is.

    Embedding, output matrix, routers, norms and encoders stay in bf16 (fp16 under "fp16"). What else stays in bf16
    follows published checkpoints:

    - fp8, fp8_block, int8: nothing; attention, FFN, experts, shared experts and MTP heads are all converted, as in
      Qwen/Qwen3-235B-A22B-FP8, zai-org/GLM-5-FP8 and DeepSeek-V3 itself.
    - nvfp4 of a mixture of experts: attention and MTP heads. The module lists of nvidia/{Kimi-K2.5,MiniMax-M2.5,
      GLM-5.1,Qwen3.5-397B-A17B,Gemma-4-26B-A4B}-NVFP4 all leave self_attn out; they differ on shared experts and
      first dense layers, where this follows Kimi-K2.5 (converted). The card of nvidia/DeepSeek-R1-0528-FP4-v2 says
      that only that second version converts one matrix of attention.
    - mxfp4 and int4 of a mixture of experts: all but the routed experts (openai/gpt-oss-120b, moonshotai/Kimi-K2.5,
      moonshotai/Kimi-K3), with bf16 activations.
    - nvfp4, mxfp4 and int4 of a dense model: nothing.

    fp8 of a checkpoint in blocks is fp8_block: engines load its scales as they are, whatever they are told.

    Formats go by any of their names (`models/formats.py`). Raises PlannerError for one that is not known.
    """
    stated = format_named(kv_cache, BITS, what="KV cache format") if kv_cache is not None else None
    cache = stated or arch.precisions.kv_cache
    if weights is None:
        return replace(arch, precisions=replace(arch.precisions, kv_cache=cache))
    weights = format_named(weights, ("bf16", "fp16", *_ACTIVATION), what="weight format")
    if weights == "fp8" and "fp8_block" in (arch.precisions.ffn, arch.precisions.experts):
        weights = "fp8_block"
    if weights in ("bf16", "fp16"):
        return replace(arch, precisions=_uniform(weights, cache))
    plain = "fp16" if arch.precisions.embedding == "fp16" else "bf16"
    converted = _converted(arch, weights)
    outside_experts = converted - {"experts", "mtp"}
    return replace(
        arch,
        precisions=replace(
            _uniform(plain, cache),
            **dict.fromkeys(converted, weights),
            activation=_ACTIVATION[weights] if outside_experts else plain,
            expert_activation=_ACTIVATION[weights] if "experts" in converted else plain,
        ),
    )


def _converted(arch: Architecture, weights: str) -> set[str]:
    """The classes of tensors that the model has and that take the format `weights`."""
    present = {part for part in _PARTS if any(holds(layer, part) for layer in arch.layers)}
    present |= {"mtp"} if arch.mtp_layers else set()
    if "experts" not in present:
        return present
    if weights == "nvfp4":
        return present - {"attention", "mtp"}
    return present & {"experts"} if weights in ("mxfp4", "int4") else present


def _uniform(plain: str, kv_cache: str) -> Precisions:
    return Precisions(*(plain,) * 8, kv_cache=kv_cache, activation=plain, expert_activation=plain)

"""Which models training engines know: torchtitan's own registry, and what Megatron's GPT model can be.

torchtitan 0.3 (torchtitan/models); Megatron-Core 0.16 (megatron/core/models/gpt). Megatron-Bridge, DeepSpeed and NeMo
AutoModel take models by their Hugging Face names.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from planner.models.architecture import Architecture, DenseFfn, GroupedQueryAttention, LatentAttention, MoeFfn


@dataclass(frozen=True, slots=True)
class TitanModel:
    """A model of torchtitan's registry: its package, the function that configures it, and its flavour."""

    package: str
    base: str
    flavour: str


TITAN_MODELS = {
    "meta-llama/Meta-Llama-3.1-8B": TitanModel("llama3", "llama3_8b", "8B"),
    "meta-llama/Meta-Llama-3.1-70B": TitanModel("llama3", "llama3_70b", "70B"),
    "meta-llama/Meta-Llama-3.1-405B": TitanModel("llama3", "llama3_405b", "405B"),
    "Qwen/Qwen3-0.6B": TitanModel("qwen3", "qwen3_0_6b", "0.6B"),
    "Qwen/Qwen3-1.7B": TitanModel("qwen3", "qwen3_1_7b", "1.7B"),
    "Qwen/Qwen3-14B": TitanModel("qwen3", "qwen3_14b", "14B"),
    "Qwen/Qwen3-32B": TitanModel("qwen3", "qwen3_32b", "32B"),
    "Qwen/Qwen3-30B-A3B": TitanModel("qwen3", "qwen3_30b_a3b", "30B-A3B"),
    "deepseek-ai/DeepSeek-V3": TitanModel("deepseek_v3", "deepseek_v3_671b", "671B"),
    "openai/gpt-oss-20b": TitanModel("gpt_oss", "gpt_oss_20b", "20b"),
    "openai/gpt-oss-120b": TitanModel("gpt_oss", "gpt_oss_120b", "120b"),
}
"""By the names of our catalog."""


TOWER_FAMILIES = ("Qwen/Qwen3-VL-",)
"""Whose towers Megatron-Bridge's providers hold on the first stage of the pipeline (megatron/bridge/models/qwen_vl)."""


def trained_without(model: Architecture) -> str | None:
    """What of the model is neither priced nor trained, in words; None where all is.

    Sparse attention: trained as its models are before they have an indexer (DeepSeek-V3.2, section 2.1).
    """
    mixers = (layer.mixer for layer in model.layers)
    chosen = {mixer.indexer.top_k for mixer in mixers if isinstance(mixer, LatentAttention) and mixer.indexer}
    if not chosen:
        return None
    return f"attention is over all tokens: the indexer of `{model.name}`, which chooses {max(chosen)}, is left out"


def towers_untrained(model: Architecture, task: str, tower: str = "towers") -> tuple[str, str] | None:
    """Why Megatron-Bridge does not train the model's towers on the stages of its decoder, and what to do instead."""
    if not model.name.startswith(TOWER_FAMILIES):
        what = f"Megatron-Bridge has no {tower} of `{model.name}`"
        return what, "it trains Qwen3-VL whole; write your own provider for other models"
    if task != "pretrain":
        what = f"Megatron-Bridge trains a model with {tower} on mock images here, and task `{task}` brings its own"
        return what, "plan task `pretrain`, and load weights by `checkpoint.pretrained_checkpoint`"
    return None


def untrained(engine: str, model: Architecture, task: str) -> tuple[str, str] | None:
    """Why this engine does not train the model, and what to do instead; None where it does."""
    reasons = {"torchtitan": _beyond_titan, "megatron-lm": _beyond_gpt, "megatron-bridge": _beyond_bridge}
    return next(reasons[engine](model, task), None) if engine in reasons else None


def _beyond_titan(model: Architecture, task: str) -> Iterator[tuple[str, str]]:
    if model.name not in TITAN_MODELS:
        able = ", ".join(f"`{name}`" for name in TITAN_MODELS)
        yield f"torchtitan has no configuration of `{model.name}` here", f"it has {able}"


def _beyond_gpt(model: Architecture, task: str) -> Iterator[tuple[str, str]]:
    """Where layers differ in more than being dense or a mixture of experts."""
    mixers, ffns = {layer.mixer for layer in model.layers}, {layer.ffn for layer in model.layers}
    if len(mixers) != 1 or not isinstance(model.layers[0].mixer, GroupedQueryAttention | LatentAttention):
        kinds = f"`{model.name}` has {len(mixers)} kinds of token mixers, or one that is no full attention"
        yield kinds, "Megatron's GPT model has one kind of attention; plan such a model, or name `megatron-bridge`"
    other = "plan another model, or name `megatron-bridge`"
    if None in ffns or len({ffn for ffn in ffns if isinstance(ffn, MoeFfn)}) > 1:
        yield f"`{model.name}` mixes layers that Megatron's GPT model cannot", other
    if len({ffn for ffn in ffns if isinstance(ffn, DenseFfn)}) > 1:
        yield f"`{model.name}` has dense layers of several widths", other


def _beyond_bridge(model: Architecture, task: str) -> Iterator[tuple[str, str]]:
    """Its recipes place adapters beside the products of grouped-query attention."""
    if task == "lora" and not isinstance(model.layers[0].mixer, GroupedQueryAttention):
        what = f"Megatron-Bridge has no place for adapters beside the attention of `{model.name}`"
        yield what, "plan a model with grouped-query attention, or task `sft`"

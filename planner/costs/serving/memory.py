"""Bytes on the fullest device of an instance: weights, KV cache, activations, workspace; arrays [N] over shards.

Pipeline stages hold ceil(layers / pp) layers; the fullest one also holds the embedding or the output matrix.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import ArrayLike

from planner.arrays import Floats
from planner.costs.operators.work import Shards
from planner.models.architecture import BITS, Architecture, DenseFfn, GroupedQueryAttention, LatentAttention, MoeFfn
from planner.models.kv import kv_bytes, state_bytes_per_sequence
from planner.models.modules import module_parameters
from planner.models.parameters import edge_tensors, layer_tensors, tensor_bytes


@dataclass(frozen=True, slots=True)
class Footprint:
    """Weight bytes of the whole model by how they shard: layers, and what only one end of the pipeline holds."""

    layers: dict[str, float]
    ends: dict[str, float]


@cache
def footprint(arch: Architecture) -> Footprint:
    """Weight bytes by split, layers and ends apart; encoders, and modules that run for every token, count as an end.

    Prediction heads are not loaded, and modules that run apart from the decoder take no memory of its devices.
    """
    layers: dict[str, float] = {}
    ends: dict[str, float] = {}
    for layer, count in arch.layer_groups():
        for tensor in layer_tensors(layer, arch):
            layers[tensor.split] = layers.get(tensor.split, 0.0) + count * tensor_bytes(tensor, arch)
    for tensor in edge_tensors(arch):
        ends[tensor.split] = ends.get(tensor.split, 0.0) + tensor_bytes(tensor, arch)
    beside = sum(encoder.parameters for encoder in arch.encoders)
    beside += sum(module_parameters(module) for module in arch.modules if module.steps_per_token)
    ends["replicated"] = ends.get("replicated", 0.0) + beside * BITS[arch.precisions.encoder] / 8
    return Footprint(layers, ends)


def weight_bytes(arch: Architecture, shards: Shards) -> Floats:
    """Weights on the fullest device [N]."""
    whole = footprint(arch)
    divisors = weight_divisors(arch, shards)
    stages = np.ceil(arch.num_layers / shards.pp) / arch.num_layers
    layers = sum((size / divisors[split] for split, size in whole.layers.items()), np.zeros(len(shards)))
    ends = sum((size / divisors[split] for split, size in whole.ends.items()), np.zeros(len(shards)))
    return layers * stages + np.where(shards.pp > 1, ends / 2.0 if not arch.tied_embeddings else ends, ends)


def weight_divisors(arch: Architecture, shards: Shards) -> dict[str, Floats]:
    """By how much each way of splitting a tensor divides it [N]."""
    kv_heads = [m.num_kv_heads for layer in arch.layers if isinstance(m := layer.mixer, GroupedQueryAttention)]
    whole = np.ones(len(shards))
    return {
        "replicated": whole,
        "heads": shards.tp,
        "kv_heads": np.minimum(shards.tp, float(min(kv_heads, default=1))),
        "ffn": shards.tp,
        "vocab": shards.tp,
        "experts": shards.moe_tp * shards.ep / _copied(arch, shards),
    }


def _copied(arch: Architecture, shards: Shards) -> Floats:
    """Experts that ranks hold together over those of the model [N]: all of them, and redundant ones."""
    experts = max((layer.ffn.num_experts for layer in arch.layers if isinstance(layer.ffn, MoeFfn)), default=1)
    return 1.0 + np.maximum(shards.redundant, 0.0) / experts


def kv_cache_bytes(arch: Architecture, shards: Shards, context_tokens: ArrayLike) -> Floats:
    """KV cache and recurrent state of one sequence at `context_tokens` [N] on the fullest device."""
    tokens = np.asarray(context_tokens, dtype=np.float64)
    tp = shards.tp.astype(np.int64)
    per_device = kv_bytes(arch, tokens, tp) + state_bytes_per_sequence(arch, tp)
    return np.asarray(per_device * np.ceil(arch.num_layers / shards.pp) / arch.num_layers, dtype=np.float64)


def activation_bytes(arch: Architecture, shards: Shards, tokens: ArrayLike, sampled: ArrayLike) -> Floats:
    """Peak of live activations of a step of `tokens` per attention rank, and the logits of `sampled` sequences.

    The widest moment of a layer: residual, normalised input, the block's inner activation twice (gate and up) and its
    output, all bf16; logits in bf16 and once in fp32 for sampling.
    """
    count = np.asarray(tokens, dtype=np.float64)
    widest = np.maximum(_inner_width(arch, shards), _attention_width(arch, shards))
    live = count * (3.0 * arch.hidden_size + widest) * 2.0
    return np.asarray(live + np.asarray(sampled) * arch.vocab_size * (2.0 / shards.tp + 4.0), dtype=np.float64)


def _inner_width(arch: Architecture, shards: Shards) -> Floats:
    """Elements per token inside the widest feed-forward part, on the rank that computes it."""
    width = np.zeros(len(shards))
    for layer, _ in arch.layer_groups():
        if isinstance(layer.ffn, DenseFfn):
            width = np.maximum(width, 3.0 * layer.ffn.intermediate_size / shards.tp)
        elif isinstance(layer.ffn, MoeFfn):
            routed = layer.ffn.top_k * shards.dp / shards.ep
            per_copy = 3.0 * layer.ffn.intermediate_size / shards.moe_tp + 2.0 * arch.hidden_size
            width = np.maximum(width, routed * per_copy)
    return width


def _attention_width(arch: Architecture, shards: Shards) -> Floats:
    width = np.zeros(len(shards))
    for layer, _ in arch.layer_groups():
        if isinstance(layer.mixer, GroupedQueryAttention):
            heads = layer.mixer.num_heads + 2 * layer.mixer.num_kv_heads
            width = np.maximum(width, 2.0 * heads * layer.mixer.head_dim / shards.tp)
        elif isinstance(layer.mixer, LatentAttention):
            per_head = 2 * (layer.mixer.qk_nope_head_dim + layer.mixer.qk_rope_head_dim) + 2 * layer.mixer.v_head_dim
            width = np.maximum(width, layer.mixer.num_heads * per_head / shards.tp)
    return width

"""Activation memory of a layer: bytes of one micro-batch kept from its forward to its backward pass.

As Korthikanti et al. count them (arXiv:2205.05198, section 4.1): inputs of products, of norms and of the activation,
queries, keys, values and outputs of the softmax attention, masks of dropout where there is any; products in 8 bits keep
their inputs in 8.
What the attention puts out is what the product behind it reads, and is kept once; queries, keys and values are inputs
of what `core_attention` computes again, and stay (section 5: 34 sbh are left).
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from planner.costs.operators.attention_core import attention_core
from planner.costs.operators.context import kv_values
from planner.costs.operators.products import scan_widths
from planner.costs.operators.recompute import BY_OPERATOR, held
from planner.costs.training.config import Shard, TrainingConfig
from planner.costs.training.layers.sizes import VALUE_BYTES
from planner.costs.training.stages import StagePart
from planner.models.architecture import DenseFfn, GroupedQueryAttention, LatentAttention, Layer, LinearAttention, MoeFfn

BF16 = 2.0
CONTEXT = "context"
"""Queries, keys and values, which no module that recomputation names makes again."""


@dataclass(frozen=True, slots=True)
class LayerActivations:
    """Bytes by what recomputation can name; `input_bytes` is what a layer computed again whole still keeps."""

    input_bytes: float
    of_module: dict[str, float]
    by_operator_bytes: float = 0.0  # under the policy by operator (`planner.costs.operators.recompute.BY_OPERATOR`)

    @property
    def total_bytes(self) -> float:
        return sum(self.of_module.values())

    def without(self, modules: Collection[str]) -> float:
        """What is left where these modules are computed again, or all that the policy by operator does not save."""
        if BY_OPERATOR in modules:
            return self.by_operator_bytes
        again = held(modules)
        return sum(size for module, size in self.of_module.items() if module not in again)


@lru_cache(maxsize=65536)
def layer_activations(layer: Layer, shard: Shard) -> LayerActivations:
    """What one layer keeps of one micro-batch on one rank."""
    kept: dict[str, float] = {}
    width = shard.tokens * shard.hidden * BF16 / shard.spread
    masks = width / BF16 if shard.hidden_dropout else 0.0  # of the outputs of both parts: a byte a value
    if layer.mixer is not None:
        _add(kept, "layernorm", width)
        _add(kept, "attention", masks)
        _mixer(kept, layer, shard)
    match layer.ffn:
        case DenseFfn():
            _add(kept, "layernorm", width)
            _add(kept, "mlp", masks)
            _dense(kept, layer.ffn, shard)
        case MoeFfn():
            _add(kept, "layernorm", width)
            _experts(kept, layer.ffn, shard)
        case None:
            pass
    return LayerActivations(width, kept, width + _saved_by_operator(kept, layer, shard))


def _saved_by_operator(kept: Mapping[str, float], layer: Layer, shard: Shard) -> float:
    """Outputs that the policy by operator saves in a layer beside its input, of what is kept where nothing is computed
    again: queries, keys, values and output of the attention; the first product and the output of a dense part; what
    experts and their exchange put out."""
    saved = sum(kept.get(name, 0.0) for name in (CONTEXT, "core_attention", "mla_up_projection", "moe"))
    if isinstance(layer.mixer, GroupedQueryAttention | LatentAttention) and not _output_kept_apart(shard):
        core = attention_core(layer.mixer, shard.tp)
        saved += shard.tokens * float(core.heads) * core.v_head_dim * BF16
    if layer.ffn is not None:
        saved += shard.tokens * shard.hidden * BF16 / shard.spread
    if isinstance(layer.ffn, DenseFfn):
        saved += shard.tokens * layer.ffn.intermediate_size / shard.tp * BF16
    return saved


def kept_bytes(config: TrainingConfig, layer: Layer, *, full: bool) -> float:
    """What one layer keeps under the configuration's recomputation; `full`: this layer is computed again whole."""
    kept = layer_activations(layer, config.shard)
    if config.recompute.granularity == "full" and full:
        return kept.input_bytes
    if config.recompute.granularity == "selective":
        return kept.without(config.recompute.modules)
    return kept.total_bytes


def stage_bytes(config: TrainingConfig, parts: Iterable[StagePart]) -> float:
    """Bytes of one micro-batch that the layers of a stage keep for its backward pass."""
    return sum(
        part.full * kept_bytes(config, part.layer, full=True)
        + (part.count - part.full) * kept_bytes(config, part.layer, full=False)
        for part in parts
        if part.part == "layer" and part.layer is not None
    )


def _add(kept: dict[str, float], module: str, size: float) -> None:
    kept[module] = kept.get(module, 0.0) + size


def product_input(shard: Shard, values: float, *, adapted: bool = True) -> float:
    """Bytes of `values` that a product keeps for the gradient of its weights, or of the adapter beside it."""
    if shard.lora_rank:
        return values * BF16 if adapted else 0.0
    return values * VALUE_BYTES[shard.precision]


def _mixer(kept: dict[str, float], layer: Layer, shard: Shard) -> None:
    tokens, wide = shard.tokens, shard.tokens * shard.hidden / shard.spread
    _add(kept, "attention", product_input(shard, wide))
    match layer.mixer:
        case GroupedQueryAttention() as mixer:
            core = attention_core(mixer, shard.tp)
            heads = float(core.heads)
            written = heads * core.v_head_dim
            _add(kept, CONTEXT, tokens * (heads * core.head_dim + float(kv_values(core))) * BF16)
            _add(kept, "core_attention", _core(shard, heads, written))
        case LatentAttention() as mixer:
            core = attention_core(mixer, shard.tp)
            heads = float(core.heads)
            ranks = mixer.q_lora_rank + mixer.kv_lora_rank + mixer.qk_rope_head_dim
            _add(kept, "attention", tokens * (mixer.q_lora_rank + mixer.kv_lora_rank) * BF16)
            _add(kept, "mla_up_projection", product_input(shard, tokens * ranks))
            written = heads * core.v_head_dim
            read = heads * core.head_dim + float(kv_values(core))
            _add(kept, "mla_up_projection", tokens * read * BF16)
            _add(kept, "core_attention", _core(shard, heads, written))
        case LinearAttention() as mixer:
            keys, values = (float(width) for width in scan_widths(mixer, shard.tp)[:2])
            written = values
            _add(kept, "core_attention", tokens * (2.0 * (keys + values) + 3.0 * values) * BF16)
        case _:
            written = 0.0
    _add(kept, "attention", product_input(shard, tokens * written))


def _core(shard: Shard, heads: float, written: float) -> float:
    """A sum a row of the fused kernel, with its output where that is kept apart; without it 2 bytes a score of the
    softmax, and with dropout 3 of what it leaves and of its mask. Fused kernels draw masks anew."""
    if shard.scores_written:
        return shard.tokens * (5.0 if shard.attention_dropout else 2.0) * heads * shard.sequence_tokens
    return shard.tokens * (4.0 * heads + (written * BF16 if _output_kept_apart(shard) else 0.0))


def _output_kept_apart(shard: Shard) -> bool:
    """Whether the fused kernel keeps its output beside what the product behind it does.

    That product keeps it in 8 bits, or all-to-alls lie between the two, in front of which Transformer Engine keeps it
    since release 2.8 (`AttnFuncWithCPAndQKVOA2A` of transformer_engine/pytorch).
    """
    narrow = VALUE_BYTES[shard.precision] < BF16 and not shard.lora_rank
    return narrow or (shard.cp > 1 and shard.context_parallel == "ulysses")


def _dense(kept: dict[str, float], ffn: DenseFfn, shard: Shard) -> None:
    inner = shard.tokens * ffn.intermediate_size / shard.tp
    _add(kept, "mlp", product_input(shard, shard.tokens * shard.hidden / shard.spread, adapted=False))
    _add(kept, "mlp", inner * BF16 * (2.0 if ffn.gated else 1.0))
    _add(kept, "mlp", product_input(shard, inner, adapted=False))


def _experts(kept: dict[str, float], ffn: MoeFfn, shard: Shard) -> None:
    tokens = shard.tokens / shard.tp
    rows = tokens * ffn.experts_per_token * shard.etp * shard.expert_load.of_rank(ffn.num_experts, shard.ep)
    width = float(ffn.latent_size or shard.hidden)
    inner = rows * ffn.intermediate_size / shard.etp
    _add(kept, "moe", tokens * (ffn.num_experts * 8.0 + shard.hidden * BF16))
    _add(kept, "moe", product_input(shard, rows * width))
    _add(kept, "moe_activation", inner * BF16 * (2.0 if ffn.gated else 1.0))
    _add(kept, "moe_activation", product_input(shard, inner))
    if ffn.shared_intermediate_size:
        shared = shard.tokens * ffn.shared_intermediate_size / shard.tp
        _add(kept, "moe", shared * BF16 * (2.0 if ffn.gated else 1.0) + product_input(shard, shared))

"""A model as data: the layers in order, each a token mixer and a feed-forward part, with the precision of each part.

Every count here is of the whole model, before any sharding. Precisions are plain names shared with the hardware
catalog: bf16, fp16, fp32, fp8 (per-tensor or per-channel scales), fp8_block (128x128 scales), nvfp4, mxfp4, int4, int8.
"""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

BITS: dict[str, float] = {
    "fp32": 32.0,
    "bf16": 16.0,
    "fp16": 16.0,
    "fp8": 8.0,
    "fp8_block": 8.0 + 32.0 / (128 * 128),  # one fp32 scale per 128x128 block
    "int8": 8.0,
    "nvfp4": 4.0 + 8.0 / 16,  # one fp8 scale per 16 values
    "mxfp4": 4.0 + 8.0 / 32,  # one 8-bit exponent per 32 values
    "int4": 4.0 + 16.0 / 32,  # one bf16 scale per group of 32
}
"""Stored bits per weight, scales included."""


@dataclass(frozen=True, slots=True)
class GroupedQueryAttention:
    """Softmax attention over a KV cache: MHA (kv = heads), GQA, MQA (kv = 1), full or sliding window."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    window_tokens: int = 0  # 0 = full context
    chunked: bool = False  # the window is the aligned chunk a token lies in, half full on average (Llama 4)
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False  # one weight vector of head_dim for q and one for k
    qk_norm_full: bool = False  # the norm spans all heads instead (MiniMax)
    output_gate: bool = False  # q projection is twice as wide; the second half gates the output (Qwen3.5)
    sinks: bool = False  # one learned logit per head (gpt-oss)
    values_are_keys: bool = False  # no value projection; keys and values still are cached apart (Gemma 4)
    shares_kv: bool = False  # reads the KV cache of an earlier layer, stores none of its own
    q_rank: int = 0  # queries pass a normed waist of this width (Step-3, arXiv:2507.19427, section 4); 0 = none


@dataclass(frozen=True, slots=True)
class Indexer:
    """DeepSeek sparse attention: a light scorer that selects `top_k` past tokens (DeepSeek-V3.2, section 2)."""

    num_heads: int
    head_dim: int
    top_k: int
    shared: bool = False  # reuses the selection of an earlier layer; holds no tensors (GLM-5.2)


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, section 2.1): the cache holds kv_lora_rank + rope dims per token."""

    num_heads: int
    q_lora_rank: int  # 0 = no query compression
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    indexer: Indexer | None = None
    output_gate: bool = False


@dataclass(frozen=True, slots=True)
class LinearAttention:
    """A recurrent mixer with a fixed state per sequence.

    kind: "gated_delta" (Qwen3-Next/3.5), "kda" (Kimi delta attention), "mamba2" (Nemotron-H) or "lightning"
    (MiniMax-M1). For mamba2 the key heads are the B/C groups, key_head_dim the state size, and the value heads the SSM
    heads.
    """

    kind: str
    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int  # taps of the short convolution; 0 = there is none
    conv_bias: bool = False
    state_precision: str = "fp32"
    gate_rank: int = 0  # width of the factorised output gate of "kda"; 0 = one full matrix


@dataclass(frozen=True, slots=True)
class UnsupportedMixer:
    """A token mixer that imports, whose tensors may be unknown, and that has no cost model: pricing it is an error."""

    kind: str
    reason: str
    parameters: int = 0  # exact tensor elements where known, else 0


@dataclass(frozen=True, slots=True)
class DenseFfn:
    """Two (plain) or three (gated) projections."""

    intermediate_size: int
    gated: bool = True
    bias: bool = False


@dataclass(frozen=True, slots=True)
class MoeFfn:
    """Routed experts plus shared experts that every token visits."""

    num_experts: int
    top_k: int
    intermediate_size: int  # of one routed expert
    shared_intermediate_size: int = 0  # of all shared experts together
    gated: bool = True
    bias: bool = False
    router_bias: bool = False
    shared_gate: bool = False  # a learned scalar gate on the shared expert (Qwen)
    latent_size: int = 0  # experts work in a projected space of this width; 0 = hidden_size
    latent_norm: bool = False  # a norm of latent_size in that space (Kimi K3)
    mean_top_k: float = 0.0  # experts of a token on average, where gating is adaptive and `top_k` the most; 0 = top_k

    @property
    def experts_per_token(self) -> float:
        """Routed experts that one token visits, on average."""
        return self.mean_top_k or self.top_k


Mixer = GroupedQueryAttention | LatentAttention | LinearAttention | UnsupportedMixer
Ffn = DenseFfn | MoeFfn


@dataclass(frozen=True)
class Layer:
    """One residual block; Nemotron-H style layers hold only one of the two parts.

    Its hash is worked out once: costs are kept by layer, and by all layers of a model.
    """

    mixer: Mixer | None
    ffn: Ffn | None
    num_norms: int = 2  # norm weight vectors of hidden_size

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.mixer, self.ffn, self.num_norms))

    def __reduce__(self) -> tuple[type["Layer"], tuple[Mixer | None, Ffn | None, int]]:
        """Without its hash, which another process has another of."""
        return Layer, (self.mixer, self.ffn, self.num_norms)


@dataclass(frozen=True, slots=True)
class Encoder:
    """A vision or audio tower in front of the decoder; a plain pre-norm transformer with a projector.

    Its tokens are patches of images or pieces of sound, each of which attends to all of its own image or chunk. The
    projector turns `merge` of them into one token of the decoder. A tower whose inputs are not described has a size,
    and no cost (`is_priced`).
    """

    kind: str  # "vision" or "audio"
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    parameters: int  # all elements, projector and patch embedding included; 0 when the config does not fix them
    patch_size: int = 0  # pixels along a side of a patch; 0 = it sees no images
    tokens_per_s: int = 0  # of sound; 0 = it hears none
    chunk_tokens: int = 0  # inputs are cut into pieces of so many tokens, the last padded; 0 = each is one piece
    merge: int = 1  # its tokens for one of the decoder
    patch_depths: tuple[int, ...] = ()  # depths of the products with `hidden_size` columns that make one of its tokens
    projector: tuple[int, ...] = ()  # widths from `merge` tokens to one of the decoder: two for one matrix
    projectors: int = 1  # of these widths; more than one where inner layers are tapped (Qwen3-VL's deepstack)

    @property
    def is_priced(self) -> bool:
        """Whether its inputs and all of its matrices are described."""
        return bool(self.parameters and self.projector and (self.patch_size or self.tokens_per_s))

    @property
    def projector_parameters(self) -> int:
        """Elements of the projectors' matrices and biases."""
        return self.projectors * sum((depth + 1) * columns for depth, columns in pairwise(self.projector))

    def tokens_of_image(self, width: int, height: int) -> int:
        """Of an image of so many pixels: whole patches, in a number that merges and fills its chunks."""
        side = math.isqrt(self.merge)
        across, down = (-(-pixels // (self.patch_size * side)) * side for pixels in (width, height))
        return self._padded(across * down)

    def tokens_of_sound(self, seconds: float) -> int:
        """Of so many seconds."""
        return self._padded(math.ceil(seconds * self.tokens_per_s))

    def _padded(self, tokens: int) -> int:
        return -(-tokens // self.chunk_tokens) * self.chunk_tokens if self.chunk_tokens else tokens


@dataclass(frozen=True, slots=True)
class Module:
    """A network beside the decoder, which runs apart from it or several times for each token that it generates.

    kind: "flow_head" (an MLP with adaptive norms that denoises one latent token) and "diffusion_transformer" (DiT with
    cross-attention) have tensors fixed by their sizes (`planner.models.modules`); any other kind, such as
    "audio_tokenizer", "vocoder", "text_encoder" or "autoencoder", has the number of `parameters` that is published.
    """

    kind: str
    num_layers: int = 0
    hidden_size: int = 0
    intermediate_size: int = 0
    num_heads: int = 0
    latent_size: int = 0  # width of what it denoises, a patch of all its channels
    condition_size: int = 0  # width of what conditions it
    steps_per_token: int = 0  # denoising steps for one generated token; 0 = runs apart from the decoder
    parameters: int = 0  # all elements where the sizes do not fix them; 0 when no source tells
    flop_per_pixel: int = 0  # of a forward pass over an image in training; 0 when no source tells


@dataclass(frozen=True, slots=True)
class Precisions:
    """The storage format of each class of tensors, and of what flows between them.

    Norms, biases, convolutions and routers keep the format of the embedding. A GEMM whose weights are bf16 runs in bf16
    whatever `activation` says; that field is what enters the quantised GEMMs outside the experts. A class of tensors
    that a model lacks has the format of the embedding.
    """

    attention: str = "bf16"
    ffn: str = "bf16"  # dense FFN layers
    experts: str = "bf16"
    shared_experts: str = "bf16"
    embedding: str = "bf16"
    lm_head: str = "bf16"
    mtp: str = "bf16"
    encoder: str = "bf16"
    kv_cache: str = "bf16"
    activation: str = "bf16"
    expert_activation: str = "bf16"  # what enters the expert GEMMs: mxfp4 weights run with bf16 or fp8 activations
    attention_output: str | None = None  # the last matrix of attention, where it differs from the others

    @property
    def output_projection(self) -> str:
        """The format of the last matrix of attention."""
        return self.attention_output or self.attention


@dataclass(frozen=True, slots=True)
class Architecture:
    """One decoder, whole and unsharded, with what stands in front of it and beside it.

    A diffusion model has modules and no layers.
    """

    name: str
    hidden_size: int
    vocab_size: int
    layers: tuple[Layer, ...]
    tied_embeddings: bool
    max_context_tokens: int
    precisions: Precisions
    mtp_layers: tuple[Layer, ...] = ()  # multi-token-prediction heads
    mtp_embeddings: bool = False  # the heads store their own copies of embedding and output matrices
    mtp_heads: int = 0  # heads that share out mtp_layers; 0 = one layer a head (Nemotron 3: two layers a head)
    encoders: tuple[Encoder, ...] = ()
    modules: tuple[Module, ...] = ()
    position_embeddings: int = 0  # learned positions (OPT: 2050)
    embedding_size: int = 0  # width of the embedding where it differs from hidden_size (OPT-350m); 0 = hidden_size
    norm_bias: bool = False  # LayerNorm with bias (OPT)
    final_norm: bool = True  # a norm before the output matrix (OPT-350m has none)
    layer_inputs: int = 1  # residual streams (hyper-connections of DeepSeek-V4: 4)
    unsupported: tuple[str, ...] = ()  # model-level features without a cost model, in words
    source: str = ""
    metadata: dict[str, str] = field(default_factory=dict, hash=False, compare=False)

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def num_mtp_heads(self) -> int:
        return self.mtp_heads or len(self.mtp_layers)

    def without_mtp(self) -> "Architecture":
        """The model without its multi-token-prediction heads."""
        return replace(self, mtp_layers=(), mtp_heads=0, mtp_embeddings=False)

    def layer_groups(self) -> list[tuple[Layer, int]]:
        """Distinct layers with how often each occurs, in order of first appearance."""
        repeated = Counter(map(id, self.layers))  # equal layers are one object mostly, and hashing one is slow
        objects = {id(layer): layer for layer in self.layers}
        counts: dict[Layer, int] = {}
        for name, times in repeated.items():
            counts[objects[name]] = counts.get(objects[name], 0) + times
        return list(counts.items())

    def unsupported_parts(self) -> list[str]:
        """Every reason why this model cannot be priced; empty when it can."""
        return list(self.unsupported) + sorted(set(_unsupported(self.layers)))

    def parts_beside(self, *, sized: bool) -> list[str]:
        """Towers and modules beside the decoder, in words: all where `sized`, else those of unknown size."""
        towers = [f"{tower.kind} tower" for tower in self.encoders if sized or tower.parameters == 0]
        return towers + [module.kind.replace("_", " ") for module in self.modules if sized]


def holds(layer: Layer, part: str) -> bool:
    """Whether `layer` has tensors of `part`: "attention", "ffn", "experts" or "shared_experts"."""
    if part == "attention":
        return layer.mixer is not None
    if part == "ffn":
        return isinstance(layer.ffn, DenseFfn)
    return isinstance(layer.ffn, MoeFfn) and (part == "experts" or layer.ffn.shared_intermediate_size > 0)


def _unsupported(layers: tuple[Layer, ...]) -> Iterator[str]:
    for layer in layers:
        if isinstance(layer.mixer, UnsupportedMixer):
            yield f"{layer.mixer.kind}: {layer.mixer.reason}"

"""Every tensor of a model with its exact parameter count, and the bytes of its weights."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from planner.errors import PlannerError
from planner.models.architecture import (
    BITS,
    Architecture,
    DenseFfn,
    GroupedQueryAttention,
    Indexer,
    LatentAttention,
    Layer,
    LinearAttention,
    Mixer,
    MoeFfn,
    UnsupportedMixer,
)
from planner.models.modules import module_parameters


@dataclass(frozen=True, slots=True)
class Tensor:
    """`copies` matrices of rows x cols (a vector has one row); input width is rows, output width is cols.

    part: a field of `Precisions` (attention, ffn, experts, shared_experts, embedding, lm_head, mtp, encoder), or
    "router" or "norm". split: how parallelism shards it, one of replicated, heads, kv_heads (at least one head a rank),
    ffn, vocab, experts. quantised: False for what keeps the format of the embedding whatever its part has (biases,
    convolutions, state parameters).
    """

    name: str
    rows: int
    cols: int
    part: str
    split: str = "replicated"
    copies: int = 1
    quantised: bool = True

    @property
    def elements(self) -> int:
        return self.rows * self.cols * self.copies


@dataclass(frozen=True, slots=True)
class ParameterCounts:
    """Exact numbers of elements; `total` and `active` are of the decoder without MTP heads, encoders and modules.

    active: what one token's forward pass uses, its top-k experts and the whole embedding included.
    unknown: parts whose tensors no source fixes; they count as zero.
    """

    total: int
    active: int
    attention: int
    ffn: int
    experts: int
    shared_experts: int
    router: int
    norm: int
    embedding: int
    lm_head: int
    mtp: int
    encoder: int
    modules: int
    unknown: tuple[str, ...] = ()

    @property
    def stored(self) -> int:
        """All elements of the checkpoint."""
        return self.total + self.mtp + self.encoder + self.modules

    @property
    def active_without_embedding(self) -> int:
        """`active` less an input table that is only looked up (how gpt-oss and Kimi K2 are counted)."""
        return self.active - (self.embedding if self.lm_head else 0)


def layer_tensors(layer: Layer, arch: Architecture) -> tuple[Tensor, ...]:
    """The tensors of one block, in order. An `UnsupportedMixer` is one tensor of its known size, or none."""
    tensors: list[Tensor] = []
    if layer.mixer is not None:
        tensors += _mixer(layer.mixer, arch.hidden_size)
    if isinstance(layer.ffn, DenseFfn):
        tensors += _ffn(layer.ffn, arch.hidden_size, layer.ffn.intermediate_size, "mlp", "ffn")
    elif layer.ffn is not None:
        tensors += _moe(layer.ffn, arch.hidden_size)
    tensors += [_norm(f"norm_{index}", arch) for index in range(layer.num_norms)]
    return tuple(tensors)


def mtp_tensors(arch: Architecture) -> tuple[Tensor, ...]:
    """The tensors of the multi-token-prediction heads, all in part "mtp" except norms and routers.

    Each head joins the normed hidden state and the normed embedding by one matrix and ends in a norm (DeepSeek-V3,
    arXiv:2412.19437, section 2.2).
    """
    tensors: list[Tensor] = []
    for index, layer in enumerate(arch.mtp_layers):
        kept = ("norm", "router")
        tensors += [
            replace(t, name=f"mtp.layers.{index}.{t.name}", part=t.part if t.part in kept else "mtp")
            for t in layer_tensors(layer, arch)
        ]
    for head in range(arch.num_mtp_heads):
        tensors.append(Tensor(f"mtp.{head}.join", 2 * arch.hidden_size, arch.hidden_size, "mtp"))
        tensors += [_norm(f"mtp.{head}.{name}", arch) for name in ("embedding_norm", "hidden_norm", "final_norm")]
        if arch.mtp_embeddings:
            tensors += [
                Tensor(f"mtp.{head}.embedding", arch.vocab_size, arch.hidden_size, "embedding", "vocab"),
                Tensor(f"mtp.{head}.lm_head", arch.hidden_size, arch.vocab_size, "lm_head", "vocab"),
            ]
    return tuple(tensors)


def edge_tensors(arch: Architecture) -> tuple[Tensor, ...]:
    """The tensors outside the layers: embedding, positions, projections between widths, final norm, output matrix."""
    hidden, width = arch.hidden_size, arch.embedding_size or arch.hidden_size
    tensors = [Tensor("embedding", arch.vocab_size, width, "embedding", "vocab")]
    if arch.position_embeddings:
        tensors.append(Tensor("positions", arch.position_embeddings, hidden, "embedding"))
    if width != hidden:
        tensors += [Tensor("project_in", width, hidden, "embedding"), Tensor("project_out", hidden, width, "embedding")]
    if arch.final_norm:
        tensors.append(_norm("final_norm", arch))
    if not arch.tied_embeddings:
        tensors.append(Tensor("lm_head", width, arch.vocab_size, "lm_head", "vocab"))
    return tuple(tensors)


def parameter_counts(arch: Architecture) -> ParameterCounts:
    """Element counts by part; exact where `unknown` is empty."""
    by_part: dict[str, int] = {}
    active = 0
    for tensor, times in _decoder_tensors(arch):
        elements = tensor.elements * times
        by_part[tensor.part] = by_part.get(tensor.part, 0) + elements
        active += elements if tensor.part != "experts" else 0
    active += sum(times * _active_experts(layer, arch) for layer, times in arch.layer_groups())
    return ParameterCounts(
        total=sum(by_part.values()),
        active=active,
        **{part: by_part.get(part, 0) for part in _DECODER_PARTS},
        mtp=sum(tensor.elements for tensor in mtp_tensors(arch)),
        encoder=sum(encoder.parameters for encoder in arch.encoders),
        modules=sum(module_parameters(module) for module in arch.modules),
        unknown=_unknown(arch),
    )


def weight_bytes(arch: Architecture) -> float:
    """Bytes of all weights, scales included: decoder, MTP heads, encoders and modules, unsharded.

    Raises PlannerError when the tensors of a token mixer are not known.
    """
    hollow = _hollow_mixers(arch)
    if hollow:
        raise PlannerError(
            f"the tensors of {', '.join(hollow)} are not known, so the weights of `{arch.name}` have no size",
            hint="choose a model whose layers all have costs; `planner models show` tells which do",
        )
    decoder = sum(tensor_bytes(tensor, arch) * times for tensor, times in _decoder_tensors(arch))
    extra = sum(tensor_bytes(tensor, arch) for tensor in mtp_tensors(arch))
    beside = sum(e.parameters for e in arch.encoders) + sum(module_parameters(m) for m in arch.modules)
    return decoder + extra + beside * BITS[arch.precisions.encoder] / 8


def tensor_bytes(tensor: Tensor, arch: Architecture) -> float:
    """Bytes of `tensor` in the precision of its part, scales included."""
    return tensor.elements * BITS[tensor_precision(tensor, arch)] / 8


def tensor_precision(tensor: Tensor, arch: Architecture) -> str:
    """The storage format of `tensor`."""
    if tensor.part in ("norm", "router") or not tensor.quantised:
        return arch.precisions.embedding
    if tensor.name == "o_proj":
        return arch.precisions.output_projection
    return str(getattr(arch.precisions, tensor.part))


_DECODER_PARTS = ("attention", "ffn", "experts", "shared_experts", "router", "norm", "embedding", "lm_head")


def _decoder_tensors(arch: Architecture) -> Iterator[tuple[Tensor, int]]:
    for tensor in edge_tensors(arch):
        yield tensor, 1
    for layer, times in arch.layer_groups():
        for tensor in layer_tensors(layer, arch):
            yield tensor, times


def _active_experts(layer: Layer, arch: Architecture) -> int:
    if not isinstance(layer.ffn, MoeFfn):
        return 0
    stored = sum(t.elements for t in _moe(layer.ffn, arch.hidden_size) if t.part == "experts")
    return round(stored * layer.ffn.experts_per_token / layer.ffn.num_experts)


def _hollow_mixers(arch: Architecture) -> list[str]:
    """Kinds of token mixers whose tensors are not known."""
    mixers = {layer.mixer for layer in arch.layers if isinstance(layer.mixer, UnsupportedMixer)}
    return sorted({mixer.kind for mixer in mixers if mixer.parameters == 0})


def _unknown(arch: Architecture) -> tuple[str, ...]:
    towers = [f"{e.kind} encoder" for e in arch.encoders if e.parameters == 0]
    return (*_hollow_mixers(arch), *towers, *(m.kind for m in arch.modules if module_parameters(m) == 0))


def _norm(name: str, arch: Architecture) -> Tensor:
    return Tensor(name, 2 if arch.norm_bias else 1, arch.hidden_size, "norm")


def _mixer(mixer: Mixer, hidden: int) -> list[Tensor]:
    if isinstance(mixer, GroupedQueryAttention):
        return _grouped_query(mixer, hidden)
    if isinstance(mixer, LatentAttention):
        return _latent(mixer, hidden)
    if isinstance(mixer, LinearAttention):
        return _LINEAR[mixer.kind](mixer, hidden)
    return [Tensor(mixer.kind, 1, mixer.parameters, "attention")] if mixer.parameters else []


def _attention(name: str, rows: int, cols: int, split: str = "replicated", *, quantised: bool = True) -> Tensor:
    return Tensor(name, rows, cols, "attention", split, quantised=quantised)


def _grouped_query(mixer: GroupedQueryAttention, hidden: int) -> list[Tensor]:
    queries, keys = mixer.num_heads * mixer.head_dim, mixer.num_kv_heads * mixer.head_dim
    values, outputs = mixer.num_kv_heads * mixer.v_head_dim, mixer.num_heads * mixer.v_head_dim
    query_cols = queries + (outputs if mixer.output_gate else 0)
    projections = [("q", query_cols, "heads")]
    if not mixer.shares_kv:
        projections.append(("k", keys, "kv_heads"))
        projections += [] if mixer.values_are_keys else [("v", values, "kv_heads")]
    tensors = [_attention(f"{name}_proj", hidden, cols, split) for name, cols, split in projections]
    if mixer.q_rank:
        tensors[0] = _attention("q_b_proj", mixer.q_rank, query_cols, "heads")
        tensors += [_attention("q_a_proj", hidden, mixer.q_rank), Tensor("q_a_norm", 1, mixer.q_rank, "norm")]
    if mixer.qkv_bias:
        tensors += [_attention(f"{name}_bias", 1, cols, split, quantised=False) for name, cols, split in projections]
    tensors.append(_attention("o_proj", outputs, hidden, "heads"))
    if mixer.output_bias:
        tensors.append(_attention("o_bias", 1, hidden, quantised=False))
    if mixer.qk_norm:
        tensors += [Tensor(f"{name}_norm", 1, mixer.head_dim, "norm") for name in ("q", "k")]
    if mixer.qk_norm_full:
        tensors += [Tensor("q_norm", 1, queries, "norm", "heads"), Tensor("k_norm", 1, keys, "norm", "kv_heads")]
    if mixer.sinks:
        tensors.append(_attention("sinks", 1, mixer.num_heads, "heads", quantised=False))
    return tensors


def _latent(mixer: LatentAttention, hidden: int) -> list[Tensor]:
    heads, rank = mixer.num_heads, mixer.kv_lora_rank
    queries = heads * (mixer.qk_nope_head_dim + mixer.qk_rope_head_dim)
    outputs = heads * mixer.v_head_dim
    tensors = (
        [
            _attention("q_a_proj", hidden, mixer.q_lora_rank),
            Tensor("q_a_norm", 1, mixer.q_lora_rank, "norm"),
            _attention("q_b_proj", mixer.q_lora_rank, queries, "heads"),
        ]
        if mixer.q_lora_rank
        else [_attention("q_proj", hidden, queries, "heads")]
    )
    tensors += [
        _attention("kv_a_proj", hidden, rank + mixer.qk_rope_head_dim),
        Tensor("kv_a_norm", 1, rank, "norm"),
        _attention("kv_b_proj", rank, heads * (mixer.qk_nope_head_dim + mixer.v_head_dim), "heads"),
        _attention("o_proj", outputs, hidden, "heads"),
    ]
    if mixer.output_gate:
        tensors.append(_attention("gate_proj", hidden, outputs, "heads"))
    if mixer.indexer is not None and not mixer.indexer.shared:
        tensors += _indexer(mixer.indexer, mixer.q_lora_rank, hidden)
    return tensors


def _indexer(indexer: Indexer, q_lora_rank: int, hidden: int) -> list[Tensor]:
    """Queries from the compressed query, one key, a LayerNorm on the key, a weight for each head."""
    return [
        _attention("indexer_q_proj", q_lora_rank or hidden, indexer.num_heads * indexer.head_dim),
        _attention("indexer_k_proj", hidden, indexer.head_dim),
        Tensor("indexer_k_norm", 2, indexer.head_dim, "norm"),
        _attention("indexer_weights", hidden, indexer.num_heads, quantised=False),
    ]


def _gated_delta(mixer: LinearAttention, hidden: int) -> list[Tensor]:
    """Gated DeltaNet (arXiv:2412.06464) as laid out in Qwen3.5."""
    keys, values = mixer.num_key_heads * mixer.key_head_dim, mixer.num_value_heads * mixer.value_head_dim
    mixed = 2 * keys + values
    return [
        _attention("qkv_proj", hidden, mixed, "heads"),
        _attention("z_proj", hidden, values, "heads"),
        _attention("beta_proj", hidden, mixer.num_value_heads, "heads", quantised=False),
        _attention("decay_proj", hidden, mixer.num_value_heads, "heads", quantised=False),
        *_convolution(mixer, mixed),
        _attention("state_parameters", 2, mixer.num_value_heads, "heads", quantised=False),
        Tensor("state_norm", 1, mixer.value_head_dim, "norm"),
        _attention("out_proj", values, hidden, "heads"),
    ]


def _kimi_delta(mixer: LinearAttention, hidden: int) -> list[Tensor]:
    """Kimi delta attention (arXiv:2510.26692): per-channel decay through a narrow waist, an output gate."""
    keys, values = mixer.num_key_heads * mixer.key_head_dim, mixer.num_value_heads * mixer.value_head_dim
    waist = mixer.key_head_dim
    gate = (
        [
            _attention("gate_a_proj", hidden, mixer.gate_rank, quantised=False),
            _attention("gate_b_proj", mixer.gate_rank, values, "heads", quantised=False),
        ]
        if mixer.gate_rank
        else [_attention("gate_proj", hidden, values, "heads")]
    )
    return [
        _attention("qkv_proj", hidden, 2 * keys + values, "heads"),
        _attention("decay_a_proj", hidden, waist, quantised=False),
        _attention("decay_b_proj", waist, keys, "heads", quantised=False),
        _attention("beta_proj", hidden, mixer.num_value_heads, "heads", quantised=False),
        *gate,
        *_convolution(mixer, 2 * keys + values),
        _attention("decay_bias", 1, keys, "heads", quantised=False),
        _attention("state_parameters", 1, mixer.num_value_heads, "heads", quantised=False),
        Tensor("state_norm", 1, mixer.value_head_dim, "norm"),
        _attention("out_proj", values, hidden, "heads"),
    ]


def _mamba2(mixer: LinearAttention, hidden: int) -> list[Tensor]:
    """Mamba-2 (arXiv:2405.21060): inputs and gate, B and C by groups, one step size a head."""
    inner, groups = mixer.num_value_heads * mixer.value_head_dim, mixer.num_key_heads * mixer.key_head_dim
    return [
        _attention("xz_proj", hidden, 2 * inner, "heads"),
        _attention("bc_proj", hidden, 2 * groups, "kv_heads"),
        _attention("dt_proj", hidden, mixer.num_value_heads, "heads"),
        *_convolution(mixer, inner + 2 * groups),
        _attention("state_parameters", 3, mixer.num_value_heads, "heads", quantised=False),
        Tensor("state_norm", 1, inner, "norm", "heads"),
        _attention("out_proj", inner, hidden, "heads"),
    ]


def _lightning(mixer: LinearAttention, hidden: int) -> list[Tensor]:
    """Lightning attention (MiniMax-01, arXiv:2501.08313, section 2.2): fixed decay, a gate and a norm on the output."""
    keys, values = mixer.num_key_heads * mixer.key_head_dim, mixer.num_value_heads * mixer.value_head_dim
    return [
        _attention("qkv_proj", hidden, 2 * keys + values, "heads"),
        _attention("gate_proj", hidden, values, "heads"),
        Tensor("state_norm", 1, values, "norm", "heads"),
        _attention("out_proj", values, hidden, "heads"),
    ]


_LINEAR = {"gated_delta": _gated_delta, "kda": _kimi_delta, "mamba2": _mamba2, "lightning": _lightning}


def _convolution(mixer: LinearAttention, channels: int) -> list[Tensor]:
    taps = mixer.conv_kernel + (1 if mixer.conv_bias else 0)
    return [_attention("convolution", taps, channels, "heads", quantised=False)]


def _ffn(ffn: DenseFfn | MoeFfn, width: int, inner: int, name: str, part: str, copies: int = 1) -> list[Tensor]:
    split = "experts" if part == "experts" else "ffn"
    ups = ("gate", "up") if ffn.gated else ("up",)
    tensors = [Tensor(f"{name}.{up}_proj", width, inner, part, split, copies) for up in ups]
    tensors.append(Tensor(f"{name}.down_proj", inner, width, part, split, copies))
    if ffn.bias:
        tensors.append(Tensor(f"{name}.up_bias", len(ups), inner, part, split, copies, quantised=False))
        down_split = split if part == "experts" else "replicated"
        tensors.append(Tensor(f"{name}.down_bias", 1, width, part, down_split, copies, quantised=False))
    return tensors


def _moe(ffn: MoeFfn, hidden: int) -> list[Tensor]:
    tensors = [Tensor("router", hidden, ffn.num_experts, "router")]
    if ffn.router_bias:
        tensors.append(Tensor("router_bias", 1, ffn.num_experts, "router"))
    if ffn.latent_size:
        tensors.append(Tensor("latent_down_proj", hidden, ffn.latent_size, "shared_experts"))
        tensors.append(Tensor("latent_up_proj", ffn.latent_size, hidden, "shared_experts"))
    if ffn.latent_norm:
        tensors.append(Tensor("latent_norm", 1, ffn.latent_size, "norm"))
    width = ffn.latent_size or hidden
    tensors += _ffn(ffn, width, ffn.intermediate_size, "experts", "experts", ffn.num_experts)
    if ffn.shared_intermediate_size:
        tensors += _ffn(ffn, hidden, ffn.shared_intermediate_size, "shared_experts", "shared_experts")
    if ffn.shared_gate:
        tensors.append(Tensor("shared_gate", hidden, 1, "router"))
    return tensors

"""Readers of dense model families (Llama, Qwen and others), and of DeciLM, whose layers vary in width."""

from planner.models.architecture import DenseFfn, GroupedQueryAttention, Layer, UnsupportedMixer
from planner.models.importers import attention, ffn
from planner.models.importers.decoder import Decoder
from planner.models.importers.fields import ConfigFields

_MAX_FFN_MULT = 1000


def llama(config: ConfigFields) -> Decoder:
    """Llama, Mistral and other decoders with RMSNorm, rotary positions, GQA and a gated FFN."""
    bias = config.flag("attention_bias")
    window = config.optional_count("sliding_window")
    mixer = attention.grouped_query(config, qkv_bias=bias, output_bias=bias, window_tokens=window)
    return _uniform(config, mixer)


def qwen2(config: ConfigFields) -> Decoder:
    """Qwen2 and Qwen2.5: bias on the query, key and value projections alone."""
    return _uniform(config, attention.grouped_query(config, qkv_bias=True), refused_window=_window_reason(config))


def qwen3(config: ConfigFields) -> Decoder:
    """Qwen3 dense: a norm on every query and key head."""
    bias = config.flag("attention_bias")
    mixer = attention.grouped_query(config, qkv_bias=bias, output_bias=bias, qk_norm=True)
    return _uniform(config, mixer, refused_window=_window_reason(config))


def mimo(config: ConfigFields) -> Decoder:
    """MiMo-7B: Qwen2 layers (bias on q, k, v) and MTP heads of the same layer (MiMo report, arXiv:2505.07608)."""
    mixer = attention.grouped_query(config, qkv_bias=config.flag("attention_bias", default=True))
    decoder = _uniform(config, mixer, refused_window=_window_reason(config))
    heads = config.optional_count("num_nextn_predict_layers")
    return Decoder(decoder.layers, mtp_layers=decoder.layers[:1] * heads, unsupported=decoder.unsupported)


def gemma3(config: ConfigFields) -> Decoder:
    """Gemma 3 (arXiv:2503.19786): five window layers, then a full one; norms before and after both parts."""
    full = attention.grouped_query(config, qk_norm=True)
    window = attention.grouped_query(config, qk_norm=True, window_tokens=config.count("sliding_window"))
    part, count = ffn.dense(config), config.count("num_hidden_layers")
    every = config.count("sliding_window_pattern", "_sliding_window_pattern", default=6)
    kinds = [bool((layer + 1) % every) for layer in range(count)]
    if config.has("layer_types"):
        kinds = [kind == "sliding_attention" for kind in config.per_layer("layer_types", count)]
    layers = tuple(Layer(window if is_window else full, part, num_norms=4) for is_window in kinds)
    return Decoder(layers, tied_by_default=True)


def opt(config: ConfigFields) -> Decoder:
    """OPT (arXiv:2205.01068): learned positions with an offset of two, LayerNorm, bias everywhere, ReLU FFN."""
    bias = config.flag("enable_bias", default=True)
    hidden = config.count("hidden_size")
    embedding = config.count("word_embed_proj_dim", default=hidden)
    mixer = attention.grouped_query(config, qkv_bias=bias, output_bias=bias)
    layer = Layer(mixer, ffn.dense(config, "ffn_dim", gated=False, bias=bias))
    return Decoder(
        (layer,) * config.count("num_hidden_layers"),
        position_embeddings=config.count("max_position_embeddings") + 2,
        embedding_size=embedding if embedding != hidden else 0,
        norm_bias=config.flag("layer_norm_elementwise_affine", default=True),
        final_norm=config.flag("do_layer_norm_before", default=True) and not config.flag("_remove_final_layer_norm"),
        tied_by_default=True,
    )


def gpt2(config: ConfigFields) -> Decoder:
    """GPT-2: its own field names, learned positions, LayerNorm and bias everywhere."""
    hidden, heads = config.count("n_embd"), config.count("n_head")
    if hidden % heads:
        raise config.wrong("n_head", f"a divisor of n_embd {hidden}", heads)
    mixer = GroupedQueryAttention(heads, heads, hidden // heads, hidden // heads, qkv_bias=True, output_bias=True)
    layer = Layer(mixer, DenseFfn(config.count("n_inner", default=4 * hidden), gated=False, bias=True))
    positions = config.count("n_positions")
    return Decoder(
        (layer,) * config.count("n_layer"), position_embeddings=positions, norm_bias=True, tied_by_default=True
    )


def gpt_neox(config: ConfigFields) -> Decoder:
    """GPT-NeoX and Pythia: rotary positions, LayerNorm and bias everywhere, a plain FFN."""
    bias = config.flag("attention_bias", default=True)
    mixer = attention.grouped_query(config, qkv_bias=bias, output_bias=bias)
    layer = Layer(mixer, ffn.dense(config, gated=False, bias=True))
    return Decoder((layer,) * config.count("num_hidden_layers"), norm_bias=True)


def deci(config: ConfigFields) -> Decoder:
    """Nemotron-NAS (DeciLM): one block description a layer, where attention or FFN may be left out."""
    blocks = config.per_layer("block_configs", config.count("num_hidden_layers"))
    return Decoder(tuple(_deci_layer(config, block, index) for index, block in enumerate(blocks)))


def _deci_layer(config: ConfigFields, block: object, index: int) -> Layer:
    fields = ConfigFields({"block": block}, f"{config.where}: block_configs[{index}]").child("block")
    mixer, width = fields.child("attention"), fields.child("ffn")
    parts = (_deci_mixer(config, mixer), _deci_ffn(config, width))
    return Layer(*parts, num_norms=sum(part is not None for part in parts))


def _deci_mixer(config: ConfigFields, block: ConfigFields) -> GroupedQueryAttention | UnsupportedMixer | None:
    if block.flag("no_op"):
        return None
    hidden = config.count("hidden_size")
    if block.flag("replace_with_linear"):
        return UnsupportedMixer("linear_replacement", "attention replaced by one matrix has no cost model", hidden**2)
    heads = config.count("num_attention_heads")
    dim = attention.head_dim(config)
    return GroupedQueryAttention(
        heads,
        heads // block.count("n_heads_in_group"),
        dim,
        dim,
        window_tokens=block.optional_count("window_length"),
        sinks=block.optional_count("num_sink_tokens") > 0,
    )


def _deci_ffn(config: ConfigFields, block: ConfigFields) -> DenseFfn | None:
    """Width 2/3 of ffn_mult times hidden_size, rounded up to a multiple of 256."""
    if block.flag("no_op"):
        return None
    multiplier = block.data.get("ffn_mult")
    if isinstance(multiplier, bool) or not isinstance(multiplier, (int, float)) or not 0 < multiplier < _MAX_FFN_MULT:
        raise block.wrong("ffn_mult", f"a number between 0 and {_MAX_FFN_MULT}", multiplier)
    width = int(2 * multiplier * config.count("hidden_size") / 3)
    return DenseFfn(-(-width // 256) * 256)


def _uniform(config: ConfigFields, mixer: GroupedQueryAttention, *, refused_window: str = "") -> Decoder:
    layer = Layer(mixer, ffn.dense(config, bias=config.flag("mlp_bias")))
    unsupported = (refused_window,) if refused_window else ()
    return Decoder((layer,) * config.count("num_hidden_layers"), unsupported=unsupported)


def _window_reason(config: ConfigFields) -> str:
    """Qwen2-style windows start at a layer that the published code reads in two ways: refused rather than guessed."""
    return "use_sliding_window with max_window_layers" if config.flag("use_sliding_window") else ""

"""Readers of mixture-of-experts (MoE) families with grouped-query attention."""

from dataclasses import replace

from planner.models.architecture import DenseFfn, GroupedQueryAttention, Layer, MoeFfn, UnsupportedMixer
from planner.models.importers import attention, ffn
from planner.models.importers.decoder import Decoder
from planner.models.importers.fields import ConfigFields

_MTP_NOTE = "the config counts MTP heads without describing them: left out"


def qwen3_moe(config: ConfigFields) -> Decoder:
    """Qwen3 MoE: experts in every `decoder_sparse_step`-th layer that is not in `mlp_only_layers`."""
    bias = config.flag("attention_bias")
    mixer = attention.grouped_query(config, qkv_bias=bias, output_bias=bias, qk_norm=True)
    moe, step = ffn.qwen_moe(config), config.count("decoder_sparse_step", default=1)
    plain = config.sequence("mlp_only_layers")
    layers = range(config.count("num_hidden_layers"))
    sparse = [layer not in plain and (layer + 1) % step == 0 for layer in layers]
    dense = None if all(sparse) else ffn.dense(config)
    return Decoder(tuple(Layer(mixer, moe if is_sparse else dense) for is_sparse in sparse))


def mixtral(config: ConfigFields) -> Decoder:
    """Mixtral (arXiv:2401.04088)."""
    mixer = attention.grouped_query(config, window_tokens=config.optional_count("sliding_window"))
    return Decoder((Layer(mixer, ffn.local_moe(config)),) * config.count("num_hidden_layers"))


def minimax_m2(config: ConfigFields) -> Decoder:
    """MiniMax-M2: norms over all query and all key heads; its MTP modules are not in the published weights."""
    per_layer = config.text("qk_norm_type", default="per_layer") == "per_layer"
    use_norm = config.flag("use_qk_norm")
    mixer = attention.grouped_query(config, qk_norm=use_norm and not per_layer, qk_norm_full=use_norm and per_layer)
    moe = ffn.local_moe(
        config,
        shared=config.optional_count("shared_intermediate_size"),
        router_bias=config.flag("use_routing_bias"),
    )
    notes = {"mtp": _MTP_NOTE} if config.flag("use_mtp") else {}
    return Decoder((Layer(mixer, moe),) * config.count("num_hidden_layers"), metadata=notes)


def minimax_m3(config: ConfigFields) -> Decoder:
    """MiniMax-M3: block-sparse attention behind a light scorer, which has no cost model, after full layers."""
    count = config.count("num_hidden_layers")
    full = attention.grouped_query(
        config, qk_norm=config.flag("use_qk_norm"), output_gate=config.flag("attention_output_gate")
    )
    sparse = UnsupportedMixer("block_sparse", "MiniMax-M3 block-sparse attention has no cost model")
    moe = ffn.local_moe(
        config,
        shared=config.optional_count("shared_intermediate_size") * config.optional_count("n_shared_experts"),
        router_bias=config.flag("use_routing_bias"),
    )
    dense = ffn.dense(config, "dense_intermediate_size")
    is_moe = config.per_layer("moe_layer_freq", count)
    is_sparse = config.child("sparse_attention_config").per_layer("sparse_attention_freq", count)
    layers = tuple(Layer(sparse if s else full, moe if m else dense) for s, m in zip(is_sparse, is_moe, strict=True))
    return Decoder(layers, metadata={"mtp": _MTP_NOTE})


def llama4(config: ConfigFields) -> Decoder:
    """Llama 4: chunked attention with a full layer every fourth, a shared expert beside the routed ones.

    The query and key norms hold no weights. `intermediate_size_mlp` is the width of the dense layers.
    """
    count, step = config.count("num_hidden_layers"), config.count("interleave_moe_layer_step")
    full = attention.grouped_query(config)
    chunk = attention.grouped_query(config, window_tokens=config.count("attention_chunk_size"), chunked=True)
    rotary = config.per_layer("no_rope_layers", count) if config.sequence("no_rope_layers") else _every_fourth(count)
    moe, dense = (
        ffn.local_moe(config, shared=config.count("intermediate_size")),
        ffn.dense(config, "intermediate_size_mlp"),
    )
    return Decoder(
        tuple(
            Layer(chunk if rotary[layer] else full, moe if (layer + 1) % step == 0 else dense) for layer in range(count)
        )
    )


def _every_fourth(count: int) -> list[object]:
    """1 where a layer has rotary positions and chunks, 0 in every fourth: Llama 4's default."""
    return [int((layer + 1) % 4 != 0) for layer in range(count)]


def gpt_oss(config: ConfigFields) -> Decoder:
    """gpt-oss (arXiv:2508.10925): alternating windows, attention sinks, bias everywhere."""
    bias = config.flag("attention_bias", default=True)
    window = config.count("sliding_window")
    by_type = {
        "full_attention": attention.grouped_query(config, qkv_bias=bias, output_bias=bias, sinks=True),
        "sliding_attention": attention.grouped_query(
            config, qkv_bias=bias, output_bias=bias, sinks=True, window_tokens=window
        ),
    }
    moe = ffn.local_moe(config, bias=True, router_bias=True)
    kinds = layer_types(config, set(by_type))
    return Decoder(tuple(Layer(by_type[kind], moe) for kind in kinds))


def step3p7(config: ConfigFields) -> Decoder:
    """Step-3.7 as far as its config goes: windows in three of four layers, first layers dense."""
    by_type = {
        "full_attention": attention.grouped_query(config, qk_norm=True),
        "sliding_attention": attention.grouped_query(
            config, qk_norm=True, window_tokens=config.count("sliding_window")
        ),
    }
    moe = MoeFfn(
        num_experts=config.count("num_experts"),
        top_k=config.count("num_experts_per_tok"),
        intermediate_size=config.count("moe_intermediate_size"),
        shared_intermediate_size=config.count("share_expert_dim") * config.optional_count("n_shared_experts"),
        router_bias=config.flag("use_moe_router_bias"),
    )
    dense, first = ffn.dense(config), config.optional_count("first_k_dense_replace")
    kinds = layer_types(config, set(by_type))
    layers = tuple(Layer(by_type[kind], dense if index < first else moe) for index, kind in enumerate(kinds))
    notes = {"mtp": _MTP_NOTE} if config.optional_count("num_nextn_predict_layers") else {}
    return Decoder(layers, metadata=notes)


def mimo_v2_flash(config: ConfigFields) -> Decoder:
    """MiMo-V2-Flash: window layers with more KV heads and a sink, full layers without (arXiv:2601.02780)."""
    count = config.count("num_hidden_layers")
    full = attention.grouped_query(config, sinks=config.flag("add_full_attention_sink_bias"))
    renamed = {name.removeprefix("swa_"): value for name, value in config.data.items() if name.startswith("swa_")}
    window = attention.grouped_query(
        ConfigFields({**config.data, **renamed}, config.where),
        window_tokens=config.count("sliding_window_size", "sliding_window"),
        sinks=config.flag("add_swa_attention_sink_bias"),
    )
    moe, dense = ffn.deepseek_moe(config), ffn.dense(config)
    is_window = config.per_layer("hybrid_layer_pattern", count)
    is_moe = config.per_layer("moe_layer_freq", count)
    return Decoder(
        tuple(Layer(window if w else full, moe if m else dense) for w, m in zip(is_window, is_moe, strict=True))
    )


def gemma4(config: ConfigFields) -> Decoder:
    """Gemma 4: wide window layers, full layers whose values are the keys, a dense FFN beside the experts.

    The dense FFN that runs beside the routed experts is read as a shared expert, and the router's two scale vectors as
    a norm and a router bias: the tensors are the same in number and size.
    """
    has_moe = config.flag("enable_moe_block")
    full_names = {"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"}
    renamed = {name: config.data[other] for name, other in full_names.items() if config.has(other)}
    full = attention.grouped_query(ConfigFields({**config.data, **renamed}, config.where), qk_norm=True)
    by_type = {
        "full_attention": _values_are_keys(full) if config.flag("attention_k_eq_v") else full,
        "sliding_attention": attention.grouped_query(
            config, qk_norm=True, window_tokens=config.count("sliding_window")
        ),
    }
    part: DenseFfn | MoeFfn = _gemma4_moe(config) if has_moe else ffn.dense(config)
    kinds = layer_types(config, set(by_type))
    layers = tuple(Layer(by_type[kind], part, num_norms=8 if has_moe else 4) for kind in kinds)
    return Decoder(layers, tied_by_default=True, unsupported=_gemma4_unsupported(config))


def _gemma4_moe(config: ConfigFields) -> MoeFfn:
    return MoeFfn(
        num_experts=config.count("num_experts"),
        top_k=config.count("top_k_experts"),
        intermediate_size=config.count("moe_intermediate_size"),
        shared_intermediate_size=config.count("intermediate_size"),
        router_bias=True,
    )


def _gemma4_unsupported(config: ConfigFields) -> tuple[str, ...]:
    names = {
        "hidden_size_per_layer_input": "per-layer embeddings",
        "num_kv_shared_layers": "layers that share KV caches",
        "use_double_wide_mlp": "a double-wide FFN",
    }
    return tuple(f"{words} ({name})" for name, words in names.items() if config.data.get(name))


def _values_are_keys(mixer: GroupedQueryAttention) -> GroupedQueryAttention:
    return replace(mixer, values_are_keys=True)


def layer_types(config: ConfigFields, known: set[str]) -> list[str]:
    """`layer_types`, one known name a layer. Raises PlannerError for a name outside `known`."""
    kinds = config.per_layer("layer_types", config.count("num_hidden_layers"), extra=8)
    for kind in kinds:
        if str(kind) not in known:
            raise config.wrong("layer_types", f"a list of {' and '.join(sorted(known))}", kind)
    return [str(kind) for kind in kinds]

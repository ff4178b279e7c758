"""Readers of multi-head latent attention (MLA) families: DeepSeek, Kimi, GLM-5; DeepSeek-V4 imports unpriced."""

from planner.models.architecture import Indexer, LatentAttention, Layer, MoeFfn, UnsupportedMixer
from planner.models.importers import attention, ffn
from planner.models.importers.decoder import Decoder
from planner.models.importers.fields import ConfigFields


def deepseek(config: ConfigFields) -> Decoder:
    """DeepSeek-V2/V3/R1 and Kimi K2: MLA everywhere, dense first layers; V3 stores MTP embeddings a second time."""
    return _latent_decoder(config, [None] * config.count("num_hidden_layers"), mtp_embeddings=True)


def deepseek_v32(config: ConfigFields) -> Decoder:
    """DeepSeek-V3.2: V3 with a sparse-attention indexer in every layer (arXiv:2512.02556, section 2)."""
    full = attention.indexer(config)
    return _latent_decoder(config, [full] * config.count("num_hidden_layers"), mtp_embeddings=True)


def glm_moe_dsa(config: ConfigFields) -> Decoder:
    """GLM-5: sparse attention as DeepSeek-V3.2; from 5.2 three of four layers reuse an earlier layer's selection."""
    count = config.count("num_hidden_layers")
    kinds = config.per_layer("indexer_types", count) if config.has("indexer_types") else ["full"] * count
    for kind in kinds:
        if kind not in ("full", "shared"):
            raise config.wrong("indexer_types", "a list of full and shared", kind)
    return _latent_decoder(config, [attention.indexer(config, shared=kind == "shared") for kind in kinds])


def kimi_linear(config: ConfigFields) -> Decoder:
    """Kimi Linear and K3: Kimi delta attention with MLA in the listed layers (numbered from one)."""
    count = config.count("num_hidden_layers")
    linear = config.child("linear_attn_config")
    full_layers, delta_layers = linear.sequence("full_attn_layers"), linear.sequence("kda_layers")
    if sorted(str(n) for n in full_layers + delta_layers) != sorted(str(n) for n in range(1, count + 1)):
        raise linear.wrong("kda_layers", f"with full_attn_layers each of the layers 1 to {count} once", delta_layers)
    latent = attention.latent(config, output_gate=config.flag("mla_use_output_gate"))
    delta = attention.kimi_delta(linear)
    moe, dense = _kimi_moe(config), ffn.dense(config)
    first, frequency = config.optional_count("first_k_dense_replace"), config.count("moe_layer_freq", default=1)
    layers = tuple(
        Layer(
            latent if index + 1 in full_layers else delta,
            moe if index >= first and index % frequency == 0 else dense,
        )
        for index in range(count)
    )
    residual = config.optional_count("attn_res_block_size")
    reasons = (f"attention residuals over blocks of {residual} layers have no cost model",) if residual else ()
    return Decoder(layers, unsupported=reasons)


def deepseek_v4(config: ConfigFields) -> Decoder:
    """DeepSeek-V4: compressed attention (ratios 4 and 128) and hyper-connections, both without a cost model."""
    count = config.count("num_hidden_layers")
    ratios = config.per_layer("compress_ratios", count, extra=config.optional_count("num_nextn_predict_layers"))
    moe = ffn.deepseek_moe(config)
    layers = tuple(Layer(_compressed(config, ratio), moe) for ratio in ratios)
    streams = config.count("hc_mult", default=1)
    mtp = (Layer(_compressed(config, 0), moe),) * config.optional_count("num_nextn_predict_layers")
    reasons = (f"hyper-connections over {streams} residual streams have no cost model",) if streams > 1 else ()
    return Decoder(layers, mtp_layers=mtp, layer_inputs=streams, unsupported=reasons)


def _compressed(config: ConfigFields, ratio: object) -> UnsupportedMixer:
    kinds = {0: "window_shared_kv", 4: "compressed_sparse", 128: "heavily_compressed"}
    if not isinstance(ratio, int) or ratio not in kinds:
        raise config.wrong("compress_ratios", "a list of 0, 4 and 128", ratio)
    return UnsupportedMixer(kinds[ratio], f"DeepSeek-V4 attention with compression ratio {ratio} has no cost model")


def _kimi_moe(config: ConfigFields) -> MoeFfn:
    width = config.count("moe_intermediate_size")
    return MoeFfn(
        num_experts=config.count("num_experts"),
        top_k=config.count("num_experts_per_token"),
        intermediate_size=width,
        shared_intermediate_size=width * config.optional_count("num_shared_experts"),
        router_bias=config.flag("use_grouped_topk"),
        latent_size=config.optional_count("routed_expert_hidden_size"),
        latent_norm=config.flag("latent_moe_use_norm"),
    )


def _latent_decoder(config: ConfigFields, indexers: list[Indexer | None], *, mtp_embeddings: bool = False) -> Decoder:
    count = len(indexers)
    moe, dense = ffn.deepseek_moe(config), ffn.dense(config)
    sparse = _sparse_layers(config, count)
    mixers: dict[Indexer | None, LatentAttention] = {i: attention.latent(config, indexer=i) for i in set(indexers)}
    layers = tuple(
        Layer(mixers[selector], moe if is_moe else dense) for selector, is_moe in zip(indexers, sparse, strict=True)
    )
    heads = config.optional_count("num_nextn_predict_layers")
    head = Layer(mixers[indexers[0]], moe)
    return Decoder(layers, mtp_layers=(head,) * heads, mtp_embeddings=mtp_embeddings and heads > 0)


def _sparse_layers(config: ConfigFields, count: int) -> list[bool]:
    if config.has("mlp_layer_types"):
        return [kind == "sparse" for kind in config.per_layer("mlp_layer_types", count)]
    first, frequency = config.optional_count("first_k_dense_replace"), config.count("moe_layer_freq", default=1)
    return [layer >= first and layer % frequency == 0 for layer in range(count)]

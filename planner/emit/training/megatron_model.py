"""A model in Megatron-Core's terms: fields of its `TransformerConfig`, and the few that its launcher adds.

Megatron-Core 0.16 (megatron/core/transformer/transformer_config.py).
"""

from planner.emit.training.job import LaunchJob, require_trained
from planner.models.architecture import Architecture, DenseFfn, GroupedQueryAttention, LatentAttention, Layer, MoeFfn

Value = bool | int | float | str | list[int] | list[str] | None
Fields = dict[str, Value]


def model_fields(job: LaunchJob) -> Fields:
    """Fields of the configuration that describe the model; PlannerError for one that Megatron's GPT cannot be."""
    model = job.model
    require_trained(job, "megatron-lm")
    fields: Fields = {"num_layers": model.num_layers, "hidden_size": model.hidden_size}
    fields |= _attention(model)
    fields |= _feed_forward(model)
    fields["normalization"] = "LayerNorm" if model.norm_bias else "RMSNorm"
    if job.heads_for_later_tokens:
        fields["mtp_num_layers"] = job.heads_for_later_tokens
    return fields


def _attention(model: Architecture) -> Fields:
    mixer = model.layers[0].mixer
    if isinstance(mixer, LatentAttention):
        return {
            "num_attention_heads": mixer.num_heads,
            "multi_latent_attention": True,
            "q_lora_rank": mixer.q_lora_rank or None,
            "kv_lora_rank": mixer.kv_lora_rank,
            "qk_head_dim": mixer.qk_nope_head_dim,
            "qk_pos_emb_head_dim": mixer.qk_rope_head_dim,
            "v_head_dim": mixer.v_head_dim,
            "qk_layernorm": True,  # norms of the compressed queries, keys and values, which all such models have
        }
    assert isinstance(mixer, GroupedQueryAttention)
    fields: Fields = {"num_attention_heads": mixer.num_heads, "kv_channels": mixer.head_dim}
    if mixer.num_kv_heads != mixer.num_heads:
        fields["num_query_groups"] = mixer.num_kv_heads
    if mixer.qkv_bias:
        fields["add_qkv_bias"] = True
    if mixer.qk_norm:
        fields["qk_layernorm"] = True
    if mixer.window_tokens:
        fields["window_size"] = [mixer.window_tokens - 1, 0]
    return fields


def _feed_forward(model: Architecture) -> Fields:
    dense = _first(model.layers, DenseFfn)
    experts = _first(model.layers, MoeFfn)
    ffn = dense or experts
    assert isinstance(ffn, DenseFfn | MoeFfn)
    fields: Fields = {"ffn_hidden_size": ffn.intermediate_size, "gated_linear_unit": ffn.gated}
    fields["add_bias_linear"] = ffn.bias
    if not isinstance(experts, MoeFfn):
        return fields
    fields |= {
        "num_moe_experts": experts.num_experts,
        "moe_ffn_hidden_size": experts.intermediate_size,
        "moe_router_topk": experts.top_k,
        "moe_grouped_gemm": True,
    }
    if experts.shared_intermediate_size:
        fields["moe_shared_expert_intermediate_size"] = experts.shared_intermediate_size
    if dense is not None:
        fields["moe_layer_freq"] = [int(isinstance(layer.ffn, MoeFfn)) for layer in model.layers]
    return fields


def _first(layers: tuple[Layer, ...], kind: type[DenseFfn] | type[MoeFfn]) -> DenseFfn | MoeFfn | None:
    return next((layer.ffn for layer in layers if isinstance(layer.ffn, kind)), None)

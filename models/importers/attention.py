"""Reads attention settings of a config.json: GQA, latent attention (MLA), linear attention (Mamba-2, delta rules)."""

from planner.models.architecture import GroupedQueryAttention, Indexer, LatentAttention, LinearAttention
from planner.models.importers.fields import ConfigFields

_STATE = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def head_dim(config: ConfigFields) -> int:
    """The width of one head: stated, or hidden_size over the number of heads."""
    if config.has("head_dim", "attention_head_dim"):
        return config.count("head_dim", "attention_head_dim")
    hidden, heads = config.count("hidden_size"), config.count("num_attention_heads")
    if hidden % heads:
        raise config.wrong("num_attention_heads", f"a divisor of hidden_size {hidden} (no head_dim given)", heads)
    return hidden // heads


def grouped_query(
    config: ConfigFields,
    *,
    window_tokens: int = 0,
    chunked: bool = False,
    qkv_bias: bool = False,
    output_bias: bool = False,
    qk_norm: bool = False,
    qk_norm_full: bool = False,
    output_gate: bool = False,
    sinks: bool = False,
) -> GroupedQueryAttention:
    """Attention with the usual field names; absent num_key_value_heads means one per query head."""
    heads, dim = config.count("num_attention_heads"), head_dim(config)
    kv_heads = config.count("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise config.wrong("num_key_value_heads", f"a divisor of num_attention_heads {heads}", kv_heads)
    return GroupedQueryAttention(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=dim,
        v_head_dim=config.count("v_head_dim", default=dim),
        window_tokens=window_tokens,
        chunked=chunked,
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        qk_norm=qk_norm,
        qk_norm_full=qk_norm_full,
        output_gate=output_gate,
        sinks=sinks,
    )


def latent(config: ConfigFields, *, indexer: Indexer | None = None, output_gate: bool = False) -> LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1)."""
    return LatentAttention(
        num_heads=config.count("num_attention_heads"),
        q_lora_rank=config.optional_count("q_lora_rank"),
        kv_lora_rank=config.count("kv_lora_rank"),
        qk_nope_head_dim=config.count("qk_nope_head_dim"),
        qk_rope_head_dim=config.count("qk_rope_head_dim"),
        v_head_dim=config.count("v_head_dim"),
        indexer=indexer,
        output_gate=output_gate,
    )


def indexer(config: ConfigFields, *, shared: bool = False) -> Indexer:
    """The selector of DeepSeek sparse attention."""
    return Indexer(config.count("index_n_heads"), config.count("index_head_dim"), config.count("index_topk"), shared)


def gated_delta(config: ConfigFields) -> LinearAttention:
    """Gated DeltaNet as Qwen3-Next and Qwen3.5 configure it."""
    return LinearAttention(
        kind="gated_delta",
        num_key_heads=config.count("linear_num_key_heads"),
        num_value_heads=config.count("linear_num_value_heads"),
        key_head_dim=config.count("linear_key_head_dim"),
        value_head_dim=config.count("linear_value_head_dim"),
        conv_kernel=config.count("linear_conv_kernel_dim"),
        state_precision=_state_precision(config, "mamba_ssm_dtype"),
    )


def mamba2(config: ConfigFields) -> LinearAttention:
    """Mamba-2 as Nemotron-H configures it."""
    return LinearAttention(
        kind="mamba2",
        num_key_heads=config.count("n_groups"),
        num_value_heads=config.count("mamba_num_heads"),
        key_head_dim=config.count("ssm_state_size"),
        value_head_dim=config.count("mamba_head_dim"),
        conv_kernel=config.count("conv_kernel"),
        conv_bias=config.flag("use_conv_bias", default=True),
        state_precision=_state_precision(config, "mamba_ssm_cache_dtype"),
    )


def kimi_delta(linear: ConfigFields) -> LinearAttention:
    """Kimi delta attention from the `linear_attn_config` object (Kimi Linear, arXiv:2510.26692, section 3)."""
    heads, dim = linear.count("num_heads"), linear.count("head_dim")
    return LinearAttention(
        kind="kda",
        num_key_heads=heads,
        num_value_heads=heads,
        key_head_dim=dim,
        value_head_dim=dim,
        conv_kernel=linear.count("short_conv_kernel_size"),
        gate_rank=0 if linear.flag("use_full_rank_gate") else dim,
    )


def _state_precision(config: ConfigFields, name: str) -> str:
    stated = config.text(name, default="float32")
    if stated not in _STATE:
        raise config.wrong(name, "float32, bfloat16 or float16", stated)
    return _STATE[stated]

"""Readers of hybrid families, recurrent layers (Mamba, DeltaNet) with attention: Qwen3-Next, Qwen3.5, Nemotron-H."""

from planner.models.architecture import DenseFfn, Layer, LinearAttention, MoeFfn
from planner.models.importers import attention, ffn
from planner.models.importers.decoder import Decoder
from planner.models.importers.experts import layer_types
from planner.models.importers.fields import ConfigFields

_NEMOTRON_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


def qwen3_5(config: ConfigFields) -> Decoder:
    """Qwen3-Next and Qwen3.5, dense or MoE: gated delta layers, gated full attention every fourth."""
    part: DenseFfn | MoeFfn = ffn.qwen_moe(config) if config.has("num_experts") else ffn.dense(config)
    full = Layer(
        attention.grouped_query(config, qk_norm=True, output_gate=config.flag("attn_output_gate", default=True)), part
    )
    by_type = {"full_attention": full, "linear_attention": Layer(attention.gated_delta(config), part)}
    if config.sequence("mlp_only_layers"):
        raise config.wrong("mlp_only_layers", "empty", config.sequence("mlp_only_layers"))
    layers = tuple(by_type[kind] for kind in _kinds(config, set(by_type)))
    heads = config.optional_count("mtp_num_hidden_layers")
    dedicated = config.flag("mtp_use_dedicated_embeddings")
    return Decoder(layers, mtp_layers=(full,) * heads, mtp_embeddings=dedicated)


def _kinds(config: ConfigFields, known: set[str]) -> list[str]:
    if config.has("layer_types"):
        return layer_types(config, known)
    interval = config.count("full_attention_interval")
    return [
        "linear_attention" if (layer + 1) % interval else "full_attention"
        for layer in range(config.count("num_hidden_layers"))
    ]


def minimax_m1(config: ConfigFields) -> Decoder:
    """MiniMax-M1 (arXiv:2506.13585): lightning attention, with full attention where `attn_type_list` has a 1."""
    count = config.count("num_hidden_layers")
    full = attention.grouped_query(config)
    heads, dim = full.num_heads, full.head_dim
    lightning = LinearAttention("lightning", heads, heads, dim, dim, conv_kernel=0)
    moe = ffn.local_moe(config, shared=config.optional_count("shared_intermediate_size"))
    kinds = config.per_layer("attn_type_list", count)
    return Decoder(tuple(Layer(full if kind == 1 else lightning, moe) for kind in kinds))


def nemotron_h(config: ConfigFields) -> Decoder:
    """Nemotron-H and Nemotron 3: every block holds one part, named by a letter or a word in the layer pattern."""
    layers = _blocks(config, "hybrid_override_pattern", "layers_block_type")
    stated = config.optional_count("num_hidden_layers")
    if not layers or (stated and stated != len(layers)):
        raise config.wrong("hybrid_override_pattern", f"{stated or 'one or more'} blocks", len(layers))
    heads = config.optional_count("num_nextn_predict_layers")
    head = _blocks(config, "mtp_hybrid_override_pattern", "mtp_layers_block_type") if heads else ()
    return Decoder(layers, mtp_layers=head * heads, mtp_heads=heads if len(head) != 1 else 0)


def _blocks(config: ConfigFields, letters: str, words: str) -> tuple[Layer, ...]:
    if config.has(words):
        names = [str(name) for name in config.sequence(words)]
    else:
        names = [_NEMOTRON_LETTERS.get(letter, letter) for letter in config.text(letters)]
    known = {name: _block(config, name) for name in set(names) & set(_NEMOTRON_LETTERS.values())}
    for name in names:
        if name not in known:
            raise config.wrong(letters, "a pattern of M, *, - and E", name)
    return tuple(known[name] for name in names)


def _block(config: ConfigFields, name: str) -> Layer:
    bias = config.flag("mlp_bias")
    if name == "mamba":
        return Layer(attention.mamba2(config), None, num_norms=1)
    if name == "attention":
        wide = config.flag("attention_bias")
        return Layer(attention.grouped_query(config, qkv_bias=wide, output_bias=wide), None, num_norms=1)
    if name == "moe":
        return Layer(None, ffn.nemotron_moe(config), num_norms=1)
    return Layer(None, ffn.dense(config, gated=False, bias=bias), num_norms=1)

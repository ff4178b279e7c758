"""Readers of StepFun's families, Step-1 (Step-Audio) and Step-3, which call key and value heads attention groups."""

from dataclasses import replace

from planner.models.architecture import Layer, MoeFfn
from planner.models.importers import attention, ffn
from planner.models.importers.decoder import Decoder
from planner.models.importers.fields import ConfigFields


def step1(config: ConfigFields) -> Decoder:
    """Step-1: grouped-query attention with linear biases on positions, no bias, a gated FFN."""
    layer = Layer(attention.grouped_query(_with_kv_heads(config)), ffn.dense(config))
    return Decoder((layer,) * config.count("num_hidden_layers"))


def step3(config: ConfigFields) -> Decoder:
    """Step-3 (arXiv:2507.19427): factorised queries, one key and value head, experts in the layers that are listed."""
    count = config.count("num_hidden_layers")
    mixer = replace(attention.grouped_query(_with_kv_heads(config)), q_rank=config.optional_count("share_q_dim"))
    moe = MoeFfn(
        num_experts=config.count("moe_num_experts"),
        top_k=config.count("moe_top_k"),
        intermediate_size=config.count("moe_intermediate_size"),
        shared_intermediate_size=config.optional_count("share_expert_dim"),
    )
    dense, sparse = ffn.dense(config), _sparse_layers(config, count)
    return Decoder(tuple(Layer(mixer, moe if layer in sparse else dense) for layer in range(count)))


def _with_kv_heads(config: ConfigFields) -> ConfigFields:
    return ConfigFields({**config.data, "num_key_value_heads": config.count("num_attention_groups")}, config.where)


def _sparse_layers(config: ConfigFields, count: int) -> set[int]:
    """`moe_layers_enum`: `4,5,6` as text, or a list; all but the first layer when it is absent."""
    stated = config.data.get("moe_layers_enum")
    if stated is None:
        return set(range(1, count))
    listed = stated.split(",") if isinstance(stated, str) else config.sequence("moe_layers_enum")
    layers = {int(str(layer)) for layer in listed if str(layer).strip().isdigit()}
    if len(layers) != len(listed) or not all(layer < count for layer in layers):
        raise config.wrong("moe_layers_enum", f"layers from 0 to {count - 1}, each once", stated)
    return layers

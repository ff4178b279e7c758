"""Reads feed-forward (MLP) and MoE settings of a config.json."""

from planner.models.architecture import DenseFfn, MoeFfn
from planner.models.importers.fields import ConfigFields


def dense(config: ConfigFields, *names: str, gated: bool = True, bias: bool = False) -> DenseFfn:
    """A dense feed-forward part; `names` are the fields that may hold its width."""
    return DenseFfn(config.count(*(names or ("intermediate_size",))), gated=gated, bias=bias)


def deepseek_moe(config: ConfigFields) -> MoeFfn:
    """Routed and shared experts of the DeepSeek family (also Kimi, GLM)."""
    width = config.count("moe_intermediate_size")
    return MoeFfn(
        num_experts=config.count("n_routed_experts"),
        top_k=config.count("num_experts_per_tok"),
        intermediate_size=width,
        shared_intermediate_size=width * config.optional_count("n_shared_experts"),
        router_bias=config.text("topk_method", default="greedy") == "noaux_tc",
    )


def qwen_moe(config: ConfigFields) -> MoeFfn:
    """Routed experts of Qwen, with a gated shared expert where the config has one."""
    shared = config.optional_count("shared_expert_intermediate_size")
    return MoeFfn(
        num_experts=config.count("num_experts"),
        top_k=config.count("num_experts_per_tok"),
        intermediate_size=config.count("moe_intermediate_size"),
        shared_intermediate_size=shared,
        shared_gate=shared > 0,
    )


def local_moe(config: ConfigFields, *, shared: int = 0, bias: bool = False, router_bias: bool = False) -> MoeFfn:
    """Routed experts under the names of Mixtral, MiniMax-M2, Llama 4 and gpt-oss."""
    return MoeFfn(
        num_experts=config.count("num_local_experts"),
        top_k=config.count("num_experts_per_tok"),
        intermediate_size=config.count("intermediate_size"),
        shared_intermediate_size=shared,
        bias=bias,
        router_bias=router_bias,
    )


def nemotron_moe(config: ConfigFields) -> MoeFfn:
    """Ungated squared-ReLU experts, in a latent space where moe_latent_size is given (Nemotron 3)."""
    return MoeFfn(
        num_experts=config.count("n_routed_experts"),
        top_k=config.count("num_experts_per_tok"),
        intermediate_size=config.count("moe_intermediate_size"),
        shared_intermediate_size=config.optional_count("moe_shared_expert_intermediate_size")
        * config.optional_count("n_shared_experts"),
        gated=False,
        router_bias=True,
        latent_size=config.optional_count("moe_latent_size"),
    )

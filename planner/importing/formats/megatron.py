"""What flags of Megatron-LM decide beside degrees, sizes and batches (`megatron/training/arguments.py`)."""

from collections.abc import Mapping
from typing import Any, get_args

from planner.costs.training.config import GraphScope
from planner.engines.training import MEGATRON_CONTEXT, MEGATRON_MODULES, MEGATRON_SHARDED
from planner.importing.options import Options, stated, words_of
from planner.importing.values import Values

UNEVEN = ("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers", "pipeline_model_parallel_layout",
          "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage",
          "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")  # fmt: skip
"""Settings with which the stages of a pipeline are not of equally many layers."""
LISTS = frozenset({"recompute_modules", "cuda_graph_scope", "cuda_graph_modules"})
"""Flags with several values."""
UNPRICED = (
    *("cpu_offloading_num_layers", "fine_grained_activation_offloading", "optimizer_offload_fraction"),
    *("use_precision_aware_optimizer", "main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype", "fp8_param_gather"),
    *("rampup_batch_size", "step_batch_size_schedule", "hybrid_context_parallel", "window_size"),
    *("overlap_param_gather_with_optimizer_step", "delay_wgrad_compute", "defer_embedding_wgrad_compute"),
    *("moe_shared_expert_overlap", "moe_router_padding_for_fp8", "moe_router_padding_for_quantization"),
    *("microbatch_group_size_per_vp_stage", "microbatch_group_size_per_virtual_pipeline_stage"),
    *("no_masked_softmax_fusion", "no_bias_dropout_fusion", "no_bias_swiglu_fusion", "no_bias_gelu_fusion"),
    *("no_rope_fusion", "no_gradient_accumulation_fusion", "no_persist_layer_norm", "use_torch_fsdp2"),
    *("use_tp_pp_dp_mapping", "nccl_ub", "distribute_saved_activations"),
)
"""Settings that change time or memory, and that nothing here prices."""

ALL_GATHER = "allgather"  # the dispatcher where no flag names one
DROPPED = 0.1  # of values, where no flag says how much
_RECOMPUTED = {theirs: ours for ours, theirs in MEGATRON_MODULES.items()}
_CONTEXT = {theirs: ours for ours, theirs in MEGATRON_CONTEXT.items()}
_SHARDED = {"optim": 1} | {theirs: stage for stage, theirs in MEGATRON_SHARDED.items()}


def unpriced_of(options: Options) -> list[str]:
    """What of the settings no plan has, the logits at the loss included: priced in 16 bits, as Transformer Engine's
    fused loss leaves them."""
    fused = options.get("cross_entropy_loss_fusion") is True and options.get("cross_entropy_fusion_impl") == "te"
    return [*stated(options, UNPRICED), *([] if fused else ["logits in fp32 at the loss"])]


def megatron_decisions(options: Options, fields: Mapping[str, Any]) -> dict[str, Any]:
    """What decides memory and time beside degrees, by the names of options, and `sizes` that tell models apart.

    `fields` are those of the summary.
    """
    return {
        **_recomputation(options),
        **_sharding(options, fields),
        "dropout": dropout_of(options),
        "mtp": Values().integer(options.get("mtp_num_layers")) or 0,
        "sequence_parallel": options.get("sequence_parallel") is True if (fields["tp"] or 0) > 1 else None,
        "context_parallel": _context(options) if (fields["cp"] or 0) > 1 else None,
        "moe_tp": _expert_tp(options, fields),
        "offload_optimizer": options.get("optimizer_cpu_offload") is True,
        "reduce_gradients": "bf16" if options.get("grad_reduce_in_bf16") is True else "fp32",
        "overlap": _overlap(options),
        "layers": None if any(name in options for name in UNEVEN) else "even",
        "dispatcher": _dispatcher(options),
        "experts": _capacity(options),
        "in_network_reduction": True if options.get("use_sharp") is True else None,
        "cuda_graphs": _graphs(options),
        "task": "sft" if options.get("sft") is True else None,
        "optimizer": {"sgd": "sgd", "muon": "muon", "dist_muon": "muon"}.get(str(options.get("optimizer"))),
        "format": _format(options),
        "sizes": _sizes(options),
    }


def _recomputation(options: Options) -> dict[str, Any]:
    """What is computed again, and of which of it nothing is known; `selective` alone is of the core attention."""
    granularity = options.get("recompute_granularity")
    if granularity == "full":
        layers = Values().integer(options.get("recompute_num_layers"))
        some = options.get("recompute_method") == "block" and layers is not None
        return {"recompute": "full", "recompute_layers": layers if some else "all"}
    if granularity != "selective" and not options.get("recompute_activations"):
        return {"recompute": "none"}
    modules = words_of(options.get("recompute_modules")) or ["core_attn"]
    known = [_RECOMPUTED[name] for name in modules if name in _RECOMPUTED]
    asked = {"recompute": "selective", "recompute_modules": known} if known else {"recompute": "none"}
    return asked | {"kept_after_all": [name for name in modules if name not in _RECOMPUTED]}


def dropout_of(options: Options, otherwise: float = DROPPED) -> dict[str, float] | None:
    """Shares that training drops; None for nothing."""
    values, shares = Values(), dict[str, float]()
    for part in ("hidden", "attention"):
        stated = values.number(options.get(f"{part}_dropout"))
        shares[part] = otherwise if stated is None else stated
    return shares if any(shares.values()) else None


def told_dropout(shares: Mapping[str, float]) -> str:
    """Shares that training drops, in words."""
    return "dropout (" + " and ".join(f"{part} {share:g}" for part, share in shares.items()) + ")"


def _sharding(options: Options, fields: Mapping[str, Any]) -> dict[str, Any]:
    """ZeRO stage and ranks that share states: the distributed optimizer, of one or several instances, or FSDP."""
    stage = 1 if options.get("use_distributed_optimizer") is True else 0
    if any(options.get(name) is True for name in ("use_megatron_fsdp", "use_custom_fsdp")):
        stage = _SHARDED.get(str(options.get("data_parallel_sharding_strategy")), 0)
    instances = Values().integer(options.get("num_distributed_optimizer_instances"), 1) or 1
    dp, cp = fields.get("dp"), fields.get("cp")
    shards = dp * cp // instances if stage and instances > 1 and dp and cp else None
    return {"zero_stage": stage, "zero_shards": shards}


def _context(options: Options) -> str | None:
    """How context-parallel ranks exchange keys and values; None for ways that are not priced."""
    return _CONTEXT.get(str(options.get("cp_comm_type", "p2p")))


def _expert_tp(options: Options, fields: Mapping[str, Any]) -> int | None:
    """Tensor parallelism of experts: that of all else, unless a flag says so."""
    if options.get("num_experts") is None:
        return None
    tp: int | None = fields["tp"]
    return Values().integer(options.get("expert_tensor_parallel_size"), tp)


def _capacity(options: Options) -> dict[str, Any] | None:
    """The most rows that an expert takes, of the mean."""
    most = Values().number(options.get("moe_expert_capacity_factor"))
    if most is None or most <= 0:
        return None
    return {"capacity": most, "padded": options.get("moe_pad_expert_input_to_capacity") is True}


def _graphs(options: Options) -> list[str] | bool | None:
    """What is captured as CUDA graphs, nothing being the default; None for what is not told apart."""
    asked = options.get("cuda_graph_impl", "none")
    old = any(options.get(name) is True for name in ("enable_cuda_graph", "external_cuda_graph"))
    if asked == "none" and not old:
        return False
    scopes = words_of(options.get("cuda_graph_scope")) or words_of(options.get("cuda_graph_modules"))
    known = bool(scopes) and set(scopes) <= set(get_args(GraphScope))
    whole = "full_iteration" in scopes
    return scopes if known and asked == ("local" if whole else "transformer_engine") else None


def _overlap(options: Options) -> list[str]:
    """Communication behind computing, by the names of `options.overlap`; pipelines have it unless switched off."""
    flags = {
        "grad_reduce": "overlap_grad_reduce",
        "param_gather": "overlap_param_gather",
        "tp_comm": "tp_comm_overlap",
        "ep_comm": "overlap_moe_expert_parallel_comm",
    }
    asked = [name for name, flag in flags.items() if options.get(flag) is True]
    return asked if options.get("no_overlap_p2p_communication") is True else [*asked, "p2p"]


def _dispatcher(options: Options) -> str | None:
    """What sends tokens to experts; None where there are none."""
    kind = options.get("moe_token_dispatcher_type", ALL_GATHER)
    if options.get("num_experts") is None:
        return None
    return str(options.get("moe_flex_dispatcher_backend", "deepep")) if kind == "flex" else str(kind)


def _format(options: Options) -> str | None:
    """The precision of a problem, which tells recipes of fp8 apart."""
    kind = precision_of(options)
    if kind == "fp8":
        return {"blockwise": "fp8_block", "mxfp8": "mxfp8"}.get(str(options.get("fp8_recipe")), "fp8")
    return "nvfp4" if kind == "fp4" else kind


def _sizes(options: Options) -> dict[str, int | None]:
    """Sizes that a script states beside layers, width and heads."""
    values = Values()
    return {
        "kv_heads": values.integer(options.get("num_query_groups")) if options.get("group_query_attention") else None,
        "experts": values.integer(options.get("num_experts")),
        "width": None if options.get("num_experts") else values.integer(options.get("ffn_hidden_size")),
    }


def precision_of(options: Options) -> str | None:
    """The format that matrices are multiplied in, as summaries have it."""
    if options.get("fp8_format") or options.get("fp8"):
        return "fp8"
    if options.get("fp4_format"):
        return "fp4"
    return "bf16" if options.get("bf16") is True else "fp16" if options.get("fp16") is True else None

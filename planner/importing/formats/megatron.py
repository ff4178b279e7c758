"""What flags of Megatron-LM decide beside degrees, sizes and batches (`megatron/training/arguments.py`)."""

from collections.abc import Mapping
from typing import Any

from planner.importing.options import Options
from planner.importing.values import Values

UNEVEN = ("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers", "pipeline_model_parallel_layout",
          "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage",
          "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")  # fmt: skip
"""Settings with which the stages of a pipeline are not of equally many layers."""

ALL_GATHER = "allgather"  # the dispatcher where no flag names one


def megatron_decisions(options: Options, degrees: Mapping[str, int | None]) -> dict[str, Any]:
    """What decides memory and time beside degrees, by the names of options, and `sizes` that tell models apart."""
    granularity = options.get("recompute_granularity")
    recompute = "selective" if options.get("recompute_activations") else None
    recompute = granularity if granularity in ("full", "selective") else recompute or "none"
    return {
        "recompute": recompute,
        "zero_stage": 1 if options.get("use_distributed_optimizer") is True else 0,
        "sequence_parallel": options.get("sequence_parallel") is True if (degrees["tp"] or 0) > 1 else None,
        "offload_optimizer": options.get("optimizer_cpu_offload") is True,
        "reduce_gradients": "bf16" if options.get("grad_reduce_in_bf16") is True else "fp32",
        "overlap": _overlap(options),
        "layers": None if any(name in options for name in UNEVEN) else "even",
        "dispatcher": _dispatcher(options),
        "optimizer": {"sgd": "sgd", "muon": "muon"}.get(str(options.get("optimizer"))),
        "format": _format(options),
        "sizes": _sizes(options),
    }


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

"""The columns of NVIDIA's kernel tables: which are axes, which are keys, and in what units times come.

Source: the parquet files of `aiconfigurator-core` 0.12.0, `systems/data/<system>/<family>/<framework>/<version>/`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

_MS, _US = 1e-3, 1e-6


@dataclass(frozen=True, slots=True)
class TableLayout:
    """How one kind of table is read: numeric axes in grid order, categorical keys, latency columns.

    Where a row holds several measurements, `phases` gives the latency columns (summed) of each, and a key may have a
    column a phase (`dispatch_sms`); otherwise `latency` names the one latency column.
    """

    axes: tuple[str, ...]
    keys: tuple[str, ...]
    latency: str = "latency"
    unit_s: float = _MS
    phases: Mapping[str, tuple[str, ...]] | None = None


RENAMED = {
    "num_token": "num_tokens",
    "num_topk": "topk",
    "intermediate_size": "inter_size",
    "nccl_dtype": "dtype",
    "allreduce_dtype": "dtype",
}
# Value of a key in tables that lack its column, and the one taken when a look-up does not name it.
KEY_DEFAULTS: dict[str, str | int] = {"window_size": 0, "mode": "graph", "dtype": "half", "sms": 20, "model": ""}
KEY_DEFAULTS |= {"architecture": "", "gemm_type": ""}
ELEMENT_BYTES = {"half": 2, "float16": 2, "bfloat16": 2, "int8": 1, "fp8": 1, "float": 4, "float32": 4}

_ATTENTION = ("head_dim", "attn_dtype", "kv_cache_dtype", "window_size")
_MLA = ("mla_dtype", "kv_cache_dtype")
_MODULE = ("model", "architecture", "mla_dtype", "kv_cache_dtype", "gemm_type")
_EXPERTS = ("moe_dtype", "hidden_size", "inter_size", "topk", "num_experts", "distribution")
_MOE = TableLayout(("num_tokens", "moe_tp_size", "moe_ep_size"), _EXPERTS)
_WIDEEP_MOE = TableLayout(("num_tokens", "moe_ep_size"), _EXPERTS)
_MLP = TableLayout(("num_tokens",), ("quant_type", "hidden_size", "inter_size"), latency="avg_ms")
_DEEPEP = ("phase", "hidden_size", "topk", "num_experts")

LAYOUTS: dict[str, TableLayout] = {
    "gemm": TableLayout(("m", "n", "k"), ("gemm_dtype",)),
    "context_attention": TableLayout(("batch_size", "isl", "num_heads", "num_key_value_heads"), _ATTENTION),
    "generation_attention": TableLayout(("batch_size", "step", "num_heads", "num_key_value_heads"), _ATTENTION),
    "context_mla": TableLayout(("batch_size", "isl", "num_heads"), _MLA),
    "generation_mla": TableLayout(("batch_size", "step", "num_heads"), _MLA),
    "mla_context_module": TableLayout(("batch_size", "isl", "num_heads"), _MODULE),
    "mla_generation_module": TableLayout(("batch_size", "step", "num_heads"), _MODULE),
    "wideep_context_mla": TableLayout(("batch_size", "isl", "num_heads"), _MODULE),
    "wideep_generation_mla": TableLayout(("batch_size", "isl", "num_heads"), _MODULE),
    "mla_bmm": TableLayout(("num_tokens", "num_heads"), ("op_name", "bmm_dtype")),
    "context_attention_backward": TableLayout(("batch_size", "isl", "num_heads", "num_key_value_heads"), _ATTENTION),
    "context_attention_varlen": TableLayout(("batch_size", "isl", "num_heads", "num_key_value_heads"), _ATTENTION),
    "moe_backward": TableLayout(("num_tokens", "moe_tp_size", "moe_ep_size"), (*_EXPERTS, "gradient")),
    "memory_pass": TableLayout(("size_bytes",), ("op_name",)),
    "copy": TableLayout(("size_bytes",), ("op_name",)),
    "launch": TableLayout(("num_kernels",), ("mode",)),
    "moe": _MOE,
    "wideep_context_moe": _WIDEEP_MOE,
    "wideep_generation_moe": _WIDEEP_MOE,
    "wideep_moe": TableLayout(("num_tokens", "moe_ep_size"), ("op_name", *_EXPERTS, "num_slots")),
    "wideep_context_mlp": _MLP,
    "wideep_generation_mlp": _MLP,
    "nccl": TableLayout(("num_gpus", "message_bytes"), ("op_name", "dtype")),
    "custom_allreduce": TableLayout(("num_gpus", "message_bytes"), ("mode",)),
    "moe_a2a": TableLayout(
        ("ep_size", "num_tokens"),
        ("comm_backend", "phase", "comm_dtype", "hidden_size", "topk", "num_experts", "sms"),
        unit_s=_US,
    ),
    "wideep_deepep_ll": TableLayout(
        ("node_num", "num_tokens"),
        _DEEPEP,
        unit_s=_US,
        phases={"dispatch": ("dispatch_avg_t_us",), "combine": ("combine_avg_t_us",)},
    ),
    "wideep_deepep_normal": TableLayout(
        ("node_num", "num_tokens"),
        (*_DEEPEP, "sms"),
        unit_s=_US,
        phases={
            "dispatch": ("dispatch_transmit_us", "dispatch_notify_us"),
            "combine": ("combine_transmit_us", "combine_notify_us"),
        },
    ),
    "trtllm_alltoall": TableLayout(
        ("num_tokens", "moe_ep_size"),
        ("op_name", "moe_dtype", "hidden_size", "topk", "num_experts", "distribution"),
    ),
}

# For tables not named above (modules of newer models): axes in this order where the column varies, keys as listed.
_AXES: tuple[str, ...] = (
    *("num_gpus", "batch_size", "isl", "step", "num_tokens", "num_heads", "num_key_value_heads", "ep_size"),
    *("moe_tp_size", "moe_ep_size", "node_num", "m", "n", "k"),
)
_KEYS: tuple[str, ...] = (
    *("op_name", "phase", "model", "architecture", "attn_dtype", "mla_dtype", "kv_cache_dtype", "gemm_type"),
    *("moe_dtype", "head_dim", "window_size", "compress_ratio", "hidden_size", "inter_size", "topk"),
    *("num_experts", "distribution", "score_mode"),
)


def layout_of(table: str, varying: frozenset[str], present: frozenset[str]) -> TableLayout | None:
    """How to read `table`, given its columns and those with more than one value; None when it cannot be read."""
    if table in LAYOUTS:
        return LAYOUTS[table]
    axes = tuple(column for column in _AXES if column in varying)
    keys = tuple(column for column in _KEYS if column in present and column not in axes)
    return TableLayout(axes, keys) if axes and "latency" in present else None

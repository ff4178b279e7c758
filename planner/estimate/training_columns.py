"""Parses single columns of training-run tables: model, machine, framework, sharding, precision, switches."""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import get_args

from planner.costs.operators.experts import EVEN, ExpertLoad
from planner.costs.operators.recompute import BY_OPERATOR
from planner.costs.training.config import (
    FRAMEWORKS,
    MEGATRON,
    Framework,
    GraphScope,
    Machine,
    Precision,
    RecomputeConfig,
    Schedule,
    Task,
    machine_of,
)
from planner.costs.training.eras import ERAS, MEGASCALE, captured
from planner.engines.training import FORWARDING, Dispatcher, Reduction
from planner.errors import PlannerError, require_known
from planner.estimate.bridge_recipes import recipe_of, scopes_of
from planner.estimate.training_settings import number, switched
from planner.hardware.cluster import NodeType
from planner.kinds.train.code import CodeSpec, summing_in
from planner.models.architecture import Architecture, DenseFfn, GroupedQueryAttention, Layer, MoeFfn, Precisions
from planner.models.formats import format_named
from planner.schema.keys import validated

MOST_LAYERS = 10_000
GPT_VOCABULARY = 50257  # of tables that print GPT models without one

_CATALOG = {
    "deepseek-v3": "deepseek-ai/DeepSeek-V3",
    "deepseek-v2": "deepseek-ai/DeepSeek-V2",
    "gpt-oss-120b": "openai/gpt-oss-120b",
    "gpt-oss-20b": "openai/gpt-oss-20b",
    "nemotron-3-nano": "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "nemotron-3-super": "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8",
    "nemotron-3-ultra": "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16",
    "nemotron-3.5-lightning": "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4",
    "nemotron-h-56b": "nvidia/Nemotron-H-56B-Base-8K",
    "nemotron-h-8b": "nvidia/Nemotron-H-8B-Base-8K",
}
"""Names that tables print, of models whose layers their columns do not describe."""

_PRECISIONS: tuple[tuple[str, Precision], ...] = (
    ("nvfp4", "nvfp4"), ("mxfp8", "mxfp8"), ("fp8-blockwise", "fp8_block"), ("fp8-", "fp8"),
    ("bf16", "bf16"), ("fp16", "bf16"),
)  # fmt: skip
_USUAL_GRAPHS: tuple[GraphScope, ...] = ("attn", "mamba", "moe_router", "moe_preprocess")
_COMMITS = {"285068c8": "megatron_2022"}  # of Megatron-LM, where a source names it (MegaScale, NSDI 2024, section 6.1)
PRECISIONS: tuple[Precision, ...] = ("bf16", "fp8", "fp8_block", "mxfp8", "nvfp4")
SCHEDULES: dict[str, Schedule] = {
    "": "1f1b", "1f1b": "1f1b", "interleaved": "interleaved", "zb-1p": "zb_h1", "zb-2p": "zb_h2", "zb-h1": "zb_h1",
    "zb-h2": "zb_h2", "zb-v": "zb_v", "dualpipe": "dualpipe", "dualpipev": "dualpipev",
}  # fmt: skip


def architecture_of_row(row: Mapping[str, str]) -> Architecture:
    """The model: of the catalog where layers are of kinds that columns do not describe, else as the columns say."""
    kind = row.get("arch") or "dense"
    name = row["model"]
    layers = int(float(row["layers"])) if row.get("layers") else 0
    if layers > MOST_LAYERS:
        raise PlannerError(f"no model has {layers} layers", hint="correct the row")
    if name in _CATALOG or kind not in ("dense", "moe") or not row.get("hidden"):
        return _catalog_model(_CATALOG.get(name, name), layers)
    hidden, heads, ffn = (_positive(row, name) for name in ("hidden", "heads", "ffn"))
    moe: tuple[int, ...] = ()
    if float(row.get("experts") or 0) > 0:
        rest = (int(float(row.get(name) or 0)) for name in ("shared_experts", "dense_layers"))
        moe = (*(_positive(row, name) for name in ("experts", "topk", "moe_ffn")), *rest)
    return _described(
        name,
        hidden=hidden,
        num_layers=layers,
        heads=heads,
        kv_heads=_positive(row, "kv_heads", heads),
        head_dim=_positive(row, "head_dim", hidden // heads),
        ffn=ffn,
        gated=(row.get("gated") or "0") not in ("0", "0.0", "false"),
        vocab=_positive(row, "vocab", GPT_VOCABULARY),
        moe=moe,
    )


def _positive(row: Mapping[str, str], name: str, default: int = 0) -> int:
    """A size of the model, `default` where the row has none; raises PlannerError for one that is not positive."""
    size = int(float(row.get(name) or default))
    if size < 1:
        raise PlannerError(f"`{name}` of the model must be positive, found {size}", hint="correct the row")
    return size


@cache
def _catalog_model(name: str, layers: int) -> Architecture:
    """The model of the catalog, cut to its first layers where the row has fewer."""
    from planner.models.library import find_model

    arch = find_model(name)
    parts = arch.unsupported_parts() or [f"{part} beside its decoder" for part in arch.parts_beside(sized=True)]
    if parts:
        raise PlannerError(f"{arch.name} cannot be priced: {parts[0]}", hint="leave the row out")
    return replace(arch, layers=arch.layers[:layers]) if 0 < layers < arch.num_layers else arch


@cache
def _described(
    name: str, *, hidden: int, num_layers: int, heads: int, kv_heads: int, head_dim: int, ffn: int, gated: bool,
    vocab: int, moe: tuple[int, ...],
) -> Architecture:  # fmt: skip
    mixer = GroupedQueryAttention(heads, kv_heads, head_dim, head_dim)
    dense = Layer(mixer, DenseFfn(ffn, gated))
    layers = (dense,) * num_layers
    if moe:
        experts, top_k, moe_ffn, shared, dense_layers = moe
        sparse = Layer(mixer, MoeFfn(experts, top_k, moe_ffn, shared * moe_ffn, gated))
        layers = _mixed(dense, sparse, num_layers, dense_layers)
    return Architecture(name, hidden, vocab, layers, False, 0, Precisions())


def _mixed(dense: Layer, sparse: Layer, num_layers: int, dense_layers: int) -> tuple[Layer, ...]:
    """A few dense layers lie in front; where they are half of all, layers alternate (Llama 4)."""
    if 2 * dense_layers == num_layers:
        return (dense, sparse) * dense_layers
    return (dense,) * dense_layers + (sparse,) * (num_layers - dense_layers)


def machine_of_row(row: Mapping[str, str]) -> Machine:
    """The nodes, on the network that the row states."""
    from planner.hardware.library import find_node

    node = find_node(_gpu_name(row["gpu"]))
    per_node = int(float(row.get("gpus_per_node") or node.num_gpus))
    return _machine(node, per_node, row.get("interconnect") or "")


def _gpu_name(text: str) -> str:
    """GPUs as tables print them: what is not in the catalog loses its memory size and packaging."""
    return {"GB200-NVL72-186GB": "gb200_nvl72", "GB300-NVL72-288GB": "gb300_nvl72"}.get(text, text)


@cache
def _machine(node: NodeType, per_node: int, interconnect: str) -> Machine:
    text = _of_generation(interconnect, node.accelerator.name[:4].upper())
    rate = network_bytes_per_s(text, min(per_node, 8))
    sized = node.of_size(per_node) if 0 < per_node < node.num_gpus else node
    return machine_of(replace(sized, nic_bandwidth_bytes_per_s=rate) if rate else sized)


def _of_generation(text: str, generation: str) -> str:
    """The part about this GPU of a description of two systems: `400Gb/s per node (A100) / 800Gb/s (H100)`."""
    parts = [part for part in text.split(" / ") if f"({generation})" in part]
    if not parts:
        return text
    return parts[0] if "per node" in parts[0] or "per node" not in text else parts[0].replace("Gb/s", "Gb/s per node")


_ADAPTERS = re.compile(r"(\d+)\s*x\s*(\d+)\s*Gb/s")
_PER_NODE = re.compile(r"(\d+)\s*Gb/s (?:\w+ )?per node")
_PER_GPU = re.compile(r"(\d+)\s*Gb/s (?:\w+ )?per GPU")


def network_bytes_per_s(text: str, gpus_per_node: int) -> float:
    """Bytes per second and GPU beyond the node that a description such as `8x400Gb/s IB NDR` states; 0 for none."""
    if match := _PER_GPU.search(text):
        return float(match[1]) * 1e9 / 8.0
    if match := _ADAPTERS.search(text):
        return int(match[1]) * float(match[2]) * 1e9 / 8.0 / gpus_per_node
    if match := _PER_NODE.search(text):
        return float(match[1]) * 1e9 / 8.0 / gpus_per_node
    return 0.0


def framework_of_row(row: Mapping[str, str]) -> Framework:
    """The training code that the row names, with what columns of settings say of it."""
    stated = {name: value for name in CodeSpec.model_fields if (value := row.get(name))}
    made = _named(row)
    if stated:
        made = validated(CodeSpec, stated, lambda place: ".".join(map(str, place))).framework(made)
    if graphs := row.get("cuda_graphs"):
        for scope in graphs.split():
            require_known("scope of CUDA graphs", scope, (*get_args(GraphScope), "none"), where="cuda_graphs")
        made = captured(replace(made, host="eager") if made.host == "graphs" else made, scopes_of(graphs))
    if reduction := row.get("reduce_gradients"):
        require_known("format", reduction, get_args(Reduction), where="reduce_gradients")
        made = summing_in(made, "bf16" if reduction == "bf16" else "fp32")
    if dispatcher := row.get("dispatcher"):
        require_known("dispatcher", dispatcher, get_args(Dispatcher), where="dispatcher")
        made = replace(made, forwarded_experts=dispatcher in FORWARDING)
    return made


def expert_load_of(row: Mapping[str, str]) -> ExpertLoad:
    """Even, or padded to the capacity that the row or its recipe states; rows that drop tokens say so in a note."""
    if row.get("expert_capacity"):
        return ExpertLoad(capacity=number(row, "expert_capacity", above=0.0), padded=True)
    known = recipe_of(row)
    capacity = known[0].capacity if known else None
    if "tokendrop" in (row.get("note") or ""):
        capacity = capacity or 1.0
    return EVEN if capacity is None else ExpertLoad(capacity=capacity, padded=True)


def window_tokens(row: Mapping[str, str], framework: Framework) -> int | None:
    """The width of the attention's window; MegaScale's, which is not published, is taken as a quarter of a sequence."""
    if row.get("window_tokens"):
        return _positive(row, "window_tokens")
    return int(float(row["seq"])) // 4 if framework.parallel_block and framework.name == MEGASCALE.name else None


def _named(row: Mapping[str, str]) -> Framework:
    name, note = row.get("framework") or "", row.get("note") or ""
    if "MegaScale" in name:
        return MEGASCALE
    for commit, era in _COMMITS.items():
        if commit in name:
            return ERAS[era]
    if "Composer" in name:
        return FRAMEWORKS["composer"]
    if "DeepSpeed" in name:
        return FRAMEWORKS["megatron_deepspeed"]
    if "torchtitan" in name:
        return FRAMEWORKS["torchtitan_eager" if "eager" in note else "torchtitan"]
    if "FSDP" in name:
        return FRAMEWORKS["fsdp"]
    if "2021" in name or "2022" in name:
        parallel = "SP" in (row.get("recompute") or "")
        return replace(FRAMEWORKS["megatron_2021"], sequence_parallel=parallel)
    if "ZB" in name or "1F1B" in name:
        return FRAMEWORKS["megatron_2023"]
    if "Bridge" in name:
        return _bridge(row)
    return FRAMEWORKS["nemo" if "NeMo" in name else "megatron"]


def _bridge(row: Mapping[str, str]) -> Framework:
    """Megatron Bridge with what its recipe sets; where none is known, with the graphs of most on Blackwell."""
    known = recipe_of(row)
    if known is None:
        blackwell = "B200" in row["gpu"] or "B300" in row["gpu"]
        return captured(MEGATRON, _USUAL_GRAPHS) if blackwell else MEGATRON
    recipe = known[0]
    plain = recipe.dispatcher == "alltoall"
    code = replace(MEGATRON, forwarded_experts=not plain, fused_dispatch=plain, fused_experts=recipe.fused_experts)
    return captured(code, recipe.graphs)


def zero_stage(row: Mapping[str, str]) -> int:
    """The ZeRO stage that the row names, 0 where it names none.

    Pipelines add gradients up whole and scatter them once a step, which costs as stage 1 does, also where they are said
    to run stage 2 (MegaScale, arXiv:2402.15627, section 3.2).
    """
    text = (row.get("zero") or "").lower()
    if not text and "NeMo" in (row.get("framework") or ""):
        return 1  # its default
    stages = ((3, ("zero-3", "megatron-fsdp", "hsdp")), (2, ("zero-2",)), (1, ("zero-1", "distopt")))
    stated = next((stage for stage, words in stages if any(word in text for word in words)), 0)
    return 1 if stated == 2 and float(row.get("pp") or 1) > 1 else stated


def zero_ranks(row: Mapping[str, str]) -> int:
    """Data-parallel ranks that shard weights together: as stated, those of a node for HSDP, 0 for all."""
    text = row.get("zero") or ""
    match = re.search(r"shard=(\d+)", text)
    if match:
        return int(match[1])
    return int(float(row.get("gpus_per_node") or 8)) if "HSDP" in text else 0


def recompute_of(text: str, note: str, framework: Framework) -> RecomputeConfig:
    """What the backward pass computes again, as the column says it and the framework means it."""
    if text.startswith("full"):
        return RecomputeConfig("full")
    if "recompute of RMSNorm and MLA up-proj" in note:
        return RecomputeConfig("selective", ("layernorm", "mla_up_projection", "moe_activation"))
    if "selective" in text:
        if framework.name.startswith("torchtitan"):
            return RecomputeConfig("selective", (BY_OPERATOR,))
        module = "core_attention" if framework.attention == "unfused" else "mlp"
        return RecomputeConfig("selective", (module,))
    return RecomputeConfig()


def schedule_of_row(row: Mapping[str, str]) -> Schedule:
    """The schedule that the row names, 1F1B where it names none; interleaved where ranks hold several stages."""
    schedule = SCHEDULES.get((row.get("schedule") or "").strip(), "1f1b")
    return "interleaved" if schedule == "1f1b" and float(row.get("vpp") or 1) > 1 else schedule


def precision_of(text: str) -> Precision:
    """What a step computes in; raises PlannerError for a precision of no known name."""
    for start, precision in _PRECISIONS:
        if text.startswith(start):
            return precision
    name = format_named(text or "bf16", (*PRECISIONS, "fp16"), what="precision")
    return next((precision for precision in PRECISIONS if precision == name), "bf16")


def task_of(row: Mapping[str, str]) -> Task:
    """What is trained; `pretrain` where the row says nothing else."""
    text = row.get("task") or "pretrain"
    return "lora" if text == "lora" else "sft" if text == "sft" else "pretrain"


def overlap_of(row: Mapping[str, str], framework: Framework) -> frozenset[str]:
    """Switches that the code of the time had on."""
    note = row.get("note") or ""
    if framework.name in ("megatron_2021", "megatron_2022", "megatron_deepspeed") or "overlap features off" in note:
        return frozenset()
    switches = {"grad_reduce", "param_gather", "p2p"}
    if framework.name.startswith(("mega", "nemo")) or "AsyncTP" in note:
        switches.add("tp_comm")
    if (row.get("schedule") or "").startswith("dualpipe") or _overlaps_experts(row):
        switches.add("ep_comm")
    return frozenset(switches)


def _overlaps_experts(row: Mapping[str, str]) -> bool:
    """Whether the exchange between experts runs beside computing, as the row or its recipe says."""
    if row.get("a2a_overlap"):
        return switched(row, "a2a_overlap")
    known = recipe_of(row)
    return known is not None and known[0].a2a_overlap

"""Rows of a table of measured training runs as configurations.

Columns (one row a run): id, model, arch (dense, moe, moe-mla, hybrid-...); hidden, layers, heads, kv_heads, head_dim,
ffn, gated, vocab; experts, topk, moe_ffn, shared_experts, dense_layers; seq, gpu, num_gpus, gpus_per_node,
interconnect; tp, pp, vpp, cp, ep, etp, dp; zero, schedule, recompute, mbs, gbs, precision, task, framework, note.
Latent attention, hybrid and sparse layers do not stand in such columns: these models come from the catalog by name,
with the row's layers.

What a row leaves open is chosen as a user would: the least recomputation that fits, and the micro-batch of the least
predicted step time among those that fit. A run that would not fit as stated is taken to shard more than was printed.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache

from planner.costs.training.config import (
    FRAMEWORKS,
    Framework,
    Machine,
    Precision,
    Recompute,
    Schedule,
    Task,
    TrainingConfig,
    machine_of,
)
from planner.costs.training.memory import memory
from planner.errors import PlannerError
from planner.hardware.cluster import NodeType
from planner.models.architecture import Architecture, DenseFfn, GroupedQueryAttention, Layer, MoeFfn, Precisions

REQUIRED = ("id", "model", "seq", "gpu", "num_gpus", "tp", "pp", "mbs", "gbs", "precision")
USABLE = 0.97  # of the device's memory that a job can fill
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
    ("nvfp4", "nvfp4"), ("mxfp8", "mxfp8"), ("fp8-blockwise", "fp8_block"), ("fp8", "fp8"),
)  # fmt: skip
_SCHEDULES: dict[str, Schedule] = {
    "": "1f1b", "1f1b": "1f1b", "interleaved": "interleaved", "zb-1p": "zb_h1", "zb-2p": "zb_h2", "zb-h1": "zb_h1",
    "zb-h2": "zb_h2", "zb-v": "zb_v", "dualpipe": "dualpipe", "dualpipev": "dualpipev",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """One row: what it states as a configuration, and what it leaves open."""

    id: str
    config: TrainingConfig
    recompute_open: bool
    micro_batch_open: bool


def config_of_row(row: Mapping[str, str]) -> TrainingRow:
    """The configuration of one row; raises PlannerError for an unknown model or GPU, and for what cannot be."""
    try:
        return _build(row)
    except (ValueError, OverflowError, KeyError, TypeError) as error:
        raise PlannerError(f"a field is missing or no number: {error}", hint="correct the row") from None


def _build(row: Mapping[str, str]) -> TrainingRow:
    def degree(name: str) -> int:
        return int(float(row.get(name) or 1))

    tp, pp, cp = degree("tp"), degree("pp"), degree("cp")
    num_gpus = int(float(row["num_gpus"]))
    dp = int(float(row.get("dp") or max(num_gpus // (tp * pp * cp), 1)))
    arch = architecture_of_row(row)
    if "w/o MTP" in (row.get("note") or ""):
        arch = replace(arch, mtp_layers=())
    framework = framework_of_row(row)
    stated = (row.get("recompute") or "").strip() or ("note" if "recompute of" in (row.get("note") or "") else "")
    config = TrainingConfig(
        arch=arch,
        machine=machine_of_row(row),
        sequence_tokens=int(float(row["seq"])),
        global_batch=int(float(row["gbs"])),
        micro_batch=int(float(row.get("mbs") or 1)),
        tp=tp,
        pp=pp,
        vpp=degree("vpp"),
        cp=cp,
        ep=degree("ep"),
        etp=degree("etp"),
        dp=dp,
        zero_stage=_zero_stage(row),
        zero_ranks=_zero_ranks(row),
        schedule=_SCHEDULES.get((row.get("schedule") or "").strip(), "1f1b"),
        recompute=_recompute(stated, row.get("note") or "", framework),
        precision=_precision(row["precision"]),
        task=_task(row),
        overlap=_overlap(row, framework),
        framework=framework,
    )
    _require_possible(config, num_gpus)
    return TrainingRow(row["id"], _laid_out(config), not stated, not row.get("mbs"))


def _laid_out(config: TrainingConfig) -> TrainingConfig:
    """Uneven layers as users lay them out: embedding and loss for a layer each, or what is over in the last stage."""
    layers, stages = config.arch.num_layers, config.pp * config.vpp
    if layers % stages == 0:
        return config
    if (layers + 2) % stages == 0:
        return replace(config, ends_count_as_layers=True)
    full = -(-layers // stages)
    last = layers - full * (stages - 1)
    return replace(config, layers_of_stage=(full,) * (stages - 1) + (last,)) if last >= 0 else config


def _require_possible(config: TrainingConfig, num_gpus: int) -> None:
    sizes = (config.sequence_tokens, config.global_batch, config.micro_batch, config.tp, config.pp, config.vpp)
    wrong = [
        what
        for what, right in (
            ("sizes and degrees must be positive", min(*sizes, config.cp, config.ep, config.etp, config.dp) >= 1),
            (f"tp x pp x dp x cp is {config.num_gpus}, and the row has {num_gpus} GPUs", config.num_gpus == num_gpus),
            ("there are more pipeline stages than layers", config.pp <= max(config.arch.num_layers, 1)),
        )
        if not right
    ]
    if wrong:
        raise PlannerError(wrong[0], hint="correct the row")


def completed(row: TrainingRow) -> TrainingConfig:
    """The configuration with what the row leaves open chosen."""
    config = row.config
    if row.micro_batch_open:
        return min(_micro_batches(row), key=_predicted_s)
    for candidate in _sharded_further(config):
        chosen = _with_recompute(candidate) if row.recompute_open else candidate
        if _fits(chosen):
            return chosen
    return _with_recompute(config) if row.recompute_open else config


def _sharded_further(config: TrainingConfig) -> Iterator[TrainingConfig]:
    """As stated; with gradients added up in bf16; with gradients, and then weights, sharded too."""
    yield config
    narrow = replace(config, framework=replace(config.framework, gradient_bytes=2.0))
    yield narrow
    for stage in range(config.zero_stage + 1, 4):
        yield replace(narrow, zero_stage=stage)


def _predicted_s(config: TrainingConfig) -> float:
    from planner.costs.training.step import step_time

    return step_time(config).step_s


def _micro_batches(row: TrainingRow) -> Iterator[TrainingConfig]:
    """Micro-batches that divide the batch of a rank and fit; one where none does."""
    per_rank = max(row.config.global_batch // row.config.dp, 1)
    found = False
    for size in (1, 2, 4, 8, 16, 32):
        if per_rank % size == 0:
            config = replace(row.config, micro_batch=size)
            config = _with_recompute(config) if row.recompute_open else config
            if not found or _fits(config):
                found = True
                yield config


def _fits(config: TrainingConfig) -> bool:
    return memory(config).total_bytes <= USABLE * config.machine.memory_bytes


def _with_recompute(config: TrainingConfig) -> TrainingConfig:
    """The least recomputation that fits: none, cheap modules, the feed-forward part, then as few layers as it takes."""
    cheap = _cheap(config)
    for option in (Recompute(), cheap, Recompute("selective", (*cheap.modules, "mlp"))):
        chosen = replace(config, recompute=option)
        if _fits(chosen):
            return chosen
    return _fewest_layers(config)


def _fewest_layers(config: TrainingConfig) -> TrainingConfig:
    """Whole layers computed again, as few of each pipeline rank as fit; all of them where that does not help."""
    low, high = 1, -(-config.arch.num_layers // config.pp)
    while low < high:
        middle = (low + high) // 2
        if _fits(replace(config, recompute=Recompute("full", num_layers=middle))):
            high = middle
        else:
            low = middle + 1
    return replace(config, recompute=Recompute("full", num_layers=low))


def _cheap(config: TrainingConfig) -> Recompute:
    """What gives much memory back for little time: scores written out, else norms and activations of experts."""
    if config.framework.attention == "unfused":
        return Recompute("selective", ("core_attention",))
    return Recompute("selective", ("layernorm", "moe_activation", "mla_up_projection"))


def architecture_of_row(row: Mapping[str, str]) -> Architecture:
    """The model: of the catalog where layers are of kinds that columns do not describe, else as the columns say."""
    kind = row.get("arch") or "dense"
    name = row["model"]
    layers = int(float(row["layers"])) if row.get("layers") else 0
    if name in _CATALOG or kind not in ("dense", "moe") or not row.get("hidden"):
        return _catalog_model(_CATALOG.get(name, name), layers)
    number = {key: int(float(row[key])) for key in ("hidden", "heads", "ffn")}
    return _described(
        name,
        number["hidden"],
        layers,
        number["heads"],
        int(float(row.get("kv_heads") or number["heads"])),
        int(float(row.get("head_dim") or number["hidden"] / number["heads"])),
        number["ffn"],
        (row.get("gated") or "0") not in ("0", "0.0", "false"),
        int(float(row.get("vocab") or GPT_VOCABULARY)),
        tuple(
            int(float(row.get(key) or 0)) for key in ("experts", "topk", "moe_ffn", "shared_experts", "dense_layers")
        ),
    )


@cache
def _catalog_model(name: str, layers: int) -> Architecture:
    """The model of the catalog, cut to its first layers where the row has fewer."""
    from planner.models.library import find_model

    arch = find_model(name)
    if arch.unsupported_parts():
        raise PlannerError(f"{arch.name} cannot be priced: {arch.unsupported_parts()[0]}", hint="leave the row out")
    return replace(arch, layers=arch.layers[:layers]) if 0 < layers < arch.num_layers else arch


@cache
def _described(
    name: str, hidden: int, num_layers: int, heads: int, kv_heads: int, head_dim: int, ffn: int, gated: bool,
    vocab: int, moe: tuple[int, ...],
) -> Architecture:  # fmt: skip
    mixer = GroupedQueryAttention(heads, kv_heads, head_dim, head_dim)
    dense = Layer(mixer, DenseFfn(ffn, gated))
    experts, top_k, moe_ffn, shared, dense_layers = moe
    layers = (dense,) * num_layers
    if experts:
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
    return _machine(node, per_node, row.get("interconnect") or "", int(float(row["num_gpus"])))


def _gpu_name(text: str) -> str:
    """GPUs as tables print them: what is not in the catalog loses its memory size and packaging."""
    return {"GB200-NVL72-186GB": "gb200_nvl72", "GB300-NVL72-288GB": "gb300_nvl72"}.get(text, text)


@cache
def _machine(node: NodeType, per_node: int, interconnect: str, num_gpus: int) -> Machine:
    generation = node.accelerator.name[
        :4
    ].upper()  # "400Gb/s per node RoCE (A100) / 800Gb/s (H100)": two systems in one
    if f"({generation})" in interconnect and " / " in interconnect:
        part = next(part for part in interconnect.split(" / ") if generation in part)
        interconnect = part if "per node" in part else part.replace("Gb/s", "Gb/s per node")
    rate = network_bytes_per_s(interconnect, min(per_node, 8))
    sized = node.of_size(per_node) if 0 < per_node < node.num_gpus else node
    return machine_of(replace(sized, nic_bandwidth_bytes_per_s=rate) if rate else sized)


_ADAPTERS = re.compile(r"(\d+)\s*x\s*(\d+)\s*Gb/s")
_PER_NODE = re.compile(r"(\d+)\s*Gb/s (?:\w+ )?per node")
_PER_GPU = re.compile(r"(\d+)\s*Gb/s (?:\w+ )?per GPU")


def network_bytes_per_s(text: str, gpus_per_node: int) -> float:
    """Bytes per second and GPU beyond the node that a description such as `8x400Gb/s IB NDR` states; 0 for none."""
    if found := _PER_GPU.search(text):
        return float(found[1]) * 1e9 / 8.0
    if found := _ADAPTERS.search(text):
        return int(found[1]) * float(found[2]) * 1e9 / 8.0 / gpus_per_node
    if found := _PER_NODE.search(text):
        return float(found[1]) * 1e9 / 8.0 / gpus_per_node
    return 0.0


def framework_of_row(row: Mapping[str, str]) -> Framework:
    """The training code that the row names."""
    name, note = row.get("framework") or "", row.get("note") or ""
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
        return FRAMEWORKS["megatron_2021"]
    if "Bridge" in name:
        graphs = _release(name) >= 26.06 and "NVL72" in (row.get("gpu") or "")
        return FRAMEWORKS["megatron_graphs" if graphs else "megatron"]
    return FRAMEWORKS["nemo" if "NeMo" in name else "megatron"]


def _release(framework: str) -> float:
    """Year and month of a release: 26.06; 0 where the name has none."""
    found = re.search(r"(\d\d\.\d\d)", framework)
    return float(found[1]) if found else 0.0


def _zero_stage(row: Mapping[str, str]) -> int:
    text = (row.get("zero") or "").lower()
    if not text and "NeMo" in (row.get("framework") or ""):
        return 1  # its default
    for stage, words in ((3, ("zero-3", "megatron-fsdp", "hsdp")), (2, ("zero-2",)), (1, ("zero-1", "distopt"))):
        if any(word in text for word in words):
            return stage
    return 0


def _zero_ranks(row: Mapping[str, str]) -> int:
    text = row.get("zero") or ""
    found = re.search(r"shard=(\d+)", text)
    if found:
        return int(found[1])
    return int(float(row.get("gpus_per_node") or 8)) if "HSDP" in text else 0


def _recompute(text: str, note: str, framework: Framework) -> Recompute:
    if text.startswith("full"):
        return Recompute("full")
    if "recompute of RMSNorm and MLA up-proj" in note:
        return Recompute("selective", ("layernorm", "mla_up_projection"))
    if "selective" in text:
        if framework.attention == "unfused":
            return Recompute("selective", ("core_attention",))
        return Recompute("selective", ("mlp",)) if "per-op" not in text else Recompute("selective", ("attention",))
    return Recompute()


def _precision(text: str) -> Precision:
    return next((found for start, found in _PRECISIONS if text.startswith(start)), "bf16")


def _task(row: Mapping[str, str]) -> Task:
    text = row.get("task") or "pretrain"
    return "lora" if text == "lora" else "sft" if text == "sft" else "pretrain"


def _overlap(row: Mapping[str, str], framework: Framework) -> frozenset[str]:
    """Switches that the code of the time had on."""
    note = row.get("note") or ""
    if framework.name in ("megatron_2021", "megatron_deepspeed") or "overlap features off" in note:
        return frozenset()
    found = {"grad_reduce", "param_gather", "p2p"}
    if framework.name.startswith(("megatron", "nemo")) or "AsyncTP" in note:
        found.add("tp_comm")
    if (row.get("schedule") or "").startswith("dualpipe"):
        found.add("ep_comm")
    return frozenset(found)

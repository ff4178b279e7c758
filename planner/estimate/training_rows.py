"""Reads tables of measured training runs: one row to one training configuration.

Columns (one row a run): id, model, arch (dense, moe, moe-mla, hybrid-...); hidden, layers, heads, kv_heads, head_dim,
ffn, gated, vocab; experts, topk, moe_ffn, shared_experts, dense_layers; seq, gpu, num_gpus, gpus_per_node,
interconnect; tp, pp, vpp, cp, ep, etp, dp; zero, schedule, recompute, mbs, gbs, precision, task, framework, note.
Columns that may say more of the training code: era, attention, fused, host, fused_experts, parallel_block,
loaders_per_node, blocking_hand_overs, as in `options.code` of a problem; window_tokens; dispatcher; cuda_graphs (scopes
of Megatron-Core, or `none`); a2a_overlap (1 or 0); expert_capacity, to which experts are padded. Where these are empty,
runs of Megatron Bridge have what its recipes set (`planner.estimate.bridge_recipes`). Columns that set what options of
a problem do: optimizer; overlap and offload (words, or `none`); moved_layers; document_tokens; step_spread;
reduce_gradients; in_network_reduction (1 or 0); expert_fullest; sample_bytes, read_bytes_per_s and samples_per_s of
`options.loading` (`planner.estimate.training_settings`).
Tables of peak memory have fewer columns, and are read too.
Latent attention, hybrid and sparse layers do not stand in such columns: these models come from the catalog by name,
with the row's layers.

What a row leaves open is chosen as a user would: the least recomputation that fits, the micro-batch of the least
predicted step time among those that fit, and gradients added up in bf16 where nothing fits otherwise. What it states
stays: a run that would not fit so is priced as stated.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from planner.costs.training.config import RecomputeConfig, TrainingConfig, stage_layers
from planner.costs.training.eras import windowed
from planner.costs.training.memory import memory
from planner.costs.training.rates import Rates
from planner.costs.training.step import step_time
from planner.errors import PlannerError
from planner.estimate.bridge_recipes import recipe_of
from planner.estimate.training_columns import (
    architecture_of_row,
    expert_load_of,
    framework_of_row,
    machine_of_row,
    overlap_of,
    precision_of,
    recompute_of,
    schedule_of_row,
    task_of,
    window_tokens,
    zero_ranks,
    zero_stage,
)
from planner.estimate.training_settings import with_settings
from planner.solvers.pass_orders import CHUNKS
from planner.solvers.schedules.pipeline import size_conflict

REQUIRED = ("id", "model", "seq", "gpu", "num_gpus", "tp", "pp", "mbs", "gbs", "precision")
LARGEST = 10**8  # no degree, batch or length comes near
MOST_STAGES = 1024  # whose schedules are simulated
USABLE = 0.97  # of the device's memory that a job can fill


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """One row: what it states as a configuration, and what it leaves open."""

    id: str
    config: TrainingConfig
    recompute_open: bool
    micro_batch_open: bool
    scattered_once: bool = False  # gradients of a pipeline that is said to run ZeRO 2


def config_of_row(row: Mapping[str, str]) -> TrainingRow:
    """The configuration of one row; raises PlannerError for an unknown model or GPU, and for what cannot be."""
    try:
        return _build(_with_columns(row))
    except (ValueError, ArithmeticError, KeyError, TypeError) as error:
        raise PlannerError(f"a field is missing or no number: {error}", hint="correct the row") from None


def _with_columns(row: Mapping[str, str]) -> Mapping[str, str]:
    """The row with what tables of memory leave out: code by source, schedule by note, a batch of one micro-batch."""
    source, note = row.get("source") or "", row.get("note") or ""
    filled = dict(row)
    if "framework" not in row:
        codes = (
            ("torchtitan", "torchtitan"),
            ("Zero Bubble", "Megatron-LM + 1F1B"),
            ("Korthikanti", "Megatron-LM 2022"),
        )
        filled["framework"] = next((code for start, code in codes if source.startswith(start)), "")
    if "gated" not in row and row.get("ffn") and row.get("hidden"):
        filled["gated"] = "0" if float(row["ffn"]) == 4.0 * float(row["hidden"]) else "1"
    if "schedule" not in row:
        stated = re.search(r"schedule=([\w-]+)", note)
        filled["schedule"] = {"1F1B-I": "interleaved"}.get(stated[1], stated[1].lower()) if stated else ""
    if not row.get("gbs"):
        filled["gbs"] = str(int(float(row.get("dp") or 1)) * int(float(row.get("mbs") or 1)))
    return filled


def _build(row: Mapping[str, str]) -> TrainingRow:
    def degree(name: str) -> int:
        return int(float(row.get(name) or 1))

    tp, pp, cp = degree("tp"), degree("pp"), degree("cp")
    num_gpus = int(float(row["num_gpus"]))
    dp = int(float(row.get("dp") or max(num_gpus // (tp * pp * cp), 1)))
    arch = architecture_of_row(row)
    if "w/o MTP" in (row.get("note") or ""):
        arch = arch.without_mtp()
    framework = framework_of_row(row)
    arch = windowed(arch, window_tokens(row, framework))
    schedule = schedule_of_row(row)
    stated = (row.get("recompute") or "").strip() or ("note" if "recompute of" in (row.get("note") or "") else "")
    run, alike = recipe_of(row) or (None, False)
    recipe = run if alike and not stated else None
    config = TrainingConfig(
        arch=arch,
        machine=machine_of_row(row),
        sequence_tokens=int(float(row["seq"])),
        global_batch=int(float(row["gbs"])),
        micro_batch=int(float(row.get("mbs") or 1)),
        tp=tp,
        pp=pp,
        vpp=degree("vpp") if row.get("vpp") else CHUNKS.get(schedule, 1),
        cp=cp,
        ep=degree("ep"),
        etp=degree("etp"),
        dp=dp,
        zero_stage=zero_stage(row),
        zero_ranks=zero_ranks(row),
        schedule=schedule,
        recompute=(recipe and recipe.recompute) or recompute_of(stated, row.get("note") or "", framework),
        precision=precision_of(row["precision"]),
        task=task_of(row),
        overlap=overlap_of(row, framework),
        offload=frozenset({"activations"}) if recipe and recipe.offloaded_layers else frozenset(),
        moved_layers=recipe.offloaded_layers if recipe else 0,
        framework=framework,
        expert_load=expert_load_of(row),
    )
    config = with_settings(config, row)
    _require_possible(config, num_gpus)
    scattered_once = pp > 1 and "zero-2" in (row.get("zero") or "").lower()
    open_recompute = not stated and (recipe is None or recipe.recompute is None)
    return TrainingRow(row["id"], _laid_out(config), open_recompute, not row.get("mbs"), scattered_once)


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
            ("there are more pipeline stages than layers", config.pp * config.vpp <= config.arch.num_layers + 2),
            ("the model has no layers or no width", min(config.arch.num_layers, config.arch.hidden_size) >= 1),
            (
                f"`{config.schedule}` has {CHUNKS.get(config.schedule)} stages a rank, and the row has {config.vpp}",
                CHUNKS.get(config.schedule, config.vpp) == config.vpp,
            ),
            (f"there are more than {MOST_STAGES} pipeline stages", config.pp * config.vpp <= MOST_STAGES),
            ("a size is larger than any machine is", max(*sizes, config.ep, config.etp) < LARGEST),
        )
        if not right
    ]
    if wrong:
        raise PlannerError(wrong[0], hint="correct the row")


def completed(row: TrainingRow, rates: Rates | None = None) -> TrainingConfig:
    """The configuration with what the row leaves open chosen; as stated where nothing that is open makes it fit."""
    config = row.config
    if row.micro_batch_open:
        return min(_micro_batches(row), key=lambda tried: step_time(tried, rates).step_s)
    for candidate in (config, replace(config, framework=replace(config.framework, gradient_bytes=2.0))):
        chosen = _with_recompute(candidate) if row.recompute_open else candidate
        if _fits(chosen):
            return chosen
    return _with_recompute(config) if row.recompute_open else config


def choices_of(row: TrainingRow, config: TrainingConfig) -> dict[str, str | int]:
    """What was chosen in this completed configuration because the row leaves it open."""
    chosen: dict[str, str | int] = {}
    if row.micro_batch_open:
        chosen["micro_batch"] = config.micro_batch
    if row.recompute_open:
        recompute = config.recompute
        modules = " ".join(recompute.modules)
        layers = f"{recompute.num_layers} layers of each stage" if recompute.num_layers else "every layer"
        chosen["recompute"] = {"full": f"full: {layers}", "selective": f"selective: {modules}"}.get(
            recompute.granularity, "none"
        )
    if row.scattered_once:
        chosen["zero_stage"] = config.zero_stage
    if config.framework.gradient_bytes != row.config.framework.gradient_bytes:
        chosen["gradients"] = "bf16"
    return chosen


def _micro_batches(row: TrainingRow) -> Iterator[TrainingConfig]:
    """Micro-batches that divide the batch of a rank, suit the schedule and fit; the least where none does."""
    per_rank = max(row.config.global_batch // row.config.dp, 1)
    sizes = [replace(row.config, micro_batch=size) for size in (1, 2, 4, 8, 16, 32) if per_rank % size == 0]
    first, *larger = [config for config in sizes if _has_order(config)] or sizes[:1]
    yield _with_recompute(first) if row.recompute_open else first
    for config in larger:
        chosen = _with_recompute(config) if row.recompute_open else config
        if _fits(chosen):
            yield chosen


def _has_order(config: TrainingConfig) -> bool:
    """Whether the schedule has an order of passes for these sizes."""
    sizes = (config.schedule, config.pp, config.vpp, config.num_micro_batches)
    return config.pp == 1 or size_conflict(*sizes) is None


def _fits(config: TrainingConfig) -> bool:
    return float(memory(config).total_R.max()) <= USABLE * config.machine.memory_bytes


def _with_recompute(config: TrainingConfig) -> TrainingConfig:
    """The least recomputation that fits: none, cheap modules, the feed-forward part, then as few layers as it takes."""
    cheap = _cheap(config)
    for option in (RecomputeConfig(), cheap, RecomputeConfig("selective", (*cheap.modules, "mlp"))):
        chosen = replace(config, recompute=option)
        if _fits(chosen):
            return chosen
    return _fewest_layers(config)


def _fewest_layers(config: TrainingConfig) -> TrainingConfig:
    """Whole layers computed again, as few of each stage as fit; all of them where that does not help."""
    low, high = 1, max(stage_layers(config))
    while low < high:
        middle = (low + high) // 2
        if _fits(replace(config, recompute=RecomputeConfig("full", num_layers=middle))):
            high = middle
        else:
            low = middle + 1
    return replace(config, recompute=RecomputeConfig("full", num_layers=low))


def _cheap(config: TrainingConfig) -> RecomputeConfig:
    """What gives much memory back for little time: scores written out, else norms and activations of experts."""
    if config.framework.attention == "unfused":
        return RecomputeConfig("selective", ("core_attention",))
    return RecomputeConfig("selective", ("layernorm", "moe_activation", "mla_up_projection"))

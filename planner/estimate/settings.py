"""Settings of a measured deployment as columns of its row: what a launch script tells, else what its engine sets.

Columns, all of which may be left out or empty: `kv_cache` (format of the KV cache; `auto` is the checkpoint's own),
`expert_inputs` and `attention_output` (formats of what enters the experts and of attention's last matrix, where they
are not those of the checkpoint's other products), `memory_utilisation` (share of a device that the engine may use) or
`free_memory_share` (of what weights leave, that the cache takes: TensorRT-LLM's `free_gpu_memory_fraction`),
`reserved_output` (share of its output that a sequence must have room for when it is admitted; all of it under
TensorRT-LLM's GUARANTEED_NO_EVICT, half on average where pages are taken as sequences grow),
`max_batch` (sequences of a decoding attention rank), `chunk_tokens` (prompt tokens of a step, and of those that decode
where both share it), `chunked_prefill` (1 where prompts are cut to fit into a step; TensorRT-LLM's
`enable_chunked_prefill`), `captured_tokens` (of the largest step that CUDA graphs hold; 0: of none with prompts),
`mixed_steps` (1 where prompts share steps with decoding; SGLang's `--enable-mixed-chunk`), `async_scheduling` (1 where
the next step is scheduled beside the device), `poll_steps` (decode steps between looks at new requests; SGLang's
`--scheduler-recv-interval`), `hold_steps` (decode steps for which prompts wait to be batched; TensorRT-LLM's
`batch_wait_timeout_iters`), `balance_steps` (for which they wait until every attention rank has one; its
`attention_dp_config.timeout_iters`), `prefix_hits` (share of prompt tokens that a prefix cache holds),
`whole_tiles` (1 where kernels of experts in fp8 blocks compute a tile of each, tokens or not; vLLM's
`VLLM_MOE_USE_DEEP_GEMM`), and `triton_experts` (1 where OpenAI's Triton kernels run experts in mxfp4 on Hopper;
`moe_config.backend` of TensorRT-LLM, vLLM's `VLLM_MXFP4_USE_MARLIN` turns them off).

`redundant_experts`, of disagg with the prefixes of its parts: copies of experts of a layer where the engine places them
by load (vLLM's `num_redundant_experts` under `--enable-eplb`; SGLang's `--ep-num-redundant-experts` under that or
`--init-expert-location`; what `num_slots` of TensorRT-LLM's load balancer has beyond the experts). Empty: the balancer
is off. SGLang's copies without either are those of the first experts, whatever their loads: as good as none.

Of the load: `requests` (sent in all by the clients of a closed loop; 10 each), `length_low` (lengths are uniform
between this share of the nominal ones and them; 1), or `isl_cv`; `staggered` (1 where clients start one after the
other); and `in_process` (1 where the load generator hands requests to the engine in its own process, as trtllm-bench
does: they pass no front end).

Of tails: `jitter` (coefficient of variation of the time of a step; 0), `graph_batch` (sequences of an attention rank in
the largest decoding step that CUDA graphs hold; all) and `preempts` (1: sequences are admitted while their prompts fit
and give their place up where the cache is full; else as many are admitted as fit with `reserved_output`).

Defaults stand with their sources in planner/engines/settings.yaml, SGLang's share of memory in static_share.py.
Checkpoints in fp8 with one scale a tensor and in nvfp4 are those of NVIDIA's Model Optimizer, which name an fp8 cache
(`kv_cache_quant_algo` in hf_quant_config.json).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from planner.engines.settings import (
    engine_setting,
    mx_inputs,
    reads_checkpoint_cache,
    require_setting,
    triton_experts,
    whole_prompts,
    whole_tiles,
)
from planner.engines.static_share import static_share
from planner.errors import PlannerError
from planner.hardware.accelerator import Accelerator
from planner.models.formats import OWN, our_name
from planner.plan.records import BY_NUMBER

COLUMNS = (
    *("kv_cache", "expert_inputs", "attention_output", "memory_utilisation", "free_memory_share", "max_batch"),
    *(
        "chunk_tokens",
        "chunked_prefill",
        "captured_tokens",
        "mixed_steps",
        "async_scheduling",
        "poll_steps",
        "hold_steps",
        "balance_steps",
        "prefix_hits",
    ),
    *("length_low", "isl_cv", "staggered", "in_process", "requests", "reserved_output"),
    *("jitter", "graph_batch", "preempts", "whole_tiles", "triton_experts"),
    *(f"{prefix}redundant_experts" for prefix in ("", "prefill_", "decode_")),
)
MOST_JITTER = 1.0
MOST_REDUNDANT = 4096
OLDEST = "0"  # a release before all that are told apart
_LARGEST = 1e9  # no count and no length comes near


@dataclass(frozen=True, slots=True)
class Settings:
    """How an engine ran and was loaded; None and 0 where the costs have a default of their own."""

    kv_cache: str | None
    expert_inputs: str | None
    attention_output: str | None
    memory_utilisation: float
    most_memory_utilisation: float  # where weights do not fit into that: the deployment ran
    free_memory_share: float
    reserved_output: float
    requests: float  # sent in all; 0 where nothing is said
    max_batch: int
    chunk_tokens: int
    captured_tokens: float | None
    version: str | None  # whose overheads the engine has: that of the row, but for its way of scheduling
    poll_steps: float
    hold_steps: float
    balance_steps: float
    prefix_hits: float
    length_scale: float  # mean over nominal length
    length_cv: float
    staggered: bool
    in_process: bool  # no front end
    mixed_steps: bool
    jitter: float
    graph_batch: float
    preempts: bool
    whole_tiles: float
    triton_experts: bool
    whole_prompts: bool


def settings_of_row(row: Mapping[str, str], gpu: Accelerator) -> Settings:
    """The settings of a row on a GPU; raises PlannerError for those that cannot be, or contradict each other."""
    engine, version = row["backend"], row.get("backend_version") or None
    scale, spread = _lengths(row)
    utilisation, most, free_share = _memory(row, engine, version, gpu)
    captured, preempts = row.get("captured_tokens"), bool(_flag(row, "preempts"))
    reserved = _number(row, "reserved_output", most=1.0)
    if preempts and (reserved or engine_setting(engine, "reserved_output", version) == 1.0):
        raise PlannerError(
            "preempts is 1 and sequences are admitted with room for what they will write",
            hint="leave reserved_output empty, of an engine that takes pages as sequences grow, or write preempts 0",
        )
    return Settings(
        kv_cache=_format(row, "kv_cache") or _checkpoint_cache(row),
        expert_inputs=_format(row, "expert_inputs") or _engine_inputs(row, gpu),
        attention_output=_format(row, "attention_output"),
        memory_utilisation=utilisation,
        most_memory_utilisation=most,
        free_memory_share=free_share,
        reserved_output=reserved or engine_setting(engine, "reserved_output", version),
        requests=_number(row, "requests"),
        max_batch=int(_number(row, "max_batch") or engine_setting(engine, "max_batch", version, gpu)),
        chunk_tokens=int(
            _number(row, "chunk_tokens") or engine_setting(engine, "chunk_tokens", version, gpu, _sharing_ranks(row))
        ),
        captured_tokens=_number(row, "captured_tokens") if captured else None,
        version=priced_version(engine, version, _flag(row, "async_scheduling")),
        poll_steps=_number(row, "poll_steps"),
        hold_steps=_number(row, "hold_steps"),
        balance_steps=_number(row, "balance_steps"),
        prefix_hits=_number(row, "prefix_hits", most=1.0),
        length_scale=scale,
        length_cv=spread,
        staggered=bool(_flag(row, "staggered")),
        in_process=bool(_flag(row, "in_process")),
        mixed_steps=bool(_flag(row, "mixed_steps")),
        jitter=_number(row, "jitter", most=MOST_JITTER),
        graph_batch=_number(row, "graph_batch") or math.inf,
        preempts=preempts,
        whole_tiles=tiles_at(engine, version, _flag(row, "whole_tiles")),
        triton_experts=triton_at(engine, version, _flag(row, "triton_experts")),
        whole_prompts=whole_at(engine, version, _flag(row, "chunked_prefill")),
    )


def priced_version(engine: str, version: str | None, asynchronous: bool | None) -> str | None:
    """The release whose overheads an engine has that schedules beside the device, or not; None is the newest.

    Raises PlannerError where an engine was never priced without asynchronous scheduling.
    """
    if asynchronous is None or asynchronous == bool(engine_setting(engine, "async_scheduling", version)):
        return version
    if asynchronous:
        return None
    if engine_setting(engine, "async_scheduling", OLDEST):
        raise PlannerError(
            f"async_scheduling 0 has no price on {engine}",
            hint="leave it empty: the engine schedules beside the device",
        )
    return OLDEST


def tiles_at(engine: str, version: str | None, stated: bool | None) -> float:
    """The most tensor parallelism of experts computed in whole tiles: any or none as stated, else the release's."""
    if stated is None:
        return whole_tiles(engine, version)
    return math.inf if stated else 0.0


def triton_at(engine: str, version: str | None, stated: bool | None) -> bool:
    """Whether Triton's kernels run experts in mxfp4 on Hopper: as stated, else as the release does."""
    return triton_experts(engine, version) if stated is None else stated


def whole_at(engine: str, version: str | None, cut: bool | None) -> bool:
    """Whether steps take whole prompts alone: unless these are cut as stated, else as the release does."""
    return whole_prompts(engine, version) if cut is None else not cut


def placed_at(engine: str, version: str | None, stated: int | None) -> int:
    """Redundant experts of a layer as stated, else BY_NUMBER, as no engine places experts by load unasked.

    Raises PlannerError for a release that cannot.
    """
    if stated is None:
        return BY_NUMBER
    require_setting(engine, "redundant_experts", version)
    return stated


def redundant_of_row(row: Mapping[str, str], prefix: str) -> int:
    """That of the part of a row whose columns have the prefix; raises PlannerError where it cannot be.

    What stands in the column of a part that the row has not would be lost, and is refused.
    """
    foreign = ("prefill_", "decode_") if prefix == "" else ("",)
    stray = next((name for part in foreign if row.get(name := f"{part}redundant_experts")), None)
    if stray is not None:
        raise PlannerError(f"`{stray}` is of no part of a row of mode {row['mode']}", hint="correct the row")
    name = f"{prefix}redundant_experts"
    copies = _number(row, name, most=MOST_REDUNDANT)
    if copies % 1.0:
        raise PlannerError(f"`{name}` is no whole number: {row[name]}", hint="correct the row")
    return placed_at(row["backend"], row.get("backend_version") or None, int(copies) if row.get(name) else None)


def held_steps(settings: Settings, ranks: int, clients: int, osl: float) -> float:
    """Decode steps that a prompt is held: until all attention ranks have one, or prompts are batched.

    Prompts come to a random rank every osl / clients steps; until all other ranks had one, that is harmonic(ranks - 1)
    ranks times as long. It is half of the longest wait at most: prompts come at any time of that.
    """
    harmonic = sum(1.0 / k for k in range(1, ranks))
    balance = min(harmonic * ranks * osl / max(clients, 1), settings.balance_steps / 2.0)
    return balance or settings.hold_steps


def _sharing_ranks(row: Mapping[str, str]) -> int:
    """Attention ranks of an instance with prompts that share experts; 1 where none do."""
    prefix = "prefill_" if row["mode"] == "disagg" else ""
    dp, moe_tp, ep = (float(row.get(f"{prefix}{name}") or 1) for name in ("dp", "moe_tp", "moe_ep"))
    return max(int(dp), 1) if moe_tp * ep > 1 else 1


def _static_share(row: Mapping[str, str], version: str | None, gpu: Accelerator) -> float:
    """What SGLang gives to weights and caches of a decoding device unasked."""
    prefix = "decode_" if row["mode"] == "disagg" else ""
    tp, pp, dp, moe_tp, ep = (
        int(float(row.get(f"{prefix}{name}") or 1)) for name in ("tp", "pp", "dp", "moe_tp", "moe_ep")
    )
    ranks = dp if moe_tp * ep > 1 else 1
    return static_share(gpu, version, devices=tp * ranks, stages=pp, attention_ranks=ranks)


def _memory(row: Mapping[str, str], engine: str, version: str | None, gpu: Accelerator) -> tuple[float, float, float]:
    """The share of memory that the engine may use, at most where weights need it, and of what is free the cache's.

    A row of a table ran: where its share is not stated and weights do not fit into the default, it had more.
    """
    stated, free = _number(row, "memory_utilisation", most=1.0), _number(row, "free_memory_share", most=1.0)
    if stated and free:
        raise PlannerError("memory_utilisation and free_memory_share are both given", hint="keep one of the two")
    if stated or free:
        return stated or 1.0, stated or 1.0, free or 1.0
    used = (
        _static_share(row, version, gpu)
        if engine == "sglang"
        else engine_setting(engine, "memory_utilisation", version, gpu)
    )
    return used, 1.0, engine_setting(engine, "free_memory_share", version, gpu) or 1.0


def _lengths(row: Mapping[str, str]) -> tuple[float, float]:
    """Mean over nominal length, and the coefficient of variation of prompts."""
    low, stated = _number(row, "length_low", most=1.0) or 1.0, _number(row, "isl_cv")
    if low == 1.0:
        return 1.0, stated
    if stated:
        raise PlannerError("length_low and isl_cv are both given", hint="keep one of the two")
    mean = (1.0 + low) / 2.0
    return mean, (1.0 - low) / 12**0.5 / mean


def _format(row: Mapping[str, str], name: str) -> str | None:
    text = (row.get(name) or "").strip()
    return None if text.lower() in OWN else text


def _checkpoint_cache(row: Mapping[str, str]) -> str | None:
    """Of the KV cache, where the checkpoint names one that the engine reads and the row does not."""
    named = our_name(row.get("weights") or "") in ("fp8", "nvfp4")
    return "fp8" if named and reads_checkpoint_cache(row["backend"], row.get("backend_version") or None) else None


def _engine_inputs(row: Mapping[str, str], gpu: Accelerator) -> str | None:
    """Of what enters experts in mxfp4, where the engine converts it unasked."""
    converts = gpu.is_blackwell and mx_inputs(row["backend"], row.get("backend_version") or None)
    return "fp8" if converts and our_name(row.get("weights") or "") == "mxfp4" else None


def _flag(row: Mapping[str, str], name: str) -> bool | None:
    text = (row.get(name) or "").strip().lower()
    if text not in ("", "0", "1", "0.0", "1.0", "true", "false"):
        raise PlannerError(f"`{name}` is 0 or 1, found `{text}`", hint="correct the row")
    return None if text == "" else text in ("1", "1.0", "true")


def _number(row: Mapping[str, str], name: str, *, most: float = _LARGEST) -> float:
    """A column's number, 0 where it is empty; raises PlannerError outside [0, most]."""
    text = row.get(name)
    if not text:
        return 0.0
    try:
        value = float(text)
    except ValueError:
        raise PlannerError(f"`{name}` is no number: {text}", hint="correct the row") from None
    if not 0.0 <= value <= most:
        raise PlannerError(f"`{name}` of the row cannot be {text}", hint=f"write a number of 0 to {most:g}")
    return value

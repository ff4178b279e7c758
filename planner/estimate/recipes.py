"""Engine settings of public benchmark runs that result tables omit, read off the recipes that ran them.

InferenceX (formerly InferenceMAX) publishes what it runs: `benchmarks/single_node/*.sh`, `benchmarks/*_docker.sh` and
`.github/configs/nvidia-master.yaml` of github.com/SemiAnalysisAI/InferenceX, as of October 2025 to April 2026. Taken
from there: the format of the KV cache, the share of memory, the largest batch, the prompt tokens of a step, SGLang's
interval between looks at new requests, TensorRT-LLM's waiting for full batches (`batch_wait_timeout_iters`) and for
prompts on all attention ranks (`attention_dp_config`), and the images, which tell the engine's release. Its
disaggregated TensorRT-LLM deployments limit the decoding batch to the power of two at or below the clients' share (the
`batchN` in the names of their files), but for sweeps over concurrency at one limit.
DeepSeek-R1 in nvfp4 is its second checkpoint, which converts the output matrix of attention too (the card of
nvidia/DeepSeek-R1-0528-FP4-v2). gpt-oss on Blackwell takes its inputs to the experts in mxfp8 (the TRTLLM backend;
`VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8`). NVIDIA's gap analysis runs with fixed lengths; in those with lengths in
thousands of tokens the time to first token is that of clients which do not start together, and vLLM, whose prefix cache
is on unless told otherwise, answers faster than its devices can compute: its prompts repeat. In the others vLLM's and
TensorRT-LLM's times are those of prompts that take a step each: as many tokens a step as a prompt has.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import floor, log2

from planner.estimate.case import REQUESTS_PER_CLIENT

GAP_PROMPTS = 100  # distinct ones of NVIDIA's load generator unless told otherwise (aiperf --num-dataset-entries)
GB200_NODE = 4  # devices
BLACKWELL = ("b200", "b300", "gb200", "gb300")
DEFAULT_UTILISATION = 0.95  # where nothing is known: runs have settings between 0.80 and 0.95

_MINIMAX_TUNED = "2026-04-03"  # from here its fp8 recipe on Blackwell has an fp8 cache and graphs of 2,048 tokens
_SECOND_IMAGES = "2025-12-01"  # before this its recipes name the images below
_FIRST_IMAGES = {"sglang": "0.5.5", "trtllm": "1.1.0"}  # and for gpt-oss 1.2.0rc0, with the times of 1.1
_DYNAMO_0_8 = "2026-01-01"  # from here its image of Dynamo is 0.8; those of 0.5 are taken to have TensorRT-LLM 1.1
_BALANCE_STEPS = 30.0  # half of `timeout_iters`: prompts come at any time of that wait
_SWEPT_BATCH = {  # decoding batch of TensorRT-LLM recipes that one limit serves many concurrencies: system, prompt
    ("b200_sxm", 1024): 32,
    ("b200_sxm", 8192): 8,
    ("b300_sxm", 1024): 64,
    ("gb200", 1024): 32,
    ("gb200", 8192): 16,
    ("gb300", 1024): 32,
    ("gb300", 8192): 4,
}


@dataclass(frozen=True, slots=True)
class Recipe:
    """How an engine ran; 0 and None where its own defaults stand."""

    cache_format: str | None = None
    memory_utilisation: float = DEFAULT_UTILISATION
    max_batch: int = 0  # sequences of a decoding attention rank
    step_tokens: int = 0  # prompt tokens in one step
    poll_steps: float = 0.0
    hold_steps: float = 0.0
    staggered: bool = False
    captured_tokens: float | None = None  # of the largest step that a CUDA graph holds
    expert_inputs: str | None = None  # the format of what enters the experts, where it is not the checkpoint's
    output_format: str | None = None  # of the last matrix of attention, where it is not that of the others
    prefix_hits: float = 0.0
    asynchronous: bool = False  # schedules beside the device, as later releases do unasked
    release: str | None = None  # of the engine, where the table names none or that of a framework around it


def recipe_of(row: Mapping[str, str], clients: int, decode_ranks: int) -> Recipe:
    """The settings of a measured row; `clients` of a closed loop, over `decode_ranks` attention ranks."""
    if row.get("source") == "nvidia-gap":
        return _gap_analysis(row, clients)
    if row.get("source") != "inferencex":
        return Recipe()
    engine = {"vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm}.get(row["backend"])
    recipe = engine(row, clients, decode_ranks) if engine is not None else Recipe()
    recipe = replace(recipe, release=_release(row))
    if _family(row).startswith("DeepSeek") and row.get("weights") == "nvfp4":
        return replace(recipe, output_format="nvfp4")
    eight_bit = _family(row).startswith("gpt-oss") and _blackwell(row)
    return replace(recipe, expert_inputs="fp8") if eight_bit else recipe


def leaves_out_ep(row: Mapping[str, str]) -> bool:
    """Whether a row has the placeholders of a recipe in place of its parallelism: `ep: 1` and `dp-attn: true`.

    SGLang 0.5.5 on GB200, where they "do nothing" (nvidia-master.yaml, December 2025): expert parallel over all ranks,
    as the comments beside them say; decoding on one node has the times of tensor parallelism.
    """
    early = row["backend"] == "sglang" and (row.get("backend_version") or "").startswith("0.5.5")
    return early and row["mode"] == "disagg" and row["system"] == "gb200" and row.get("source") == "inferencex"


def _gap_analysis(row: Mapping[str, str], clients: int) -> Recipe:
    isl = int(float(row["isl"]))
    if isl % 1000 != 0:
        return Recipe(step_tokens=0 if row["backend"] == "sglang" else isl)
    if row["backend"] == "vllm" and clients > 0:
        return Recipe(prefix_hits=max(1.0 - GAP_PROMPTS / (REQUESTS_PER_CLIENT * clients), 0.0))
    return Recipe(staggered=True)


def _vllm(row: Mapping[str, str], clients: int, decode_ranks: int) -> Recipe:
    family, blackwell, isl = _family(row), _blackwell(row), int(float(row["isl"]))
    if family.startswith("MiniMax"):
        if not blackwell:
            h200 = row["system"] == "h200_sxm"
            return Recipe(None, 0.95 if h200 else 0.90, 0 if h200 else 256, 8192)
        if row.get("weights") == "fp8_block" and (row.get("measured") or "") < _MINIMAX_TUNED:
            return Recipe(None, 0.95, 0, 8192)
        return Recipe("fp8", 0.90, 0, 2 * isl, captured_tokens=2048.0)
    if family.startswith("Kimi"):
        four_bit = row.get("weights") == "nvfp4"
        return Recipe("fp8", 0.90, 0, 2 * isl, captured_tokens=2048.0) if four_bit else Recipe(None, 0.95, 0, 8192)
    dense = family.startswith("Llama")
    return Recipe(
        cache_format="fp8" if blackwell or dense else None,
        memory_utilisation=0.90,
        max_batch=512 if blackwell else 0,
        step_tokens=8192,
        captured_tokens=2048.0 if not dense else 0.0 if blackwell else None,
        asynchronous=True,
    )


def _sglang(row: Mapping[str, str], clients: int, decode_ranks: int) -> Recipe:
    poll = 30.0 if clients / max(decode_ranks, 1) >= 16 else 10.0
    if row["mode"] == "disagg":
        return Recipe("fp8", poll_steps=poll)
    if float(row["gpus"]) < 8 and row.get("weights") == "fp8_block":
        return Recipe("fp8", 0.95, 32, 8192, 10.0)
    four_bit = row.get("weights") == "nvfp4"
    if not _blackwell(row):
        return Recipe(None, 0.82, 0, 32768)
    return Recipe(
        cache_format="fp8",
        memory_utilisation=0.85 if four_bit else 0.82,
        max_batch=256 if four_bit else 128,
        step_tokens=16384 if four_bit else 32768,
        poll_steps=poll,
    )


def _trtllm(row: Mapping[str, str], clients: int, decode_ranks: int) -> Recipe:
    family, isl, osl = _family(row), int(float(row["isl"])), int(float(row["osl"]))
    if row["mode"] == "disagg":
        return Recipe("fp8", max_batch=_decode_batch(row, clients, decode_ranks))
    hold = _balance(float(row["dp"] or 1), clients, osl)
    short = isl == 1024 and osl == 1024
    if family.startswith("Llama"):
        batched = short and float(row["tp"] or 1) < 8
        return Recipe("fp8", DEFAULT_UTILISATION, 1024, 16384, hold_steps=20.0 if batched else 0.0)
    if family.startswith("gpt-oss"):
        return Recipe("fp8" if _blackwell(row) else None, DEFAULT_UTILISATION, 512, 20000, hold_steps=hold)
    batched = short and clients >= 64 and row.get("weights") == "fp8_block"
    return Recipe("fp8", DEFAULT_UTILISATION, 0, max(clients + isl + 64, 8192), hold_steps=hold or 40.0 * batched)


def _balance(ranks: float, clients: int, osl: int) -> float:
    """Steps that a prompt waits until every other attention rank has one (`attention_dp_config`); 0 of a lone rank."""
    harmonic = sum(1.0 / k for k in range(1, int(ranks)))
    return min(harmonic * ranks * osl / max(clients, 1), _BALANCE_STEPS)


def _release(row: Mapping[str, str]) -> str | None:
    version, day = row.get("backend_version") or "", row.get("measured") or ""
    if row["backend"] == "trtllm" and row["mode"] == "disagg":
        early = version.startswith("0.5") or (not version and "" < day < _DYNAMO_0_8)
        return "1.1.0" if early else None
    return None if version or not "" < day < _SECOND_IMAGES else _FIRST_IMAGES.get(row["backend"])


def _decode_batch(row: Mapping[str, str], clients: int, decode_ranks: int) -> int:
    """The largest decoding batch of a rank; 0 where the recipes set none that the load comes near."""
    share = clients / max(decode_ranks, 1)
    if row["system"] == "b200_sxm" and row.get("weights") == "fp8_block":
        return 0
    limit = 1 << floor(log2(max(share, 1.0)))
    swept = row.get("weights") == "nvfp4" and float(row["decode_tp"] or 1) > 1 and share >= 1.5
    return max(limit, _SWEPT_BATCH.get((row["system"], int(float(row["isl"]))), 0)) if swept else limit


def _family(row: Mapping[str, str]) -> str:
    return row.get("family") or ""


def _blackwell(row: Mapping[str, str]) -> bool:
    return row["system"].startswith(BLACKWELL)

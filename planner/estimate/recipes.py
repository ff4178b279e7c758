"""Settings of public benchmark runs that tables of their results do not state, read off the recipes that ran them.

InferenceX (formerly InferenceMAX) publishes what it runs: `benchmarks/single_node/*.sh`, `benchmarks/*_docker.sh` and
`.github/configs/nvidia-master.yaml` of github.com/SemiAnalysisAI/InferenceX, as of October 2025 to April 2026. Taken
from there: the format of the KV cache, the share of memory, the largest batch, the prompt tokens of a step, SGLang's
interval between looks at new requests, TensorRT-LLM's waiting for full batches (`batch_wait_timeout_iters`). Its
disaggregated TensorRT-LLM deployments limit the decoding batch to the power of two at or below the clients' share (the
`batchN` in the names of their files), but for sweeps over concurrency at one limit.
NVIDIA's gap analysis runs with fixed lengths; in those with lengths in thousands of tokens the time to first token is
that of clients which do not start together.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor, log2

BLACKWELL = ("b200", "b300", "gb200", "gb300")
DEFAULT_UTILISATION = 0.95  # where nothing is known: runs have settings between 0.80 and 0.95

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


def recipe_of(row: Mapping[str, str], clients: int, decode_ranks: int) -> Recipe:
    """The settings of a measured row; `clients` of a closed loop, over `decode_ranks` attention ranks."""
    if row.get("source") == "nvidia-gap":
        return Recipe(staggered=float(row["isl"]) % 1000 == 0)
    if row.get("source") != "inferencex":
        return Recipe()
    engine = {"vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm}.get(row["backend"])
    return engine(row, clients, decode_ranks) if engine is not None else Recipe()


def _vllm(row: Mapping[str, str], clients: int, decode_ranks: int) -> Recipe:
    family, blackwell, isl = _family(row), _blackwell(row), int(float(row["isl"]))
    minimax = family.startswith("MiniMax")
    return Recipe(
        cache_format="fp8" if blackwell or row.get("weights") == "fp8" else None,
        memory_utilisation=0.95 if minimax and row["system"] == "h200_sxm" else 0.90,
        max_batch=512 if blackwell and not minimax else 256 if minimax and row["system"] == "h100_sxm" else 0,
        step_tokens=2 * isl if minimax and blackwell else 8192,
    )


def _sglang(row: Mapping[str, str], clients: int, decode_ranks: int) -> Recipe:
    poll = 30.0 if clients / max(decode_ranks, 1) >= 16 else 10.0
    if row["mode"] == "disagg":
        return Recipe("fp8", poll_steps=poll)
    if float(row["gpus"]) < 8 and row.get("weights") == "fp8_block":
        return Recipe("fp8", 0.95, 32, 8192, 10.0)
    four_bit = row.get("weights") == "nvfp4"
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
    short = isl == 1024 and osl == 1024
    if family.startswith("Llama"):
        held = short and float(row["tp"] or 1) < 8
        return Recipe("fp8", DEFAULT_UTILISATION, 1024, 16384, hold_steps=20.0 if held else 0.0)
    if family.startswith("gpt-oss"):
        return Recipe("fp8", DEFAULT_UTILISATION, 512, 20000)
    held = short and clients >= 64 and row.get("weights") == "fp8_block"
    return Recipe("fp8", DEFAULT_UTILISATION, 0, max(clients + isl + 64, 8192), hold_steps=40.0 if held else 0.0)


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

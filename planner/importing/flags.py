"""Flags of serving engines that contradict each other, or that are nearly a name that the engine knows."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from planner.importing.engines import decision_names
from planner.importing.options import Options
from planner.importing.values import Values

NEAR = 0.93
_OTHERS = frozenset({"data_parallel_size_local", "max_num_seq_len", "max_seq_len_to_capture"})


def flag_findings(engine: str, options: Options) -> list[str]:
    """Switches given both ways, and names one slip away from one that decides something."""
    findings = [
        f"--{_dashed(name)} and --no-{_dashed(name)} cancel each other"
        for name in options
        if f"no_{name}" in options and options.get(f"no_{name}") is True and _given_first(options, name)
    ]
    known = decision_names(engine)
    for name in options:
        plain = name.removeprefix("no_")
        if plain and plain not in known and plain not in _OTHERS and "." not in plain:
            near = get_close_matches(plain, known, 1, NEAR)
            findings += [f"unknown flag --{_dashed(name)}, nearest is --{_dashed(near[0])}"] if near else []
    return findings


def _given_first(options: Options, name: str) -> bool:
    """Whether the switch itself was written, and not only what `--no-` says of it: it then stands ahead."""
    order = list(options)
    return order.index(name) < order.index(f"no_{name}")


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def limit_findings(engine: object, role: Mapping[str, Any]) -> list[str]:
    """Limits that the engines themselves refuse (vLLM `vllm/config/scheduler.py`, SGLang `server_args.py`)."""
    findings = []
    tokens, batch = role["chunk_tokens"], role["max_num_seqs"]
    if engine == "vllm" and tokens and batch and tokens < batch:
        findings.append(f"max-num-batched-tokens {tokens} is below max-num-seqs {batch}")
    share = role["memory_utilisation"]
    if share is not None and not 0 < share <= 1:
        findings.append(f"a share of memory of {share:g} is not between 0 and 1")
    tp, dp, pp, gpus = role["tp"], role["dp"], role["pp"], role["gpus_per_replica"]
    if engine == "sglang" and tp and pp and dp and dp > 1 and gpus == tp * pp and tp % dp:
        findings.append(f"data-parallel attention {dp} does not divide tp {tp}")
    return findings


def setting_findings(engine: str, options: Options, role: Mapping[str, Any], values: Values) -> list[str]:
    """What settings say together that no role says alone.

    vLLM without chunked prefill takes no prompt longer than its batch of tokens (`vllm/config/scheduler.py`). SGLang's
    data parallelism is copies beside each other, unless it is of attention (`server_args.py`).
    """
    tp, pp, dp, gpus = role["tp"], role["pp"], role["dp"], role["gpus_per_replica"]
    attention = values.switch(options.get("enable_dp_attention")) or options.get("attn_dp_size") is not None
    if engine == "sglang" and tp and pp and dp and dp > 1 and gpus and not attention and tp * pp * dp > gpus:
        asked = f"tp {tp} x dp {dp} without data-parallel attention"
        return [f"{asked} needs {tp * pp * dp} GPUs, a replica is given {gpus}"]
    whole = engine == "vllm" and values.switch(options.get("enable_chunked_prefill")) is False
    tokens, length = role["chunk_tokens"], role["max_model_len"]
    if whole and tokens and length and tokens < length:
        return [f"max-num-batched-tokens {tokens} is below max-model-len {length} without chunked prefill"]
    return []

"""Fills the columns of settings of public benchmark runs from the recipes that ran them.

    python benchmarks/recipe_columns.py ../shared/data/serving/measured.csv FILLED.csv [--inferred]
    planner estimate --measured FILLED.csv

InferenceX (formerly InferenceMAX) publishes what it runs: `benchmarks/single_node/*.sh`, `benchmarks/*_docker.sh` and
`.github/configs/nvidia-master.yaml` of github.com/SemiAnalysisAI/InferenceX, as of October 2025 to April 2026. Taken
from there, where a table leaves it empty: the format of the KV cache, the share of memory, the largest batch, the
prompt tokens of a step, the graphs (`--cuda-graph-sizes`, TensorRT-LLM's `enable_piecewise_cuda_graph`), SGLang's
`--scheduler-recv-interval`, TensorRT-LLM's `batch_wait_timeout_iters` and `attention_dp_config.timeout_iters`,
asynchronous scheduling, the images, which tell the engine's release where a table names none or that of the framework
around it, and the load generator's lengths, uniform in [0.8, 1] of the nominal ones. DeepSeek-R1 on B200 waits to batch
prompts of 1,024 tokens, and has graphs of them, since 29 January 2026 (commit ec7bafaae; in nvfp4 commit 6eecc0e66).
Its disaggregated TensorRT-LLM deployments limit the decoding batch to the power of two at or below the
clients' share (the `batchN` in the names of their files), but for sweeps over concurrency at one limit. DeepSeek-R1 in
nvfp4 is its second checkpoint, which converts the output matrix of attention too (the card of
nvidia/DeepSeek-R1-0528-FP4-v2). gpt-oss on Blackwell takes its inputs to the experts in mxfp8 (the TRTLLM backend;
`VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8`); on Hopper it runs vLLM with `--max-num-seqs $CONC` and sends 10 requests for
each of $CONC clients, 4 to 64 of them (its README), and for some days in December 2025 with a literal
`--max-concurrency 512` beside: rows of 512 clients are runs of an unstated $CONC, and the recipe's columns leave their
batch and requests empty. DeepSeek-R1 on B300 is sent one request for each client (dsr1_fp8_b300.sh). Disaggregated
deployments are measured by the scripts of github.com/ai-dynamo/dynamo, with 5 requests a client of SGLang
(examples/backends/sglang/slurm_jobs/scripts/vllm/bench.sh) and 8 of TensorRT-LLM
(components/backends/trtllm/performance_sweeps/benchmark_disagg.slurm: MULTI_ROUND), and from January 2026 by
github.com/NVIDIA/srt-slurm with 10 (commit 88ff268).
Its single-node recipes for TensorRT-LLM chose expert and attention data parallelism themselves until 3 November 2025
(commit 17d5e204f), by concurrency and lengths, which tables of their results name as tensor parallelism: gpt-oss on
H200 ran expert parallel over all ranks, DeepSeek-R1 on B200 as `_chosen_in_script` says.
TensorRT-LLM on GB200 and GB300 places the experts of DeepSeek-R1 in nvfp4 by load where srt-slurm's recipe names slots
(`moe_config.load_balancer`; `eplb256` or `eplb288` in the names of its files): 256 for a decoding batch of 256 on 16
ranks, 288 for 128 or more on 32. All others say `eplb0`, and so do runs of 2025 (runners/launch_gb200-nv.sh). Recipes
for SGLang name `ep-num-redundant-experts: 32` and neither `enable-eplb` nor `init-expert-location`: copies of the first
32 experts, whatever their loads. Its `chunked-prefill-size` for prefill (recipes/b200-*, gb200-*, gb300-*), of all
attention ranks of an instance together, is 32,768 on B200; on GB200 and GB300 16,384 a rank of several, of one 8,192
for prompts of 1,024 tokens, and for longer ones 131,072 where decoding is attention data parallel, else 24,576. Those
for TensorRT-LLM (recipes/trtllm/*/stp) name `max_num_tokens` of each attention rank for prefill.
SGLang 0.5.5 on GB200 has the placeholders `ep: 1` and `dp-attn: true` in place of its parallelism, where they "do
nothing" (nvidia-master.yaml, December 2025): expert parallel over all ranks, as the comments beside them say; decoding
on one node has the times of tensor parallelism. Kimi-K2.5 on GB200 with vLLM runs the recipes of
github.com/NVIDIA/srt-slurm (recipes/vllm/kimi-k2.5, `dep4-tep4` and `dep4-dep16`): prompts attention data parallel on a
node, decoding tensor parallel on one and attention data parallel across several.

Azure's AI benchmarking guide runs vLLM with 10 scheduler steps and 131,072 prompt tokens a step, as it says. The engine
of before 0.8 alone can (`--num-scheduler-steps`): it looks at new requests so often, and takes 256 sequences unasked.

TensorRT-LLM's performance overviews are measured with trtllm-bench, which hands requests to the engine in its own
process. That of 1.0 runs mixtures of experts with `enable_attention_dp`
(TensorRT-LLM/docs/source/performance/perf-overview.md of the release, "For MoE models"; for Qwen3 and Llama 4 Maverick
TensorRT-LLM/docs/source/developer-guide/perf-overview.md of the next one too) and names the ranks alone, as `TP`: the
split of experts stays as the table has it.

dstack's comparison of MI300X and H100 (comparison/h100sxm5_vs_mi300x/README.md of github.com/dstackai/benchmarks) runs
vLLM's benchmark_throughput.py, in the engine's own process and without `--kv-cache-dtype`, so that the cache has the
model's 16 bits, whatever the checkpoint names (vllm/worker/cache_engine.py of 0.6: `auto`); on MI300X with
`--enforce-eager`.

NVIDIA's gap analysis (`source` nvidia-gap) sets the predictions of its AIConfigurator beside runs of what that
generates: the releases of these runs are those that its templates are for (src/aiconfigurator/generator/ of
github.com/ai-dynamo/aiconfigurator). The rules there (rule_plugin/*.rule, and those for benchmarks; before release 0.5
backends/trtllm.py) give a step room for the prompt, the batch that decodes and 1,500 tokens more. TensorRT-LLM runs
without chunked prefill and with .8 of what is free for the cache. SGLang has that room for whole prompts alone
(`--max-prefill-tokens`), which share steps with decoding from release 0.5.4 on: templates before misspell
`--enable-mixed-chunk`. vLLM has it as `--max-num-batched-tokens`, which the template of 0.12.0 alone leaves out, as it
is stored. Weights in fp8 have a cache in fp8 (sdk/task.py, `_get_quant_mode`); that of SGLang is `fp8_e5m2`, with which
attention on Hopper leaves its kernels for Triton's, and is left out. Ten requests a client, as its guide to deployment
with Dynamo has it, are ours too.

What no recipe says is filled with `--inferred` alone. Runs of the gap analysis at lengths in thousands of tokens have
the times to first token of clients that do not start together, and on vLLM, whose prefix cache is on unless told
otherwise, they answer faster than their devices can compute, so that prompts repeat: AIConfigurator's job for
Kubernetes (k8s_bench.yaml.j2) sends the 100 that aiperf makes unless told otherwise, its guide turns reuse off, and
nothing says which ran. gpt-oss on Hopper with a literal 512 clients has the times of a $CONC of 16, the middle of its
sweep. These were read off the measured times.
"""

import csv
import sys
from collections.abc import Mapping
from itertools import takewhile
from math import ceil, floor, log2
from pathlib import Path

Row = Mapping[str, str]
Columns = dict[str, str]

GAP_PROMPTS = 100
REQUESTS_PER_CLIENT = 10
GENERATED_ROOM = 1500  # tokens of a step beyond one prompt and the batch, as AIConfigurator sets it
GENERATED_SHARE = "0.8"  # its free_gpu_memory_fraction
MIXED_FROM = (0, 5, 4)  # SGLang releases whose template passes on that prompts share steps
SGLANG_CHUNK = 8192  # prompt tokens of a step on GPUs of 60 to 160 GiB
GB200_NODE = 4  # devices
BLACKWELL = ("b200", "b300", "gb200", "gb300")
LENGTH_LOW = "0.8"

LOAD = ("length_low", "staggered", "in_process", "requests")  # columns that tell of the load, not of the engine
_MINIMAX_TUNED = "2026-04-03"  # from here its fp8 recipe on Blackwell has an fp8 cache and graphs of 2,048 tokens
_SECOND_IMAGES = "2025-12-01"  # before this its recipes name the images below
_FIRST_IMAGES = {"sglang": "0.5.5", "trtllm": "1.1.0"}  # and for gpt-oss 1.2.0rc0, with the times of 1.1
_DYNAMO_0_8 = "2026-01-01"  # from here its image of Dynamo is 0.8; those of 0.5 are taken to have TensorRT-LLM 1.1
_SRT_SLURM = "2026-01-23"  # from here disaggregated deployments are sent 10 requests for each client, before
_DYNAMO_ROUNDS = {"sglang": 5, "trtllm": 8}  # so many
_STATED_PARALLELISM = "2025-11-03"  # before this its scripts for TensorRT-LLM choose what is parallel beside tensors
_CAPTURED_FP8, _CAPTURED_NVFP4 = "2026-01-29", "2026-02-03"  # from here DeepSeek-R1 on B200 has graphs of prompts
_MARLIN = "2026-01-02"  # from here gpt-oss on Hopper runs with VLLM_MXFP4_USE_MARLIN
_SWEPT_BATCH = {  # decoding batch of TensorRT-LLM recipes that one limit serves many concurrencies: system, prompt
    ("b200_sxm", 1024): 32,
    ("b200_sxm", 8192): 8,
    ("b300_sxm", 1024): 64,
    ("gb200", 1024): 32,
    ("gb200", 8192): 16,
    ("gb300", 1024): 32,
    ("gb300", 8192): 4,
}
_CONTEXT_TOKENS = {  # of a step of a rank for prompts of 1,024 tokens and of 8,192: system, weights
    ("b200", "nvfp4"): (10_240, 16_896),
    ("b200", "fp8_block"): (16_384, 8_320),
    ("b300", "nvfp4"): (10_240, 16_896),
    ("b300", "fp8_block"): (8_320, 8_320),
    ("gb200", "nvfp4"): (16_384, 16_640),
    ("gb200", "fp8_block"): (16_384, 16_384),
    ("gb300", "nvfp4"): (16_384, 16_640),
    ("gb300", "fp8_block"): (16_384, 16_384),
    ("h100", "fp8_block"): (2_048, 8_224),
    ("h200", "fp8_block"): (8_192, 16_640),
}
_BOARD_CHUNK, _RANK_CHUNK = 32_768, 16_384  # prompt tokens of a step of an instance on B200; of a rank of several
_SHORT_CHUNK, _LONG_CHUNK, _WIDE_CHUNK = 8_192, 24_576, 131_072  # of an instance of one, by prompts and what decodes
_SLOTS = {16: (256, 0), 32: (128, 32)}  # of decoding ranks: the batch from which experts are placed by load, and copies
_LITERAL_CLIENTS, _MIDDLE_CLIENTS = 512, 16
_AZURE = {"max_batch": "256", "chunk_tokens": "131072", "poll_steps": "10"}
_TUNED = {"kv_cache": "fp8", "memory_utilisation": "0.9", "captured_tokens": "2048"}


def filled(row: Row, *, inferred: bool = False) -> Columns:
    """The row with what its recipe sets in its empty columns; parallelism and releases are put right."""
    if row.get("source") == "nvidia-gap":
        return {**row, **_empty(row, _generated(row) | (_inferred(row) if inferred else {}))}
    if (row.get("source") or "").startswith("TensorRT-LLM perf-overview"):
        return {**row, **_empty(row, {"in_process": "1"}), **_attention_apart(row)}
    if row.get("source") == "dstackai/benchmarks h100sxm5_vs_mi300x":
        eager = {"graph_batch": "1"} if row["system"] == "mi300x" else {}
        return {**row, **_empty(row, {"in_process": "1", "kv_cache": "bf16", **eager})}
    if row.get("source") == "Azure AI-benchmarking-guide" and row["backend"] == "vllm":
        return {**row, **_empty(row, _AZURE)}
    if row.get("source") != "inferencex":
        return dict(row)
    row = {**row, **_chosen_in_script(row)}
    clients, ranks = int(float(row["concurrency"])), _decode_ranks(row)
    engine = {"vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm}[row["backend"]]
    columns = {"length_low": LENGTH_LOW, **engine(row, clients, ranks)}
    if inferred and _literal_clients(row, clients):
        columns |= {"max_batch": str(_MIDDLE_CLIENTS), "requests": str(REQUESTS_PER_CLIENT * _MIDDLE_CLIENTS)}
    if _family(row).startswith("DeepSeek") and row.get("weights") == "nvfp4":
        columns["attention_output"] = "nvfp4"
    if _family(row).startswith("DeepSeek") and row["system"] == "b300_sxm" and row["mode"] == "agg":
        columns["requests"] = str(clients)
    if row["mode"] == "disagg" and "" < (row.get("measured") or "") < _SRT_SLURM and row["backend"] in _DYNAMO_ROUNDS:
        columns["requests"] = str(_DYNAMO_ROUNDS[row["backend"]] * clients)
    if _family(row).startswith("gpt-oss") and _blackwell(row):
        columns["expert_inputs"] = "fp8"
    return {**row, **_empty(row, columns), "backend_version": _release(row), **_parallelism(row)}


def load_alone(row: Row) -> Columns:
    """The row with its load as the recipe has it, and no setting but its own."""
    return {**row, **{name: value for name, value in filled(row).items() if name in LOAD}}


def main() -> int:
    """Write the filled table; 2 where it is not told where from and where to."""
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    if len(words) != 2:
        print("usage: recipe_columns.py TABLE.csv FILLED.csv [--inferred]", file=sys.stderr)
        return 2
    with Path(words[0]).open(newline="", encoding="utf-8") as file:
        rows = [filled(row, inferred="--inferred" in sys.argv) for row in csv.DictReader(file)]
    names = list(dict.fromkeys(name for row in rows for name in row))
    with Path(words[1]).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, restval="")
        writer.writeheader()
        writer.writerows(rows)
    return 0


def _empty(row: Row, columns: Columns) -> Columns:
    """Those of the columns that the row leaves empty."""
    return {name: value for name, value in columns.items() if not row.get(name)}


def _decode_ranks(row: Row) -> float:
    if row["mode"] == "disagg":
        dp = 1.0 if _parallelism(row).get("decode_dp") == "1" else float(row["decode_dp"] or 1)
        return float(row["decode_workers"]) * dp
    return float(row["dp"] or 1)


def _parallelism(row: Row) -> Columns:
    """Degrees in place of the placeholders of early recipes of SGLang, and of products of two degrees."""
    early = row["backend"] == "sglang" and (row.get("backend_version") or "").startswith("0.5.5")
    if _multiplied(row):
        ranks = row["moe_ep"]
        return {"tp": ranks, "moe_tp": "1", "moe_ep": ranks, "gpus": ranks, "batch_per_rank": row["concurrency"]}
    if row["backend"] == "vllm" and row["mode"] == "disagg" and row["system"] == "gb200" and _kimi(row):
        return _data_parallel(row, "prefill_") | (_data_parallel(row, "decode_") if _wide(row) else {})
    if not (early and row["mode"] == "disagg" and row["system"] == "gb200"):
        return {}
    columns: Columns = {}
    for prefix in ("prefill_", "decode_"):
        tp, dp, ep = (int(float(row[f"{prefix}{name}"] or 1)) for name in ("tp", "dp", "moe_ep"))
        if dp > 1 and ep == 1:
            degrees = (dp, 1, dp, 1) if dp <= GB200_NODE else (tp, dp, 1, dp * tp)
            names = (f"{prefix}{name}" for name in ("tp", "dp", "moe_tp", "moe_ep"))
            columns |= dict(zip(names, map(str, degrees), strict=True))
    return columns


def _chosen_in_script(row: Row) -> Columns:
    """Degrees that gptoss_fp4_*_trt_slurm.sh and dsr1_*_b200_trt_slurm.sh chose, as of 2 November 2025."""
    if row["backend"] != "trtllm" or row["mode"] != "agg" or not "" < (row.get("measured") or "") < _STATED_PARALLELISM:
        return {}
    clients, isl, osl, ranks = (int(float(row[name])) for name in ("concurrency", "isl", "osl", "gpus"))
    if _family(row).startswith("gpt-oss"):
        expert, attention = (clients >= 256,) * 2 if _blackwell(row) else (True, False)
    elif not (_family(row).startswith("DeepSeek") and _blackwell(row)):
        return {}
    elif row.get("weights") == "fp8_block":
        expert, attention = True, clients > (32 if isl == osl else 64)
    elif isl > osl:
        expert = attention = clients > 32
    else:
        expert, attention = clients > (32 if ranks == 4 else 8 if isl == osl else 16), clients >= 256
    if not expert:
        return {}
    tp, dp = (1, ranks) if attention else (ranks, 1)
    batch = repr(clients / dp)
    return {"tp": str(tp), "dp": str(dp), "moe_tp": "1", "moe_ep": str(ranks), "batch_per_rank": batch}


def _attention_apart(row: Row) -> Columns:
    """The tensor-parallel ranks of a mixture of experts in the overview of 1.0 as attention data parallel ones."""
    mixture = float(row.get("moe_tp") or 1) * float(row.get("moe_ep") or 1) > 1
    if not (mixture and row["source"].endswith(" v1.0")):
        return {}
    return {"tp": "1", "dp": row["tp"]}


def _data_parallel(row: Row, prefix: str) -> Columns:
    """The ranks of an instance as attention data parallel ones that share experts."""
    ranks = row[f"{prefix}moe_ep"]
    return {f"{prefix}tp": "1", f"{prefix}dp": ranks, f"{prefix}moe_tp": "1", f"{prefix}moe_ep": ranks}


def _wide(row: Row) -> bool:
    return float(row["decode_moe_ep"] or 1) > GB200_NODE


def _multiplied(row: Row) -> bool:
    """Whether the tensor parallel degree stated of gpt-oss is the product of both degrees, which are equal.

    Its recipes for TensorRT-LLM have expert parallelism over all ranks, or none, and no third way.
    """
    tp, moe_tp, ep = (float(row.get(name) or 1) for name in ("tp", "moe_tp", "moe_ep"))
    recipe = _family(row).startswith("gpt-oss") and row["backend"] == "trtllm" and row["mode"] == "agg"
    return recipe and moe_tp == ep and ep > 1.0 and tp == moe_tp * ep


def _generated(row: Row) -> Columns:
    """What AIConfigurator's rules and templates set for a deployment of one load."""
    isl = int(float(row["isl"]))
    budget, agg = isl + GENERATED_ROOM, row["mode"] == "agg"
    if row["backend"] == "sglang":
        mixed = agg and _numbers(row.get("backend_version") or "") >= MIXED_FROM
        chunk = str(min(budget // isl * isl, SGLANG_CHUNK))
        return {"chunk_tokens": chunk, **({"mixed_steps": "1"} if mixed else {})}
    cache = {"kv_cache": "fp8"} if row.get("weights") in ("fp8", "fp8_block", "nvfp4") else {}
    batch = ceil(float(row["concurrency"]) / float(row["dp"] or 1)) if agg else 0
    memory = {"free_memory_share": GENERATED_SHARE} if row["backend"] == "trtllm" else {}
    return {**cache, **memory, "chunk_tokens": str(budget + batch)}


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a release: 0.5.4.post3 is (0, 5, 4)."""
    return tuple(map(int, takewhile(str.isdecimal, version.split("."))))


def _inferred(row: Row) -> Columns:
    """What the times of NVIDIA's gap analysis tell of its runs."""
    isl, clients = int(float(row["isl"])), int(float(row["concurrency"]))
    if isl % 1000 != 0:
        return {}
    if row["backend"] == "vllm":
        return {"prefix_hits": repr(max(1.0 - GAP_PROMPTS / (REQUESTS_PER_CLIENT * clients), 0.0))}
    return {"staggered": "1"}


def _literal_clients(row: Row, clients: int) -> bool:
    """Whether the row's clients are the literal of gpt-oss on Hopper, beside a concurrency that nothing states."""
    hopper = row["backend"] == "vllm" and not _blackwell(row)
    return hopper and _family(row).startswith("gpt-oss") and clients == _LITERAL_CLIENTS


def _vllm(row: Row, clients: int, ranks: float) -> Columns:
    family, blackwell, chunk = _family(row), _blackwell(row), str(2 * int(float(row["isl"])))
    if family.startswith("MiniMax"):
        if not blackwell:
            h200 = row["system"] == "h200_sxm"
            limits = {"memory_utilisation": "0.95"} if h200 else {"memory_utilisation": "0.9", "max_batch": "256"}
            return {**limits, "chunk_tokens": "8192"}
        if row.get("weights") == "fp8_block" and (row.get("measured") or "") < _MINIMAX_TUNED:
            return {"memory_utilisation": "0.95", "chunk_tokens": "8192"}
        return {**_TUNED, "chunk_tokens": chunk}
    if _kimi(row):
        four_bit = row.get("weights") == "nvfp4"
        plain = {"memory_utilisation": "0.95", "chunk_tokens": "8192"}
        return {**_TUNED, "chunk_tokens": chunk} if four_bit else plain
    dense = family.startswith("Llama")
    columns = {"memory_utilisation": "0.9", "chunk_tokens": "8192", "async_scheduling": "1"}
    if blackwell or dense:
        columns["kv_cache"] = "fp8"
    if blackwell:
        columns["max_batch"] = "512"
    if not (dense or blackwell) and (row.get("measured") or _MARLIN) >= _MARLIN:
        columns["triton_experts"] = "0"
    if not dense or blackwell:
        columns["captured_tokens"] = "0" if dense else "2048"
    return columns


def _sglang(row: Row, clients: int, ranks: float) -> Columns:
    poll = "30" if clients / max(ranks, 1) >= 16 else "10"
    if row["mode"] == "disagg":
        return {"kv_cache": "fp8", "poll_steps": poll, "chunk_tokens": str(_prefill_chunk(row))}
    if _family(row).startswith("GLM-5") and row.get("weights") == "nvfp4":
        limits = {"memory_utilisation": "0.8", "max_batch": str(clients)}
        return {"kv_cache": "fp8", **limits, "chunk_tokens": "131072", "poll_steps": "1"}
    if _family(row).startswith("DeepSeek") and float(row["gpus"]) < 8 and row.get("weights") == "fp8_block":
        return {
            "kv_cache": "fp8",
            "memory_utilisation": "0.95",
            "max_batch": "32",
            "chunk_tokens": "8192",
            "poll_steps": "10",
        }
    if not _blackwell(row):
        return {"memory_utilisation": "0.82", "chunk_tokens": "32768"}
    four_bit = row.get("weights") == "nvfp4"
    return {
        "kv_cache": "fp8",
        "memory_utilisation": "0.85" if four_bit else "0.82",
        "max_batch": "256" if four_bit else "128",
        "chunk_tokens": "16384" if four_bit else "32768",
        "poll_steps": poll,
    }


def _prefill_chunk(row: Row) -> int:
    """Of an attention rank of SGLang's instances for prefill: `chunked-prefill-size` is of all of them together."""
    row = {**row, **_parallelism(row)}
    ranks = int(float(row["prefill_dp"] or 1))
    if row["system"] in ("b200_sxm", "b300_sxm"):
        return _BOARD_CHUNK // ranks
    if ranks > 1:
        return _RANK_CHUNK
    if int(float(row["isl"])) <= 1024:
        return _SHORT_CHUNK
    return _WIDE_CHUNK if float(row["decode_dp"] or 1) > 1 else _LONG_CHUNK


def _trtllm(row: Row, clients: int, ranks: float) -> Columns:
    family, isl, osl = _family(row), int(float(row["isl"])), int(float(row["osl"]))
    if row["mode"] == "disagg":
        batch, context = _decode_batch(row, clients, ranks), _context_tokens(row)
        limits = {"max_batch": str(batch)} if batch else {}
        return {"kv_cache": "fp8", **limits, **context, **_placed_by_load(row, batch)}
    balance = {"balance_steps": "60"} if float(row["dp"] or 1) > 1 else {}
    short = isl == 1024 and osl == 1024
    if family.startswith("Llama"):
        batched = short and float(row["tp"] or 1) < 8
        columns = {"kv_cache": "fp8", "max_batch": "1024", "chunk_tokens": "16384"}
        return columns | ({"hold_steps": "20"} if batched else {})
    if family.startswith("gpt-oss"):
        cache = {"kv_cache": "fp8"} if _blackwell(row) else {}
        return {**cache, "free_memory_share": "0.85", "max_batch": "512", "chunk_tokens": "20000", **balance}
    room = str(max((clients + isl + 127) // 64 * 64, 8192))
    share = {"b200_sxm": "0.8", "h200_sxm": "0.75"}.get(row["system"], "")
    columns = {"kv_cache": "fp8", "free_memory_share": share, "chunk_tokens": room, **balance}
    return columns | (_captured_whole(row, clients, short, room) if row["system"] == "b200_sxm" else {})


def _captured_whole(row: Row, clients: int, short: bool, room: str) -> Columns:
    """Of the later recipes for DeepSeek-R1 on B200: graphs of all steps, and prompts that wait to be batched."""
    day, lengths = row.get("measured") or _CAPTURED_NVFP4, (row["isl"], row["osl"])
    if row.get("weights") == "nvfp4":
        whole = short and float(row["gpus"]) == 8 and float(row["moe_ep"] or 1) == 8
        return {"captured_tokens": room} if whole and day >= _CAPTURED_NVFP4 else {}
    least, most = (128, 255) if lengths == ("1024", "8192") else (64, clients)
    if day < _CAPTURED_FP8 or not least <= clients <= most:
        return {}
    return {"captured_tokens": room, **({"hold_steps": "40"} if short else {})}


def _context_tokens(row: Row) -> Columns:
    """`max_num_tokens` of the instances for prompts of srt-slurm's recipes."""
    if (row.get("measured") or "") < _SRT_SLURM:
        return {}
    key = row["system"].removesuffix("_sxm"), row.get("weights") or ""
    short, long = _CONTEXT_TOKENS.get(key, (0, 0))
    tokens = short if float(row["isl"]) <= 1024 else long
    return {"chunk_tokens": str(tokens)} if tokens else {}


def _placed_by_load(row: Row, batch: int) -> Columns:
    """Redundant experts of the decoding instances whose recipe has a load balancer."""
    if not (row["system"].startswith("gb") and row.get("weights") == "nvfp4" and _family(row).startswith("DeepSeek")):
        return {}
    least, copies = _SLOTS.get(int(float(row["decode_moe_ep"] or 1)), (0, 0))
    placed = least and batch >= least and (row.get("measured") or "") >= _SRT_SLURM
    return {"decode_redundant_experts": str(copies)} if placed else {}


def _release(row: Row) -> str:
    """The engine's; empty where only the framework around it is named, or nothing tells."""
    version, day = row.get("backend_version") or "", row.get("measured") or ""
    if row["backend"] == "trtllm" and version.startswith("0."):
        return "1.1.0" if row["mode"] == "disagg" and version.startswith("0.5") else ""
    if version:
        return version
    if row["backend"] == "trtllm" and row["mode"] == "disagg":
        return "1.1.0" if "" < day < _DYNAMO_0_8 else ""
    return _FIRST_IMAGES.get(row["backend"], "") if "" < day < _SECOND_IMAGES else ""


def _decode_batch(row: Row, clients: int, ranks: float) -> int:
    """The largest decoding batch of a rank; 0 where the recipes set none that the load comes near."""
    share = clients / max(ranks, 1)
    if row["system"] == "b200_sxm" and row.get("weights") == "fp8_block":
        return 0
    limit = 1 << floor(log2(max(share, 1.0)))
    swept = row.get("weights") == "nvfp4" and float(row["decode_tp"] or 1) > 1 and share >= 1.5
    return max(limit, _SWEPT_BATCH.get((row["system"], int(float(row["isl"]))), 0)) if swept else limit


def _family(row: Row) -> str:
    return row.get("family") or ""


def _kimi(row: Row) -> bool:
    return _family(row).startswith("Kimi")


def _blackwell(row: Row) -> bool:
    return row["system"].startswith(BLACKWELL)


if __name__ == "__main__":
    sys.exit(main())

"""Generated tables of serving: deployments priced by `planner estimate`, and token costs by the formula of Step-3."""

import math
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from samples.tables import Noise, csv_text

Row = dict[str, str]
COLUMNS = (
    *("id", "source", "measured", "family", "model", "aic_model", "system", "backend", "backend_version", "precision"),
    *("gemm_quant", "moe_quant", "mode", "isl", "osl", "ttft_ms", "tpot_ms", "repaired", "concurrency", "gpus"),
    *("tp", "pp", "dp", "moe_tp", "moe_ep", "batch_per_rank"),
    *(
        f"{role}_{name}"
        for role in ("prefill", "decode")
        for name in ("workers", "tp", "pp", "dp", "moe_tp", "moe_ep", "batch_per_rank")
    ),
    *("weights", "output_tok_s_gpu", "saturated"),
)
MODELS = (  # family, model, format of weights
    ("Llama-3.1-8B", "meta-llama/Llama-3.1-8B-Instruct", "fp8"),
    ("Qwen3-32B", "Qwen/Qwen3-32B", "fp8"),
    ("gpt-oss-120b", "openai/gpt-oss-120b", "mxfp4"),
)
ENGINES = (("h100_sxm", "vllm", "0.12.0"), ("h200_sxm", "sglang", "0.5.8.post1"))
NEWER = (("b200_sxm", "trtllm", "1.2.0rc6.post1"),)
LAYOUTS, CLIENTS, LENGTHS = (1, 2, 4), (4, 16, 64, 128), (1024, 512)
CONTEXTS = {"8k": 8192.0, "32k": 32768.0}
COST_COLUMNS = (
    *("model", "context", "hardware", "part", "kv_bytes_per_tok", "attn_flop_per_tok", "linear_flop_per_tok"),
    *("ffn_flop_per_tok", "usd_per_gpu_hour", "peak_flops", "mem_bw_Bps", "stated_usd_per_1M_tok"),
)
COST_MODELS = {
    "DSv3": "deepseek-ai/DeepSeek-V3",
    "Qwen3_MoE": "Qwen/Qwen3-235B-A22B-FP8",
    "Step-3": "stepfun-ai/step3-fp8",
}
DEVICES = {"H800": 2.0, "H20": 1.0}  # USD an hour


def measured() -> str:
    """measured.csv: three models on two engines, some layouts and loads."""
    return csv_text(COLUMNS, _timed(_deployments(ENGINES, "sample"), stream=1))


def measured_more() -> str:
    """measured_more.csv: the models on a newer GPU."""
    return csv_text(COLUMNS, _timed(_deployments(NEWER, "newer"), stream=2))


def _deployments(engines: tuple[tuple[str, str, str], ...], name: str) -> Iterator[Row]:
    """Closed loops of every model, engine, layout and load, without times."""
    isl, osl = LENGTHS
    for (family, model, weights), (system, backend, version) in product(MODELS, engines):
        sparse = weights == "mxfp4"
        formats = ("fp4", "bfloat16", "w4a16_mxfp4") if sparse else ("fp8", "fp8", "fp8")
        for tp, clients in product(LAYOUTS, CLIENTS):
            row: dict[str, Any] = {
                "id": f"{name}_{family}_{system}_tp{tp}_c{clients}",
                **{"source": "generated", "family": family, "model": model, "aic_model": model, "system": system},
                **{"backend": backend, "backend_version": version, "mode": "agg", "isl": isl, "osl": osl},
                **dict(zip(("precision", "gemm_quant", "moe_quant"), formats, strict=True)),
                **{"concurrency": clients, "gpus": tp, "tp": tp, "pp": 1, "dp": 1, "moe_tp": tp, "moe_ep": 1},
                **{"batch_per_rank": clients, "weights": weights, "saturated": 0},
            }
            yield {column: str(row.get(column, "")) for column in COLUMNS}


def _timed(rows: Iterator[Row], stream: int) -> Iterator[Row]:
    """The rows that are priced, with times: the estimate by a drawn factor of the group and noise of the row."""
    from planner.estimate.case import Case
    from planner.estimate.evaluate import Estimate, evaluate
    from planner.estimate.measured import case_of_row

    known = list(rows)
    cases: list[Case] = [case_of_row(row) for row in known]
    noise = Noise(stream)
    for row, answer in zip(known, evaluate(cases, None), strict=True):
        if isinstance(answer, Estimate):
            group = "|".join(row[name] for name in ("family", "system", "backend"))
            ttft_s, tpot_s = answer.ttft_s * noise.factor(group), answer.tpot_s * noise.factor(group)
            yield {**row, **_times(row, ttft_s, tpot_s)}


def _times(row: Mapping[str, str], ttft_s: float, tpot_s: float) -> Row:
    """The columns of times; output by Little's law."""
    osl = int(row["osl"])
    output = int(row["concurrency"]) * osl / (ttft_s + tpot_s * (osl - 1)) / int(row["gpus"])
    return {"ttft_ms": f"{1e3 * ttft_s:.4f}", "tpot_ms": f"{1e3 * tpot_s:.4f}", "output_tok_s_gpu": f"{output:.3f}"}


def token_costs() -> str:
    """step3_cost_cases.csv: `step3_token_costs.token_demand` of three models on two GPUs at made prices."""
    from dataclasses import replace

    from step3_token_costs import Device, token_demand

    from planner.hardware.library import find_node
    from planner.models.library import find_model

    rows: list[dict[str, object]] = []
    noise = Noise(3)
    for (name, model), (context, tokens), (gpu, price) in product(
        COST_MODELS.items(), CONTEXTS.items(), DEVICES.items()
    ):
        arch, chip = find_model(model), find_node(gpu.lower()).accelerator
        arch = replace(arch, precisions=replace(arch.precisions, kv_cache="fp8"))
        token = token_demand(arch, tokens)
        device = Device(price, chip.peak("fp8" if gpu == "H800" else "bf16"), chip.memory_bandwidth_bytes_per_s)
        for part, usd in (("attn", device.attention_usd(token)), ("ffn", device.ffn_usd(token))):
            demands = (token.kv_bytes, token.attention_flop, token.linear_flop, token.ffn_flop)
            stated = math.exp(noise.draws.normal(0.0, 0.01)) * usd
            values = (name, context, gpu, part, *demands, price, device.flop_per_s, device.bytes_per_s, stated)
            rows.append(dict(zip(COST_COLUMNS, values, strict=True)))
    return csv_text(COST_COLUMNS, rows)

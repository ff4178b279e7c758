"""Attention and feed-forward apart, against Step-3's paper (arXiv:2507.19427): costs of a token, choices, throughput.

Cells and choices: ../shared/data/serving/step3_cost_cases.csv. Throughputs: Step-3 4,039 and DeepSeek-V3 2,324
tokens/s/GPU on H800, 50 ms a token, 4K context, fp8. They are predicted twice: with the calibration that planner ships
(engines as people run them), and with kernels as fast as their authors publish them: FlashMLA 3,000 GB/s, 660 TFLOPS,
DeepGEMM 1,550 TFLOPS (READMEs of deepseek-ai/FlashMLA and DeepGEMM), 39 of 50 GB/s for all-to-all between nodes
(deepseek-ai/DeepEP, EP128), starts of 1.5 us. The ideal machine stands beside as the trivial answer.
"""

import csv
import time
from dataclasses import replace
from pathlib import Path

from planner.costs.attention_ffn import Rates, TokenDemand, token_demand
from planner.costs.parameters import Efficiencies, load_calibration
from planner.costs.roofline import Roofline
from planner.hardware.cluster import Pool
from planner.hardware.library import find_node
from planner.kinds.serve.attention_ffn import Apart, Hall, Together, best_apart, best_together, weigh
from planner.models.architecture import Architecture
from planner.models.library import find_model

CELLS = Path(__file__).parent.parent.parent / "shared" / "data" / "serving" / "step3_cost_cases.csv"
MODELS = {
    "DSv3": "deepseek-ai/DeepSeek-V3",
    "Kimi_K2": "moonshotai/Kimi-K2-Instruct",
    "Qwen3_MoE": "Qwen/Qwen3-235B-A22B-FP8",
    "Qwen3_32B": "Qwen/Qwen3-32B",
    "Step-3": "stepfun-ai/step3-fp8",
}
PARTS = ("kv_bytes", "attn_flop", "linear_flop", "ffn_flop")
START_S = 1.5e-6
PUBLISHED = Efficiencies(
    gemm_flop=1550 / 1979, gemm_flop_quantised=1550 / 1979, gemm_bandwidth=3.0 / 3.35, gemm_start_s=START_S,
    attention_flop=660 / 989.5, attention_bandwidth=3.0 / 3.35, attention_start_s=START_S,
    experts_flop=1550 / 1979, experts_bandwidth=3.0 / 3.35, experts_start_s=START_S,
    elementwise_bandwidth=3.0 / 3.35, elementwise_start_s=START_S,
    fabric_bandwidth=39 / 50, collective_start_s=START_S,
)  # fmt: skip
STATED = {"Step-3": 4039.0, "DSv3": 2324.0}
CONTEXT, TPOT_S, WORKSPACE_BYTES = 4096.0, 0.05, 2.5e9


def fp8(name: str) -> Architecture:
    """A model with an fp8 cache."""
    arch = find_model(MODELS[name])
    return replace(arch, precisions=replace(arch.precisions, kv_cache="fp8"))


def cells() -> None:
    """Stated costs against the formula on the stated demands, and demands against those of the architectures."""
    rows = list(csv.DictReader(CELLS.open(newline="", encoding="utf-8")))
    errors, costs = [], {}
    for row in rows:
        token = TokenDemand(*(float(row[f"{part}_per_tok"]) for part in PARTS))
        rates = Rates(float(row["usd_per_gpu_hour"]), float(row["peak_flops"]), float(row["mem_bw_Bps"]))
        usd = rates.attention_usd(token) if row["part"] == "attn" else rates.ffn_usd(token)
        errors.append(abs(usd - float(row["stated_usd_per_1M_tok"])))
        costs[row["model"], row["context"], row["part"], row["hardware"]] = usd
        if row["model"] in MODELS and (row["part"], row["hardware"]) == ("attn", "H800"):
            own = token_demand(fp8(row["model"]), 1024.0 * float(row["context"][:-1]))
            pairs = zip(
                (own.kv_bytes, own.attention_flop, own.linear_flop, own.ffn_flop),
                (token.kv_bytes, token.attention_flop, token.linear_flop, token.ffn_flop),
                strict=True,
            )
            ratios = " ".join(f"{ours / theirs:.3f}" for ours, theirs in pairs)
            print(f"  {row['model']:10} {row['context']:4} ours over stated (cache, attention, linear, ffn): {ratios}")
    right = sum(error <= 0.0012 for error in errors)
    print(f"{len(errors)} cells: largest error {max(errors):.4f} USD per Mtok, {right} within 0.0012")
    choices(costs)


def choices(costs: dict[tuple[str, str, str, str], float]) -> None:
    """The cheapest device of each side, and of both on one kind of device."""
    hardware = sorted({key[3] for key in costs})
    for model in ("Step-3", "DSv3", "Qwen3_MoE"):
        for context in ("8k", "32k"):
            attention = {name: costs[model, context, "attn", name] for name in hardware}
            ffn = {name: costs[model, "8k", "ffn", name] for name in hardware}
            one, other = min(attention, key=attention.__getitem__), min(ffn, key=ffn.__getitem__)
            alike = min(hardware, key=lambda name: attention[name] + ffn[name])
            print(
                f"  {model:10} {context:4} attention {one}, feed-forward {other}: {attention[one] + ffn[other]:.3f} "
                f"USD per Mtok (all on {alike}: {attention[alike] + ffn[alike]:.3f})"
            )


def hall(model: str, known: Efficiencies) -> Hall:
    """128 H800 at 4K."""
    node = find_node("h800")
    pool = Pool("h800", node, 16)
    pricer = Roofline(node.accelerator, pool.topology(), known)
    memory = 0.9 * node.accelerator.memory_bytes - WORKSPACE_BYTES
    network = node.nic_bandwidth_bytes_per_s * known.fabric_bandwidth
    hop_s = node.nic_latency_s + known.collective_start_s
    return Hall(fp8(model), pool, pricer, CONTEXT, TPOT_S, memory, network, hop_s)


def throughput() -> None:
    """Tokens a second and GPU: the best of both ways, and those that were published."""
    sources = {
        "shipped calibration": load_calibration().efficiencies,
        "published kernels": PUBLISHED,
        "ideal machine (trivial)": load_calibration("none").efficiencies,
    }
    for label, known in sources.items():
        print(f"{label}, tokens/s/GPU at {1e3 * TPOT_S:.0f} ms and {CONTEXT:.0f} tokens:")
        for model in ("Step-3", "DSv3", "Qwen3_MoE", "Kimi_K2"):
            begin = time.process_time()
            verdict = weigh(hall(model, known))
            print(f"  {model:10} {verdict.words} ({time.process_time() - begin:.1f} CPU-s)")
        report("Step-3", best_apart(hall("Step-3", known), 16, 16))
        report("DSv3", best_together(hall("DSv3", known), (1,)))


def report(model: str, design: Apart | Together | None) -> None:
    """A design like the published one: 16 to 16 GPUs; both together, exchanges not hidden."""
    if design is not None:
        error = design.tokens_per_s_per_gpu / STATED[model] - 1.0
        print(f"  published as {STATED[model]:.0f}: {model} {design.tokens_per_s_per_gpu:.0f} ({error:+.0%})", end=", ")
        print(design.name)


def main() -> None:
    """Prints all figures."""
    if not CELLS.exists():
        raise SystemExit(f"needs {CELLS}")
    cells()
    throughput()


if __name__ == "__main__":
    main()

"""Attention and feed-forward apart, against Step-3's paper (arXiv:2507.19427): costs of a token, choices, throughput.

Cells and choices: ../shared/data/serving/step3_cost_cases.csv. Throughputs: those of the paper's table 8 that are
Step-3's own, and DeepSeek-V3's from its profile of decoding (deepseek-ai/profile-data says how it ran: under routing
that loads all experts alike). How Step-3's experts were loaded is not published: they are placed by load, with the
copies that suit best, and priced as loaded alike and as they are numbered besides. Each is
predicted for the deployment that was measured, with four sets of costs:

- the calibration that planner ships (engines as people run them);
- kernels as their authors measured them at the shapes of decoding, on H800: products by DeepGEMM's table, three numbers
  fitted to its rows; attention by the slopes of Step-3's table 9; 39 of 50 GB/s between nodes (DeepEP, EP128); what
  nobody publishes (norms, quantising, starts) by the shipped calibration; no host time;
- kernels at the peaks that their READMEs name;
- the ideal machine, the trivial answer.

None of the throughputs has a part in any of the four. Latencies of attention layers (table 9) are predicted besides.
"""

import csv
import itertools
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from inputs import SHARED, required
from step3_token_costs import Device, TokenDemand, token_demand

from planner.arrays import Floats
from planner.costs.operators.work import Shards, Work
from planner.costs.rates.calibration import Efficiencies, load_calibration
from planner.costs.rates.engine_overheads import EngineOverheads
from planner.costs.rates.roofline import Roofline
from planner.costs.serving.attention_ffn import Port, Units, attention_side, unit_step
from planner.documents.read import parse_document
from planner.hardware.cluster import Pool
from planner.hardware.library import find_node
from planner.kinds.serve.options import ServeOptions
from planner.kinds.serve.steady.attention_ffn import best_unsplit, unsplit_step_s
from planner.kinds.serve.steady.points import DECODE_BATCHES, PoolCosts, Tally
from planner.kinds.serve.steady.search import list_candidates, prepare
from planner.kinds.serve.steady.steps.formulas import Costs
from planner.kinds.serve.steady.units import Sides, UnitMemory, units_of
from planner.load.problems import resolve_document
from planner.models.architecture import Architecture
from planner.models.library import find_model
from planner.plan.records import BY_NUMBER

CELLS = SHARED / "serving" / "step3_cost_cases.csv"
MODELS = {
    "DSv3": "deepseek-ai/DeepSeek-V3",
    "Kimi_K2": "moonshotai/Kimi-K2-Instruct",
    "Qwen3_MoE": "Qwen/Qwen3-235B-A22B-FP8",
    "Qwen3_32B": "Qwen/Qwen3-32B",
    "Step-3": "stepfun-ai/step3-fp8",
}
PARTS = ("kv_bytes", "attn_flop", "linear_flop", "ffn_flop")
NODE = find_node("h800")
COPIES = (0, 16)  # none, or one a device, of experts that are placed by load
OPTIONS = ServeOptions(redundant_experts=("off", 0, 16, 64))
CONTEXT, TPOT_S, WORKSPACE_BYTES = 4096.0, 0.05, 2.5e9

# README of github.com/deepseek-ai/DeepGEMM at commit a6d97a1 (2025-02-25), fp8 on H800: groups, m a group, n, k and
# TFLOPS of products of one group, and of grouped ones of experts.
PRODUCTS = (
    (1, 64, 2112, 7168, 206), (1, 64, 24576, 1536, 289), (1, 64, 32768, 512, 219), (1, 64, 7168, 16384, 336),
    (1, 64, 4096, 7168, 287), (1, 64, 7168, 2048, 295), (1, 128, 2112, 7168, 352), (1, 128, 24576, 1536, 535),
    (1, 128, 32768, 512, 358), (1, 128, 7168, 16384, 645), (1, 128, 4096, 7168, 533), (1, 128, 7168, 2048, 510),
    (1, 4096, 2112, 7168, 1058), (1, 4096, 24576, 1536, 990), (1, 4096, 32768, 512, 590), (1, 4096, 7168, 16384, 1358),
    (1, 4096, 4096, 7168, 1304), (1, 4096, 7168, 2048, 1025),
)  # fmt: skip
GROUPED = (
    (4, 8192, 4096, 7168, 1297), (4, 8192, 7168, 2048, 1099), (8, 4096, 4096, 7168, 1288), (8, 4096, 7168, 2048, 1093),
    (1, 1024, 4096, 7168, 1233), (1, 1024, 7168, 2048, 925), (2, 512, 4096, 7168, 1040), (2, 512, 7168, 2048, 916),
    (4, 256, 4096, 7168, 932), (4, 256, 7168, 2048, 815),
)  # fmt: skip
# Table 9: microseconds of an attention layer with its products at 8K and 32K, bf16 cache, 64 sequences a GPU of H800.
LAYER_US = {"Step-3": (281.0, 791.0), "DSv3": (372.0, 1125.0)}
LAYER_SEQUENCES, LAYER_CONTEXTS = 64.0, (8192.0, 32768.0)


@dataclass(frozen=True, slots=True)
class Case:
    """A deployment with its measured throughput; attention on the one, feed-forward on the others, 0: on the same."""

    name: str
    model: str
    kv_cache: str
    attention_gpus: int
    ffn_gpus: int
    sequences: int  # of an attention rank
    micro_batches: int
    context: float
    tokens_per_s_per_gpu: float
    even: bool = False  # routing was made to load all experts alike
    copies: int | None = None  # of experts of a layer on the feed-forward side; None: as suits best


CASES = (
    Case("2A2F, 4K, fp8 attention", "Step-3", "fp8", 16, 16, 384, 3, 4096.0, 4039.0),
    Case("3A2F, 4K, bf16 attention", "Step-3", "bf16", 24, 16, 252, 3, 4096.0, 3321.0),
    Case("4A2F, 8K, fp8 attention", "Step-3", "fp8", 32, 16, 192, 3, 8192.0, 2643.0),
    Case("EP128, 4K, two batches of 64", "DSv3", "bf16", 128, 0, 128, 2, 4096.0, 2324.0, even=True),
    Case("the same in one batch of 128", "DSv3", "bf16", 128, 0, 128, 1, 4096.0, 2324.0, even=True),
)


def with_cache(name: str, kv_cache: str) -> Architecture:
    """A model with its cache in a format."""
    arch = find_model(MODELS[name])
    return replace(arch, precisions=replace(arch.precisions, kv_cache=kv_cache))


def cells(table: Path) -> None:
    """Stated costs against the formula on the stated demands, and demands against those of the architectures."""
    rows = list(csv.DictReader(table.open(newline="", encoding="utf-8")))
    errors, costs = [], {}
    for row in rows:
        token = TokenDemand(*(float(row[f"{part}_per_tok"]) for part in PARTS))
        device = Device(float(row["usd_per_gpu_hour"]), float(row["peak_flops"]), float(row["mem_bw_Bps"]))
        usd = device.attention_usd(token) if row["part"] == "attn" else device.ffn_usd(token)
        errors.append(abs(usd - float(row["stated_usd_per_1M_tok"])))
        costs[row["model"], row["context"], row["part"], row["hardware"]] = usd
        if row["model"] in MODELS and (row["part"], row["hardware"]) == ("attn", "H800"):
            own = token_demand(with_cache(row["model"], "fp8"), 1024.0 * float(row["context"][:-1]))
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
            first, second = min(attention, key=attention.__getitem__), min(ffn, key=ffn.__getitem__)
            alike = min(hardware, key=lambda name: attention[name] + ffn[name])
            print(
                f"  {model:10} {context:4} attention {first}, feed-forward {second}: "
                f"{attention[first] + ffn[second]:.3f} USD per Mtok "
                f"(all on {alike}: {attention[alike] + ffn[alike]:.3f})"
            )


def fitted(rows: tuple[tuple[int, int, int, int, int], ...]) -> tuple[float, float, float]:
    """Shares of the peak rates and the start [s] of max(flop / rate, bytes / bandwidth) + start, by least squares."""
    from scipy.optimize import least_squares

    groups, m, n, k, tflops = (np.array(column, dtype=np.float64) for column in zip(*rows, strict=True))
    flop, size = 2.0 * groups * m * n * k, groups * (m * k + n * k + 2.0 * m * n)
    measured_s = flop / tflops / 1e12
    peak, bandwidth = NODE.accelerator.peak("fp8"), NODE.accelerator.memory_bandwidth_bytes_per_s

    def errors(x: Floats) -> Floats:
        seconds = np.maximum(flop / (peak * x[0]), size / (bandwidth * x[1])) + 1e-6 * x[2]
        return np.asarray(np.log(seconds / measured_s))

    fit = least_squares(errors, [0.7, 0.8, 2.0], bounds=([0.1, 0.1, 0.0], [1.0, 1.0, 20.0]))
    spread = float(np.sqrt(np.mean(np.square(fit.fun))))
    flops, moved, start_us = (float(value) for value in fit.x)
    print(
        f"  {len(rows)} rows: {flops:.3f} of the flops, {moved:.3f} of bandwidth, {start_us:.2f} us, rms {spread:.1%}"
    )
    return flops, moved, 1e-6 * start_us


def at_shapes() -> Efficiencies:
    """Kernels as their authors measured them at the shapes of decoding."""
    shipped = load_calibration().efficiencies
    print("products by DeepGEMM's table, alone and grouped:")
    flop, bandwidth, start_s = fitted(PRODUCTS)
    experts_flop, experts_bandwidth, experts_start_s = fitted(GROUPED)
    cached = LAYER_SEQUENCES * (LAYER_CONTEXTS[1] - LAYER_CONTEXTS[0])
    more_s = {name: 1e-6 * (late - early) for name, (early, late) in LAYER_US.items()}
    attention_bandwidth = cached * 2 * 256 * 2.0 / more_s["Step-3"]  # a key and a value of 256, bf16
    attention_flop = cached * 128 * 2.0 * (576 + 512) / more_s["DSv3"]  # 128 heads on a latent of 512 and 64
    print(
        f"attention by table 9: {attention_bandwidth / 1e12:.2f} TB/s (MFA), {attention_flop / 1e12:.0f} TFLOPS (MLA)"
    )
    accelerator = NODE.accelerator
    return replace(
        shipped,
        gemm_flop_quantised=flop, gemm_bandwidth=bandwidth, gemm_start_s=start_s,
        experts_flop=experts_flop, experts_flop_block=experts_flop, experts_flop_grouped=experts_flop,
        experts_bandwidth=experts_bandwidth, experts_start_s=experts_start_s, experts_quantise_s=0.0,
        experts_width=0.0, routing_concentration=np.inf,
        attention_bandwidth=attention_bandwidth / accelerator.memory_bandwidth_bytes_per_s,
        attention_flop=attention_flop / accelerator.peak("bf16"),
        quantise_block_s=shipped.elementwise_start_s, quantise_fp8_s=shipped.elementwise_start_s,
        fabric_bandwidth=39 / 50, collective_bandwidth=160 / 200,
    )  # fmt: skip


def at_peaks() -> Efficiencies:
    """Kernels at the peaks that their READMEs name: FlashMLA 3,000 GB/s, 660 TFLOPS, DeepGEMM 1,550 TFLOPS."""
    flop, bandwidth, start_s = 1550 / 1979, 3.0 / 3.35, 1.5e-6
    return Efficiencies(
        gemm_flop=flop, gemm_flop_quantised=flop, gemm_bandwidth=bandwidth, gemm_start_s=start_s,
        attention_flop=660 / 989.5, attention_bandwidth=bandwidth, attention_start_s=start_s,
        experts_flop=flop, experts_bandwidth=bandwidth, experts_start_s=start_s,
        elementwise_bandwidth=bandwidth, elementwise_start_s=start_s,
        fabric_bandwidth=39 / 50, collective_start_s=start_s,
    )  # fmt: skip


def pool_costs_of(arch: Architecture, known: Efficiencies, engine: EngineOverheads) -> PoolCosts:
    """A model on 128 H800."""
    pool = Pool("h800", NODE, 16)
    costs = Costs(arch, Roofline(NODE.accelerator, pool.topology(), known), engine)
    return PoolCosts(0, pool, costs, 0.9 * NODE.accelerator.memory_bytes - WORKSPACE_BYTES, Port.of(pool, known))


def predicted(case: Case, known: Efficiencies, engine: EngineOverheads) -> tuple[float, str]:
    """Tokens/s/GPU of the deployment of a case; how the feed-forward side splits its layers is not published."""
    if case.even:
        known = replace(known, routing_concentration=np.inf)
    costs = pool_costs_of(with_cache(case.model, case.kv_cache), known, engine).costs
    if not case.ffn_gpus:
        shards = Shards.of(np.ones(1), 1, case.attention_gpus, 1, case.attention_gpus)
        batch = np.array([float(case.sequences)])
        step_s = float(unsplit_step_s(costs, shards, batch, case.context, case.micro_batches)[0])
        return case.sequences / step_s, f"{1e3 * step_s:.1f} ms a step"
    steps = []
    for tp, copies in itertools.product((1, 2, 4, 8), COPIES if case.copies is None else (case.copies,)):
        degrees = (1, case.attention_gpus, tp, case.ffn_gpus // tp)
        units = Units.of(*degrees, case.micro_batches, NODE.scale_up_size, copies)
        work = Work.decode(np.array([case.sequences / case.micro_batches]), np.array([case.context]))
        step = unit_step(costs.arch, costs.pricer, costs.engine, units, work)
        steps.append(
            (
                float(step.seconds[0]),
                tp,
                copies,
                [1e6 * float(stage_s[0]) / costs.arch.num_layers for stage_s in step.stages],
            )
        )
    step_s, tp, copies, stages = min(steps)
    rate = case.sequences * case.attention_gpus / (case.attention_gpus + case.ffn_gpus) / step_s
    named = zip(("attention", "way", "feed-forward", "way back", "host"), stages, strict=True)
    shown = ", ".join(f"{name} {microseconds:.0f}" for name, microseconds in named)
    return rate, f"{1e3 * step_s:.1f} ms a step, ffn tp{tp}, {copies} copies; us a layer: {shown}"


def layers(known: Efficiencies) -> str:
    """Attention layers of table 9, predicted over measured."""
    words = []
    for model, measured in LAYER_US.items():
        costs = pool_costs_of(with_cache(model, "bf16"), known, EngineOverheads()).costs
        for context, layer_us in zip(LAYER_CONTEXTS, measured, strict=True):
            work = Work.decode(np.array([LAYER_SEQUENCES]), np.array([context]))
            parts = attention_side(costs.arch, costs.pricer, Shards.of(1), work).by_operator
            rest = ("embedding", "logits", "sampling", "router", "router_top_k", "norm", "logits_all_gather")
            own_us = (
                1e6 * sum(float(each[0]) for name, each in parts.items() if name not in rest) / costs.arch.num_layers
            )
            words.append(f"{model} {context / 1024:.0f}K {own_us / layer_us:.2f}")
    return ", ".join(words)


def best_unit(pool_costs: PoolCosts, context: float) -> tuple[float, str]:
    """The best unit of the search within the limit, in tokens/s/GPU."""
    batches = np.array(DECODE_BATCHES, dtype=np.float64)
    best, words = 0.0, "none keeps the limit"
    sides = Sides(pool_costs, pool_costs)
    for unit in units_of(sides, OPTIONS):
        units = sides.units(unit.attention, unit.ffn, unit.micro_batches, len(batches))
        step_s = sides.tpot_s(units, batches, context)
        fits = UnitMemory.of(sides, units, batches, [context]).fits[0] & (step_s <= TPOT_S)
        gpus = unit.attention.devices + unit.ffn.devices
        rates = np.where(fits, batches * unit.attention.dp / gpus / step_s, 0.0)
        fastest = int(np.argmax(rates))
        if rates[fastest] > best:
            best = float(rates[fastest])
            words = f"{unit.attention.devices} : {unit.ffn.devices}, {unit.micro_batches} micro-batches, "
            words += f"{batches[fastest]:.0f} sequences a rank"
    return best, words


def throughput() -> None:
    """Tokens a second and GPU: deployments that were measured, and what the search would choose."""
    shipped, ideal, none = load_calibration(), load_calibration("none").efficiencies, EngineOverheads()
    sources = {
        "shipped calibration": (shipped.efficiencies, shipped.engine("sglang")),
        "kernels as published, at shapes": (at_shapes(), none),
        "kernels as published, at peaks": (at_peaks(), none),
        "ideal machine (trivial)": (ideal, none),
    }
    for label, (known, engine) in sources.items():
        print(f"{label}: attention layers over measured: {layers(known)}")
        for case in CASES:
            rate, words = predicted(case, known, engine)
            print(f"  {case.model:6} {case.name:28} measured {case.tokens_per_s_per_gpu:.0f}: {rate:.0f}", end="")
            print(f" ({rate / case.tokens_per_s_per_gpu - 1.0:+.0%}), {words}")
            if case.ffn_gpus:
                even, numbered = (
                    predicted(replace(case, even=even, copies=BY_NUMBER), known, engine)[0] for even in (True, False)
                )
                print(f"         experts loaded alike: {even:.0f}, as numbered: {numbered:.0f}")
    for label, (known, engine) in list(sources.items())[:2]:
        print(f"best within {1e3 * TPOT_S:.0f} ms at {CONTEXT:.0f} tokens on at most 128 H800, {label}:")
        for model in ("Step-3", "DSv3", "Qwen3_MoE"):
            begin = time.process_time()
            pool_costs = pool_costs_of(with_cache(model, "fp8"), known, engine)
            apart, words = best_unit(pool_costs, CONTEXT)
            hidden, shown = (
                best_unsplit(pool_costs, CONTEXT, TPOT_S, CONTEXT, (parts,), OPTIONS.searched_copies)
                for parts in (2, 1)
            )
            others = [f"{0 if unsplit is None else unsplit.tokens_per_s_per_gpu:.0f}" for unsplit in (shown, hidden)]
            print(
                f"  {model:10} apart {apart:.0f} on {words}; together {others[0]}, exchanges hidden {others[1]}", end=""
            )
            print(f" ({time.process_time() - begin:.1f} CPU-s)")


def hardware() -> None:
    """USD of decoding a million tokens by the hardware of either side, at the paper's prices, on ideal machines."""
    print("USD per Mtok of decoding in 50 ms on ideal machines, at most 64 of each; the paper's formula has no weights")
    print("and caches to hold, no batch to fill and no network:")
    for model in ("Step-3", "DSv3", "Qwen3_MoE"):
        for context in (8192, 32768):
            best: dict[str, float] = {}
            for name, usd in unit_costs(model, context):
                best[name] = min(usd, best.get(name, usd))
            shown = ", ".join(f"{name} {usd:.3f}" for name, usd in sorted(best.items(), key=lambda pair: pair[1]))
            print(f"  {model:10} {context // 1024:2}K  attention + feed-forward: {shown}")


def unit_costs(model: str, context: int) -> Iterator[tuple[str, float]]:
    """Hardware of both sides of each unit that the search keeps, and what a million tokens cost on it."""
    output = 1024
    pools = [{"gpu": "h800", "nodes": 8, "price": "2USD/h"}, {"gpu": "h20", "nodes": 8, "price": "0.8USD/h"}]
    workload = {"name": "w", "input_tokens": context - output // 2, "output_tokens": output, "slo": {"tpot": "50ms"}}
    problem = {
        "schema": "planner.problem/1",
        "kind": "serve",
        "models": {"m": {"name": MODELS[model], "kv_cache": "fp8"}},
        "cluster": {"pools": pools},
        "costs": {"calibration": "none"},
        "workloads": [workload],
        "objective": {"maximize": "tokens_per_s_per_gpu"},
        "options": {"modes": ["attention-ffn"], "micro_batches": [3]},
    }
    setting = prepare(resolve_document(parse_document(json.dumps(problem), "problem.json"), Path()))
    names = [pool.name for pool in setting.resolved.pools]
    for candidate in list_candidates(setting, setting.targets, Tally()):
        capacity = candidate.capacities[0]
        if candidate.ffn is not None and capacity is not None and capacity.rate_per_s > 0.0:
            usd = sum(
                n * (setting.resolved.pools[pool].usd_per_gpu_hour or 0.0) for pool, n in candidate.devices_of_pool
            )
            yield (
                f"{names[candidate.pool]} + {candidate.ffn.pool_costs.pool.name}",
                usd / 3600.0 / (capacity.rate_per_s * output) * 1e6,
            )


def main() -> None:
    """Prints all figures."""
    cells(required(CELLS))
    hardware()
    throughput()


if __name__ == "__main__":
    main()

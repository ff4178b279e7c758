"""Generated RL problems, measured steps, pairs and fused pipelines, in the layouts of ../shared/data/rl.

Curves are a roofline of the data sheet at `SHARE` of its peaks; "optimum" is what the planner's own search proves, and
what stands in the column of published makespans is one pipeline after the other: neither judges anything.
"""

import json
from functools import cache
from typing import Any

import numpy as np

from samples.tables import SEED, Noise, csv_text

SHARE = 0.4  # of peak arithmetic and bandwidth that steps reach
GPUS = {  # flop/s, bytes/s, GB, USD an hour
    "h800": (990e12, 3.35e12, 80, 2.85),
    "h20": (148e12, 4.0e12, 96, 1.0),
}
GENERATION_TP, TRAINING = (1, 2, 4, 8), ((1, 1), (2, 1), (4, 1), (8, 1), (2, 2), (4, 2))
BOTH, SYNCS = ("colocated", "disaggregated"), ("sync", "stream_sync", "one_step_async")
COLUMNS = (
    *("id", "group", "split", "source", "framework", "version", "model", "params_b", "active_params_b", "hw"),
    *("gpus_total", "gpus_gen", "gpus_train", "placement", "sync_mode", "staleness", "algo", "dataset", "engine"),
    *("gen_tp", "gen_pp", "gen_dp", "train_tp", "train_cp", "train_ep", "train_pp", "train_dp", "prompts_per_step"),
    *("samples_per_prompt", "global_samples", "train_gbs", "max_seq_len", "mean_seq_len", "precision", "step_time_s"),
    *("gen_time_s", "exposed_gen_s", "logprob_s", "ref_s", "train_time_s", "tokens_s_gpu", "recipe", "notes"),
)
PAIR_COLUMNS = ("sync_id", "async_id", "framework", "model", "hw", "per_gpu_speedup")
FUSED_COLUMNS = (
    *("exp", "pp0", "pp1", "mb0", "mb1", "fwd0", "fwd1", "mem0", "mem1", "serial_1f1b_sum", "lower_bound"),
    *("greedy", "published_SA", "SA_peak_mem"),
)
PHASES = (0.55, 0.1, 0.3)  # of a colocated step: generation, log-probabilities, training


def p1() -> str:
    """A small model on one pool, synchronous."""
    return _problem("p1", 7.6, {"h800": 2}, samples=256, mean=1500, longest=8192, syncs=SYNCS[:2], stream=41)


def p3() -> str:
    """A larger model on one pool, long tail, any synchrony."""
    return _problem("p3", 32.8, {"h800": 4}, samples=128, mean=3500, longest=20480, syncs=SYNCS, stream=42)


def p5() -> str:
    """A small model on two pools."""
    pools = {"h800": 1, "h20": 2}
    return _problem("p5", 7.6, pools, samples=256, mean=2500, longest=16384, syncs=(SYNCS[0], SYNCS[2]), stream=43)


def _problem(
    name: str,
    params_b: float,
    nodes: dict[str, int],
    *,
    samples: int,
    mean: float,
    longest: int,
    syncs: tuple[str, ...],
    stream: int,
) -> str:
    draws = np.random.default_rng((SEED, stream))
    lengths = [np.clip(draws.lognormal(np.log(mean), 0.9, samples), 8, longest).astype(int).tolist() for _ in range(2)]
    pools = [
        {"name": pool, "nodes": count, "gpus_per_node": 8, "mem_gb": GPUS[pool][2], "cost_per_gpu_hour": GPUS[pool][3]}
        for pool, count in nodes.items()
    ]
    document = {
        **{"name": name, "description": "generated sample", "stage": "full", "objective": "iteration_time"},
        **{"dispatch": "fifo", "cluster": {"pools": pools}},
        "cost": {
            "gen": {pool: _generation(pool, params_b) for pool in nodes},
            "train": {pool: _training(pool, params_b) for pool in nodes},
            "wsync": {"base_s": 1.0, "model_gb": 2.0 * params_b, "intra_gbs": 25.0, "cross_gbs": 5.0},
            "switch": {"base_s": 4.0, "offload_gbs": 20.0},
        },
        "workload": {
            **{"samples": samples, "prompt_len": 300, "minibatches": 4},
            "batches": [{"output_len": output} for output in lengths],
        },
        "allowed": {"placement": list(BOTH), "sync": list(syncs)},
    }
    return json.dumps(document) + "\n"


def _generation(pool: str, params_b: float) -> dict[str, dict[str, float]]:
    """Decode curves by tensor-parallel degree: weights, arithmetic of a sequence, and bytes of a context token."""
    flop_per_s, bytes_per_s, memory_gb, _ = GPUS[pool]
    kv_bytes = 8e3 * params_b
    curves = {}
    for tp in GENERATION_TP:
        free_bytes = 0.85e9 * memory_gb * tp - 2e9 * params_b
        if free_bytes > 0.2e9 * memory_gb * tp:
            curves[str(tp)] = {
                "alpha": 2e9 * params_b / (SHARE * tp * bytes_per_s) + 1e-3,
                "beta": 2e9 * params_b / (SHARE * tp * flop_per_s) + 1e-6,
                "gamma": kv_bytes / (SHARE * tp * bytes_per_s),
                "prefill_tok_s": round(SHARE * tp * flop_per_s / (2e9 * params_b)),
                "max_running": 256,
                "kv_tokens": int(free_bytes / kv_bytes),
            }
    return curves


def _training(pool: str, params_b: float) -> dict[str, Any]:
    rate = SHARE * GPUS[pool][0] / (6e9 * params_b)
    curves = [
        {"tp": tp, "pp": pp, "train_tok_s": rate * tp**0.9 * pp, "fwd_tok_s": 3.0 * rate * tp**0.9 * pp}
        for tp, pp in TRAINING
    ]
    static_gb = 6.0 * params_b
    held = {"static_gb": static_gb, "opt_gb": 2.0 * static_gb, "act_gb": 12.0, "mem_util": 0.92}
    return {"curves": curves, **held, "micro_tokens": 16384, "opt_fixed_s": 0.3}


def optimum() -> str:
    """optimum.json: what the search proves of every problem."""
    from planner.documents.read import parse_document
    from planner.interchange.rl_problem import read_problem
    from planner.rl.search.search import solve

    texts = {"p1_7b_32h800_sync": p1(), "p3_32b_64h800_async_longtail": p3(), "p5_7b_h800_h20_time": p5()}
    solved = {name: solve(read_problem(parse_document(text, name))) for name, text in texts.items()}
    return json.dumps({name: {"objective": result.objective} for name, result in solved.items()}, indent=1) + "\n"


@cache
def _steps() -> tuple[dict[str, Any], ...]:
    """Colocated steps by their phases, and steps apart as `planner.rl.measured_step` predicts them, with noise."""
    noise = Noise(44)
    return (*_fully_asynchronous(noise), *_one_step(noise))


def _fully_asynchronous(noise: Noise) -> list[dict[str, Any]]:
    from planner.rl.measured_step import CALIBRATED, PhaseTimes, PoolSplit, predict_step_s

    rows = []
    for number, gpus in enumerate((32, 64, 128)):
        group, step_s = f"verl-sample-{gpus}", 25600.0 / gpus * noise.factor("verl")
        phases = dict(zip(("gen_time_s", "logprob_s", "train_time_s"), (p * step_s for p in PHASES), strict=True))
        whole = {
            **{"id": f"gen{number}s", "group": group, "framework": "verl", "model": "sample-7b", "params_b": 7.6},
            **{"hw": "H20", "gpus_total": gpus, "gpus_gen": gpus, "gpus_train": gpus, "placement": "colocated"},
            **{"sync_mode": "sync", "staleness": 0, "step_time_s": step_s, **phases},
            **{"source": "generated", "notes": "require_batches=4"},
        }
        times = PhaseTimes(gpus, step_s, phases["gen_time_s"], phases["train_time_s"], phases["logprob_s"])
        apart: list[dict[str, Any]] = []
        for staleness in (0.0, 0.5):
            split = PoolSplit(gpus // 2, gpus // 2, "fully", staleness, 4.0)
            own_s = predict_step_s(times, split, 7.6e9, CALIBRATED) * noise.factor(group)
            pools = {"gpus_gen": gpus // 2, "gpus_train": gpus // 2, "placement": "disaggregated"}
            changed = {"sync_mode": "fully_async", "staleness": staleness, "step_time_s": own_s}
            unnamed = dict.fromkeys(phases, "")
            apart.append({**whole, **pools, **changed, **unnamed, "id": f"gen{number}a{len(apart)}"})
        rows += [whole, *apart]
    return rows


def _one_step(noise: Noise) -> list[dict[str, Any]]:
    """Steps of GRPO with all degrees, colocated and one step ahead: 8 operations a parameter and token at `SHARE`."""
    rows = []
    for number, (model, params_b, gpus, tp) in enumerate((("LLAMA3.1_8B", 8.03, 16, 1), ("Qwen3-32B", 32.8, 32, 4))):
        for ahead in (False, True):
            half = gpus // 2 if ahead else gpus
            base_s = 2048 * 1100 * 8e9 * params_b / (SHARE / 4 * 990e12 * gpus)
            step_s = base_s * (0.8 if ahead else 1.0) * noise.factor(model)
            degrees = {"gen_tp": tp, "gen_pp": 1, "gen_dp": half // tp, "train_tp": tp, "train_cp": 1, "train_ep": 1}
            batch = {"prompts_per_step": 64, "samples_per_prompt": 32, "global_samples": 2048, "train_gbs": 512}
            rows.append(
                {
                    **{"id": f"gen{number}{'ahead' if ahead else 'sync'}", "group": f"sample-{model}"},
                    **{"source": "generated", "framework": "NeMo-RL", "version": "v0.4", "model": model},
                    **{"params_b": params_b, "active_params_b": params_b, "hw": "H100", "gpus_total": gpus},
                    **{"gpus_gen": half, "gpus_train": half, "algo": "GRPO", "engine": "vLLM+MegatronCore"},
                    **{"placement": "disaggregated" if ahead else "colocated", "staleness": int(ahead)},
                    **{"sync_mode": "async" if ahead else "sync", **degrees, "train_pp": 1, "train_dp": half // tp},
                    **batch,
                    **{"max_seq_len": 4096, "mean_seq_len": 1100, "precision": "BF16", "step_time_s": step_s},
                }
            )
    return rows


def measured() -> str:
    """measured.csv: steps that name their phases with those apart, and steps with all degrees."""
    return csv_text(COLUMNS, _steps())


def pairs() -> str:
    """rl_async_pairs.csv: the gain of running ahead, as the rows of measured.csv have it."""
    known = {row["id"]: row for row in _steps()}
    made = []
    for number in range(2):
        sync, ahead = known[f"gen{number}sync"], known[f"gen{number}ahead"]
        gain = sync["step_time_s"] / ahead["step_time_s"]
        values = (sync["id"], ahead["id"], sync["framework"], sync["model"], sync["hw"], gain)
        made.append(dict(zip(PAIR_COLUMNS, values, strict=True)))
    return csv_text(PAIR_COLUMNS, made)


def fused() -> str:
    """flexfusion_instances.csv: small pairs of pipelines; as published stands one 1F1B pipeline after the other."""
    draws = np.random.default_rng((SEED, 45))
    rows = []
    for number in range(2):
        large, small = 2, 1
        micro_batches = (int(draws.integers(2, 5)), int(draws.integers(2, 4)))
        forward = (int(draws.integers(2, 6)), int(draws.integers(1, 4)))
        memory = (2.0, 1.0)
        alone = [3 * f * (m + p - 1) for f, m, p in zip(forward, micro_batches, (large, small), strict=True)]
        busy = 3 * (forward[0] * micro_batches[0] + forward[1] * micro_batches[1])
        peak = max(memory[0] * min(large, micro_batches[0]), memory[1] * min(small, micro_batches[1]))
        makespans = (sum(alone), busy, sum(alone), sum(alone))
        values = (number, large, small, *micro_batches, *forward, *memory, *makespans, peak)
        rows.append(dict(zip(FUSED_COLUMNS, values, strict=True)))
    return csv_text(FUSED_COLUMNS, rows)

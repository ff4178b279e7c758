"""Small random problems of RL resource planning with every feature of the format, as JSON data."""

import random
from typing import Any, Literal

Json = dict[str, Any]
Feature = Literal["sync", "async", "cost", "moe", "rollout", "drift", "tight"]
FEATURES: tuple[Feature, ...] = ("sync", "async", "cost", "moe", "rollout", "drift", "tight")


def random_problem(seed: int, feature: Feature) -> Json:
    """A problem of at most 8 GPUs a pool and a dozen samples."""
    draw = random.Random(f"{seed}-{feature}")
    moe = feature == "moe"
    samples, batches = draw.randint(4, 11), draw.randint(1, 3) if feature != "drift" else 3
    pools = [_pool(draw, "a", 4 if moe else draw.randint(3, 6))]
    if feature in ("cost", "async") or (feature == "rollout" and draw.random() < 0.5):
        pools.append(_pool(draw, "b", draw.randint(2, 4)))
    stage = "gen_only" if feature == "rollout" else "full"
    problem: Json = {
        "name": f"{feature}-{seed}",
        "stage": stage,
        "cluster": {"pools": pools},
        "cost": {
            "gen": {pool["name"]: _generation(draw, (2, 4) if moe else (1, 2, 4), feature) for pool in pools},
            "train": {pool["name"]: _training(draw, moe) for pool in pools},
            "wsync": {"base_s": 0.3, "model_gb": 4.0, "intra_gbs": 25.0, "cross_gbs": draw.choice([2.0, 50.0])},
            "switch": {"base_s": draw.uniform(0.1, 2.0), "offload_gbs": 20.0},
        },
        "workload": {
            "samples": samples,
            "prompt_len": draw.randint(1, 9),
            "minibatches": draw.randint(1, min(4, samples)),
            "batches": [_batch(draw, samples, feature, number) for number in range(batches)],
        },
        "allowed": _allowed(draw, feature),
        "objective": "cost_per_iter" if feature == "cost" or draw.random() < 0.15 else "iteration_time",
        "dispatch": "predicted_longest_first" if feature == "rollout" or draw.random() < 0.3 else "fifo",
        "search_space": {"tail_fractions": [0.1, 0.2, 0.35]} if stage == "gen_only" else {},
    }
    return problem


def _pool(draw: random.Random, name: str, gpus: int) -> Json:
    price = draw.uniform(1.0, 3.0)
    return {"name": name, "nodes": 1, "gpus_per_node": gpus, "mem_gb": 80, "cost_per_gpu_hour": price}


def _generation(draw: random.Random, degrees: tuple[int, ...], feature: Feature) -> Json:
    base = draw.uniform(0.02, 0.05)
    tight = feature in ("tight", "rollout")
    return {
        str(tp): {
            "alpha": base / tp**0.6,
            "beta": draw.uniform(0.0005, 0.004) / tp,
            "gamma": draw.uniform(1e-5, 3e-4) / tp,
            "prefill_tok_s": 400.0 * tp,
            "max_running": draw.randint(1, 4),
            "kv_tokens": draw.randint(30, 60) * tp if tight else 400 * tp,
        }
        for tp in degrees
    }


def _training(draw: random.Random, moe: bool) -> Json:
    shapes = [(2, 1), (2, 2), (4, 1)] if moe else [(1, 1), (2, 1), (1, 2), (2, 2)]
    rate = draw.uniform(60.0, 200.0)
    return {
        "curves": [
            {"tp": tp, "pp": pp, "train_tok_s": rate * tp**0.9 * pp**0.95, "fwd_tok_s": 2.8 * rate * tp**0.9 * pp**0.95}
            for tp, pp in shapes
        ],
        "static_gb": draw.uniform(20.0, 70.0),
        "opt_gb": draw.uniform(20.0, 120.0),
        "act_gb": draw.uniform(5.0, 20.0),
        "mem_util": 0.92,
        "micro_tokens": draw.randint(10, 60),
        "opt_fixed_s": draw.uniform(0.01, 0.3),
    }


def _batch(draw: random.Random, samples: int, feature: Feature, number: int) -> Json:
    scale = 1 + number if feature == "drift" else 1
    lengths = [min(28, 1 + int(draw.lognormvariate(1.8, 0.8) * scale)) for _ in range(samples)]
    batch: Json = {"output_len": lengths}
    if feature == "rollout" or draw.random() < 0.3:
        batch["predicted_rank_key"] = [length * draw.lognormvariate(0.0, 0.5) for length in lengths]
    return batch


def _allowed(draw: random.Random, feature: Feature) -> Json:
    if feature == "async":
        return {"placement": ["colocated", "disaggregated"], "sync": ["sync", "one_step_async"]}
    syncs = draw.choice([["sync"], ["sync", "stream_sync"], ["sync", "stream_sync", "one_step_async"]])
    return {"placement": ["colocated", "disaggregated"], "sync": syncs}

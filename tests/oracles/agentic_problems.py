"""Random problems of agents in the form of the benchmark, small enough for brute force."""

import random
from typing import Any

Json = dict[str, Any]


def random_agents(seed: int, *, samples: int = 4, dispatch: tuple[str, ...] = ("fifo", "assigned")) -> Json:
    draw = random.Random(seed)
    pools: list[Json] = [{"name": "a", "nodes": 1, "gpus_per_node": 3, "mem_gb": 80, "cost_per_gpu_hour": 2.85}]
    if seed % 2:
        pools.append({"name": "b", "nodes": 1, "gpus_per_node": 1, "mem_gb": 80, "cost_per_gpu_hour": 1.0})
    return {
        "stage": "agentic",
        "cluster": {"pools": pools},
        "cost": {
            "gen": {
                pool["name"]: {str(tp): _curve(draw, tp) for tp in (1, 2) if tp <= pool["gpus_per_node"]}
                for pool in pools
            },
            "train": {
                "a": {
                    "curves": [
                        {"tp": tp, "pp": 1, "train_tok_s": 60.0 * tp**0.9, "fwd_tok_s": 170.0 * tp**0.9}
                        for tp in (1, 2)
                    ],
                    "static_gb": 30.0,
                    "opt_gb": draw.choice([20.0, 60.0]),
                    "act_gb": 10.0,
                    "mem_util": 0.92,
                    "micro_tokens": 25,
                    "opt_fixed_s": 0.05,
                }
            },
            "wsync": {"base_s": 0.1, "model_gb": 4.0, "intra_gbs": 25.0, "cross_gbs": 5.0},
            "switch": {"base_s": 0.3, "offload_gbs": 40.0},
        },
        "workload": {
            "minibatches": 2,
            "batches": [
                {"trajectories": [_trajectory(draw) for _ in range(samples)]} for _ in range(1 + (seed % 3 == 0))
            ],
        },
        "rollout": {"keep_kv": bool(seed % 2), "move": {"base_s": 0.02, "token_s": 0.001}},
        "allowed": {
            "placement": ["colocated", "disaggregated", "hybrid"][: 2 + seed % 2],
            "staleness": [0, 1, 2],
            "dispatch": list(dispatch),
            "priority": ["fifo", "longest_first"],
            "move_threshold": [None, 1.1] if seed % 4 == 1 else [None],
        },
        "objective": "cost_per_iter" if seed % 5 == 4 else "iteration_time",
    }


def _curve(draw: random.Random, tp: int) -> Json:
    return {
        "alpha": 0.03 / tp**0.6,
        "beta": draw.uniform(0.001, 0.01) / tp,
        "gamma": draw.uniform(0.0, 3e-4) / tp,
        "prefill_tok_s": 300.0 * tp,
        "max_running": draw.randint(1, 3),
        "kv_tokens": 110 * tp,
    }


def _trajectory(draw: random.Random) -> Json:
    turns = [
        [1 + int(draw.lognormvariate(1.5, 0.7)), round(draw.expovariate(4.0), 4), draw.randint(0, 4)]
        for _ in range(draw.randint(1, 3))
    ]
    trajectory: Json = {"prompt": draw.randint(1, 6), "turns": turns}
    if draw.random() < 0.5:
        trajectory["predicted"] = [draw.uniform(1.0, 30.0) for _ in turns]
    return trajectory

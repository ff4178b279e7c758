"""Nodes out of service: serving, RL and experts with k of 64 nodes out, against the best clean pool of at most 64 - k.

Each clean pool is a problem of its own, solved by itself. Beside ours stands a trivial answer: the longest run of
neighbouring nodes in service, as a pool of its own. Values are rates where a rate is maximised, seconds of an
iteration where one is minimised, and the imbalance of experts.

    python benchmarks/topology_nodes.py [KIND ...] [--quick]
"""

import argparse
import random
import sys
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from planner.api import solve
from planner.errors import Infeasible
from planner.progress import Limits

NODES, LEAST, MOST_OUT, SEED = 64, 40, 8, 0
LIMIT = 0.01
LOADS = Path(__file__).parent.parent / "examples" / "experts-deepseek-v3-loads.npz"
SERVED = {"input_tokens": 4000, "output_tokens": 1000, "slo": {"ttft": "4s", "tpot": "50ms"}}
PROBLEMS: dict[str, dict[str, Any]] = {
    "serve, 405B on HGX": {
        "kind": "serve",
        "models": {"m": {"name": "meta-llama/Llama-3.1-405B", "weights": "bf16"}},
        "gpu": "h100",
        "workloads": [SERVED],
        "objective": {"maximize": "goodput_per_gpu"},
    },
    "serve, 405B on NVL72": {
        "kind": "serve",
        "models": {"m": {"name": "meta-llama/Llama-3.1-405B", "weights": "bf16"}},
        "gpu": "gb200-nvl72",
        "workloads": [SERVED],
        "objective": {"maximize": "goodput_per_gpu"},
    },
    "rl, 32B on HGX": {
        "kind": "rl",
        "models": {"policy": {"name": "Qwen/Qwen2.5-32B"}},
        "gpu": "h100",
        "workloads": [{"input_tokens": 512, "output_tokens": {"mean": 2500, "cv": 0.9}}],
        "objective": {"minimize": "iteration_time"},
        "options": {"algorithm": "grpo", "reference": "policy", "prompts": 512, "samples_per_prompt": 16},
    },
    "experts, 32 ranks on HGX": {
        "kind": "experts",
        "models": {"m": {"name": "deepseek-ai/DeepSeek-V3"}},
        "gpu": "h800_sxm",
        "objective": {"minimize": "imbalance"},
        "options": {"ep": 32, "slots_per_rank": 9, "policy": "static", "loads": str(LOADS)},
    },
}


@cache
def value(name: str, nodes: int, out_of_service: tuple[int, ...] = ()) -> float | None:
    """The objective of the best plan, a rate per GPU times the nodes in service; None where there is none."""
    problem = dict(PROBLEMS[name])
    pool = {"gpu": problem.pop("gpu"), "nodes": nodes, "out_of_service": list(out_of_service)}
    document = {"schema": "planner.problem/1", **problem, "cluster": {"pools": [pool]}}
    try:
        plan = solve(document, Limits(), level="static" if problem["kind"] == "serve" else None)
    except Infeasible:
        return None
    objective = plan.certificate.objective
    if objective.value is None or objective.sense == "minimize":
        return objective.value
    return objective.value * (nodes - len(out_of_service))


def longest_run(gone: Sequence[int]) -> int:
    """Nodes of the longest stretch in service."""
    return max(after - before - 1 for before, after in pairwise([-1, *sorted(gone), NODES]))


def loss(name: str, ours: float | None, best: float | None) -> float:
    """How much worse ours is, as a share; below 0 where it is better."""
    if best is None or ours is None:
        return 0.0 if ours is best else float("inf") if ours is None else -1.0
    return best / ours - 1.0 if "maximize" in PROBLEMS[name]["objective"] else ours / best - 1.0


def main() -> int:
    """Prints a row for each problem and number of nodes out; 1 where one is over the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", help="problems whose names begin so; all when absent")
    parser.add_argument("--quick", action="store_true", help="up to two nodes out, and few clean pools")
    arguments = parser.parse_args()
    names = [name for name in PROBLEMS if not arguments.kinds or name.startswith(tuple(arguments.kinds))]
    most_out, least = (2, 60) if arguments.quick else (MOST_OUT, LEAST)
    draw, worst = random.Random(SEED), 0.0
    print(f"{'problem':26}{'out':>4}{'ours':>12}{'best clean':>12}{'nodes':>6}{'worse by':>10}{'longest run':>13}")
    for name in names:
        for out in range(most_out + 1):
            gone = tuple(sorted(draw.sample(range(NODES), out)))
            ours = value(name, NODES, gone)
            clean = [(value(name, nodes), nodes) for nodes in range(NODES - out, least - 1, -1)]
            best, nodes = min(clean, key=lambda row: loss(name, row[0], clean[0][0]))
            run = value(name, longest_run(gone))
            off = loss(name, ours, best)
            worst = max(worst, off)
            figures = "".join("        none" if v is None else f"{v:12.5g}" for v in (ours, best))
            print(f"{name:26}{out:4}{figures}{nodes:6}{off:10.2%}{loss(name, run, best):13.2%}", flush=True)
    print(f"worst by at most {worst:.2%}, {LIMIT:.0%} allowed")
    return int(worst > LIMIT)


if __name__ == "__main__":
    sys.exit(main())

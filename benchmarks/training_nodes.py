"""Nodes out of service: the step of a pool with k of 64 nodes out, against the best clean pool of at most 64 - k nodes.

Each clean pool is a problem of its own, solved by itself, from 64 nodes down to 32: nothing is taken over from a larger
one, so that a plan that would be slower on more nodes shows. Beside it stand two trivial answers, both solved as well:
the longest run of neighbouring nodes in service, and as many nodes as the largest power of two.

    python benchmarks/training_nodes.py [--quick]
"""

import argparse
import random
import sys
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from planner.documents.read import given_document
from planner.errors import Infeasible
from planner.kinds.train.solve import solve
from planner.load.problems import resolve_document
from planner.progress import Limits

NODES, LEAST, MOST_OUT, SEED = 64, 32, 8, 0
LIMIT = 1.01
MODELS = {
    "meta-llama/Llama-3.1-70B": (1024, 8192),
    "meta-llama/Llama-3.1-405B": (512, 8192),
    "Qwen/Qwen3-235B-A22B": (2048, 4096),
}


@cache
def step_s(model: str, nodes: int, out_of_service: tuple[int, ...] = ()) -> float:
    """Predicted step of the plan that `solve` chooses on a pool of 8-GPU H100 nodes, infinite where no plan fits."""
    batch, tokens = MODELS[model]
    problem: dict[str, Any] = {
        "schema": "planner.problem/1",
        "kind": "train",
        "models": {"m": {"name": model}},
        "cluster": {"pools": [{"gpu": "h100", "nodes": nodes, "out_of_service": list(out_of_service)}]},
        "objective": {"minimize": "step_time"},
        "options": {"global_batch": batch, "sequence_tokens": tokens},
    }
    try:
        plan = solve(resolve_document(given_document(problem, "problem"), Path()), Limits())
    except Infeasible:
        return float("inf")
    seconds = plan.certificate.objective.value
    assert seconds is not None, "a plan has its value"
    return seconds


def longest_run(gone: Sequence[int]) -> int:
    """Nodes of the longest stretch in service."""
    edges = [-1, *sorted(gone), NODES]
    return max(after - before - 1 for before, after in pairwise(edges))


def main() -> int:
    """Prints a row for each model and number of nodes out; 1 where one is over the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one model, up to three nodes out")
    quick = parser.parse_args().quick
    models, most_out, least = (list(MODELS)[:1], 3, 56) if quick else (list(MODELS), MOST_OUT, LEAST)
    draw, worst = random.Random(SEED), 0.0
    columns = f"{'step s':>9}{'clean':>9}{'nodes':>6}{'ratio':>8}{'longest run':>13}{'power of 2':>12}"
    print(f"{'model':28}{'out':>4}{columns}")
    for model in models:
        for out in range(most_out + 1):
            gone = tuple(sorted(draw.sample(range(NODES), out)))
            ours = step_s(model, NODES, gone)
            clean_s, nodes = min((step_s(model, nodes), nodes) for nodes in range(NODES - out, least - 1, -1))
            run, power = step_s(model, longest_run(gone)), step_s(model, 1 << ((NODES - out).bit_length() - 1))
            worst = max(worst, ours / clean_s)
            print(
                f"{model:28}{out:4}{ours:9.3f}{clean_s:9.3f}{nodes:6}{ours / clean_s:8.4f}"
                f"{run / clean_s:13.3f}{power / clean_s:12.3f}",
                flush=True,
            )
    print(f"largest ratio {worst:.4f}, {LIMIT} allowed")
    return int(worst > LIMIT)


if __name__ == "__main__":
    sys.exit(main())

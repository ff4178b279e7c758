"""Breakpoints along a line beside those of a grid of points solved one by one from the same prices.

    python benchmarks/parametric.py [--quick] [--seed N]

Prints, for the rate, the limit on TPOT and the cap on GPUs of `examples/serve-cost-one-pool.yaml`, or of a problem
drawn by a seed (model, GPU, objective, lengths, limit), how many objectives the line has, whether every point of the
grid has the objective of the segment that it lies in, and the CPU seconds of both. The trivial answer beside is one
segment for the whole line.
"""

import argparse
import random
import time
from pathlib import Path

from planner.alternatives.breakpoints import Segment, segments
from planner.kinds.registry import find_kind
from planner.load.problems import load_problem
from planner.progress import Limits

PROBLEM = Path(__file__).parent.parent / "examples" / "serve-cost-one-pool.yaml"
LINES = (("rate", 5.0, 50.0, 1000), ("tpot", 0.012, 0.050, 1000), ("gpus", 1.0, 32.0, 32))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="25 points of each grid")
    parser.add_argument("--seed", type=int, default=None, help="draw a problem")
    given = parser.parse_args()
    quick, overrides = given.quick, [] if given.seed is None else drawn(random.Random(given.seed))
    if overrides:
        print("; ".join(overrides))
    for axis, low, high, points in LINES:
        line = find_kind("serve").along(load_problem(PROBLEM, overrides=overrides), axis, Limits())
        started = time.process_time()
        told = segments(line, low, high)
        took_s = time.process_time() - started
        count = min(points, 25) if quick else points
        grid = [low + (high - low) * place / (count - 1) for place in range(count)]
        started = time.process_time()
        values = [line.at(value).objective for value in grid]
        grid_s = time.process_time() - started
        agree = sum(_same(of(told, value), best) for value, best in zip(grid, values, strict=True))
        trivial = sum(_same(told[0].objective, best) for best in values)
        print(
            f"{axis}: {len(told)} segments in {took_s:.1f} CPU-s; {agree} of {count} grid points agree"
            f" (one segment for all: {trivial}), the grid took {grid_s:.1f} CPU-s"
        )


def drawn(draw: random.Random) -> list[str]:
    """Overrides of the problem: another model, GPU, lengths, limits and objective."""
    return [
        f"models.qwen3.name={draw.choice(['Qwen/Qwen3-32B', 'Qwen/Qwen3-14B', 'Qwen/Qwen3-8B'])}",
        f"cluster.pools.0.gpu={draw.choice(['h100', 'h200'])}",
        f"objective.minimize={draw.choice(['cost', 'gpus'])}",
        f"workloads.0.input_tokens={draw.randint(500, 3000)}",
        f"workloads.0.output_tokens={draw.randint(100, 500)}",
        f"workloads.0.slo.ttft={draw.randint(600, 2000)}ms",
    ]


def of(told: list[Segment], value: float) -> float | None:
    """The objective at a value: that of the last segment that begins at or below it."""
    return next(segment.objective for segment in reversed(told) if segment.low <= value * (1 + 1e-9))


def _same(value: float | None, other: float | None) -> bool:
    if value is None or other is None:
        return value is other
    return abs(value - other) <= 1e-6 * max(abs(value), abs(other))


if __name__ == "__main__":
    main()

"""Schedules of 128 passes of towers and language on four ranks within a tight memory: how far from their bounds.

Seeded cases in the form of `mm_schedule_4x4`: micro-batches with one to three parts of images and one of language.
Beside ours stand the best trivial answer (the best of 1F1B's orders that fit) and the bound that machines and memory
alone give.

    python benchmarks/pass_schedules.py [--quick]
"""

import argparse
import time
from typing import Any

import numpy as np
from case_kinds.modality_schedule import problem_of

from planner.solvers.modalities.passes import best_schedule, schedule_s, work_bound_s

RANKS, PARTS, CAPACITY = 4, 16, 30


def drawn_case(seed: int) -> dict[str, Any]:
    """A case of 128 passes, in milliseconds."""
    draws = np.random.default_rng(seed)
    batches, left = [], PARTS
    while left > 0:
        parts = min(left - 1, int(draws.integers(1, 4))) if left > 1 else 0
        parts += left - parts == 2  # no micro-batch of language alone is left over
        vision = []
        for _ in range(parts):
            forward = int(draws.integers(5, 9))
            backward = 2 * forward + int(draws.integers(-1, 2))
            size = 3 if forward > 6 else 2
            vision.append({"forward_ms": [forward] * RANKS, "backward_ms": [backward] * RANKS, "bytes": size})
        language = [12] * (RANKS - 1) + [14]
        row = {"forward_ms": language, "backward_ms": [2 * each for each in language], "bytes": 6}
        batches.append({"vision": vision, "language": [row]})
        left -= parts + 1
    return {"ranks": RANKS, "capacity_bytes": CAPACITY, "micro_batches": batches}


def main() -> None:
    """Prints a line for each seed."""
    parser = argparse.ArgumentParser(description="schedules of 128 passes beside their bounds")
    parser.add_argument("--quick", action="store_true", help="one seed instead of three")
    for seed in range(1 if parser.parse_args().quick else 3):
        problem, keys = problem_of(drawn_case(seed))
        started = time.process_time()
        result = best_schedule(problem)
        assert result.gap is not None
        print(
            f"seed {seed}, {len(keys)} passes: {result.objective:g} ms, bound {result.bound:g}, gap {result.gap:.1%},"
            f" {time.process_time() - started:.0f} CPU-s; best of 1F1B {schedule_s(problem, problem.orders):g},"
            f" work and memory alone bound {work_bound_s(problem):g}",
            flush=True,
        )


if __name__ == "__main__":
    main()

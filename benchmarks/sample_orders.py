"""How far orders of unlike micro-batches are from the optimum, on cases too large for the exact part of the method.

Seeded cases in the form of `mm_order_2x6` (first and last rank uneven, those between alike). The optimum comes from the
definition, by code of its own: the best order of every subset of a replica's size that is below ours, passes simulated
one by one as 1F1B lists them, and then the best cover of all micro-batches by such subsets. Takes minutes a case.

    python benchmarks/sample_orders.py [--quick] [--cases 2x8,3x6] [--seeds 4]
"""

import argparse
import time

import numpy as np
from referees.sample_orders import optimum_s

from planner.solvers.modalities.sample_orders import SampleOrders, best_orders, longest_span_s

CASES = ((2, 7), (3, 6), (4, 5), (4, 6), (2, 8))
RANKS, LARGEST = 5, 0.5
ABOVE = 1.0005  # times ours, below which subsets are kept: the reference must come to ours by itself


def drawn_case(replicas: int, each: int, seed: int) -> SampleOrders:
    """A case: seconds of the first and the last rank spread, backward passes twice as long."""
    draws = np.random.default_rng([seed, replicas, each])
    forward_NR = draws.uniform(0.17, 0.19, (replicas * each, RANKS))
    forward_NR[:, 0] = np.maximum(draws.uniform(-0.05, LARGEST, replicas * each), 0.02)
    forward_NR[:, -1] = np.maximum(draws.uniform(-0.05, LARGEST, replicas * each), 0.02)
    return SampleOrders(forward_NR, 2.0 * forward_NR, replicas)


def main() -> None:
    """Prints a line for each case."""
    parser = argparse.ArgumentParser(description="orders of micro-batches beside their optimum")
    parser.add_argument("--quick", action="store_true", help="one case")
    parser.add_argument("--cases", help="replicas x micro-batches of each, such as 2x8,3x6")
    parser.add_argument("--seeds", type=int, default=4)
    given = parser.parse_args()
    cases = CASES if not given.cases else [tuple(map(int, case.split("x"))) for case in given.cases.split(",")]
    best_orders(drawn_case(2, 4, 0))  # compiles
    worst = 0.0
    for replicas, each in cases[:1] if given.quick else cases:
        for seed in range(1 if given.quick else given.seeds):
            problem = drawn_case(replicas, each, seed)
            started = time.process_time()
            result = best_orders(problem)
            assert result.objective is not None
            assert result.bound is not None
            ours_s, own_s = result.objective, time.process_time() - started
            draws = np.random.default_rng(seed)
            deals = (draws.permutation(len(problem.forward_NR)).reshape(replicas, -1) for _ in range(1000))
            random_s = min(longest_span_s(problem, tuple(map(tuple, deal.tolist()))) for deal in deals)
            started = time.process_time()
            best_s = optimum_s(problem, ours_s * ABOVE)
            assert best_s <= ours_s * (1.0 + 1e-9), "the reference misses what the method has"
            worst = max(worst, ours_s / best_s)
            print(
                f"{replicas}x{each} seed {seed}: {ours_s:.4f} s in {own_s:.2f} CPU-s, optimum {best_s:.4f}"
                f" ({time.process_time() - started:.0f} CPU-s), ours {ours_s / best_s:.4f} of it, best of 1,000 random"
                f" {random_s / best_s:.4f}, bound {result.bound / best_s:.4f}",
                flush=True,
            )
    print(f"worst of all: {worst:.4f} of the optimum")


if __name__ == "__main__":
    main()

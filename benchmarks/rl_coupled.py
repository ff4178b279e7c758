"""Prices of asynchronous RL plans beside generators and trainer simulated together, on drawn plans of three kinds.

Usage: rl_coupled.py [--plans N] [--quick]. Lengths, curves, replicas and trainers are drawn
(`tests/oracles/coupled_cases.py`); the simulation has no code of the price. Beside it stands the one-line answer: the
longer of generation and training, and sending the weights. Exits 1 where a price is more than 10 % off, or no nearer
than that answer.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np

from planner.rl.coupled.referee import coupled_iteration_s
from planner.rl.evaluate import evaluate

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "oracles"))

from coupled_cases import KINDS, coupled_case

MOST_OFF = 0.10
SAMPLES = (64, 256, 1024)


def main(plans: int) -> int:
    """Prints a row for each kind and size of batch."""
    print(
        f"{'kind':<10} {'samples':>7} {'plans':>5}  simulated / priced: {'least':>6} {'median':>6} {'most':>6}", end=""
    )
    print("   off, mean: priced  longer side   CPU of a simulation")
    wrong = False
    for kind in KINDS:
        for samples in SAMPLES:
            ratios, beside, took_s = [], [], 0.0
            for seed in range(plans):
                problem, plan = coupled_case(1000 + seed, kind, samples)
                priced = evaluate(problem, plan)
                before = time.process_time()
                simulated_s = coupled_iteration_s(problem, plan, priced.handover_s)
                took_s += time.process_time() - before
                ratios.append(simulated_s / priced.iteration_s)
                drained_s = float(np.mean(priced.generation_s_of_batch))
                beside.append(simulated_s / (max(drained_s, priced.training_s) + priced.handover_s))
            off, trivially = (float(np.abs(np.log(each)).mean()) for each in (ratios, beside))
            wrong |= max(abs(ratio - 1.0) for ratio in ratios) > MOST_OFF or off >= trivially
            spread = f"{min(ratios):7.3f} {np.median(ratios):6.3f} {max(ratios):6.3f}"
            print(f"{kind:<10} {samples:>7} {plans:>5} {'':19} {spread}", end="")
            print(f"   {off:17.3f}  {trivially:11.3f}   {took_s / plans:.2f} s")
    return int(wrong)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plans", type=int, default=40)
    parser.add_argument("--quick", action="store_true", help="eight plans of each kind and size")
    given = parser.parse_args()
    sys.exit(main(8 if given.quick else given.plans))

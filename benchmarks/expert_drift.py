"""How far loads of experts move after an engine placed by them, and what the fullest rank then has, against the costs.

    python benchmarks/expert_drift.py ../shared/data/experts/deepseek_sglang_logical_count.npz

DeepSeek-R1 as SGLang recorded it: tokens of each expert in 58 layers, under mixes of lengths of one phase. Experts are
placed by EPLB on one mix and serve another. Printed are the share of the variance of loads that the first mix does not
tell (DRIFT of planner.costs.operators.balanced), and the fullest rank over the mean: measured, as priced, and as priced
where loads stay (the trivial answer); then the same with experts in the order of their numbers.
"""

import itertools
import sys
from pathlib import Path

import numpy as np
from eplb import balance_globally

from planner.arrays import Floats, Ints
from planner.costs.operators.balanced import balanced_rank, placed_rank
from planner.costs.operators.experts import fullest_rank

LAYOUTS = ((8, 0), (16, 0), (32, 0), (32, 32), (64, 64), (128, 128))
"""Ranks and redundant experts."""


def placed(by_E: Floats, slots: int, ranks: int) -> tuple[Ints, Ints]:
    """[P] the expert in each slot, rank by rank, and [E] copies of each."""
    expert_P = balance_globally(by_E, slots, ranks)
    return expert_P, np.bincount(expert_P, minlength=len(by_E))


def fullest(load_E: Floats, expert_P: Ints, copies_E: Ints, ranks: int) -> float:
    """Rows of the fullest rank over the mean."""
    rows = (load_E / copies_E)[expert_P].reshape(ranks, -1).sum(axis=1)
    return float(rows.max() / rows.mean())


def main() -> int:
    """Print both; 2 where it is not told where the recordings lie."""
    if len(sys.argv) != 2:
        print("usage: expert_drift.py RECORDINGS.npz", file=sys.stderr)
        return 2
    with np.load(Path(sys.argv[1])) as data:
        loads = {name: data[name] / data[name].mean(axis=1, keepdims=True) for name in data.files}
    phases = [[loads[name] for name in loads if name.startswith(phase)] for phase in ("prefill", "decode")]
    pairs = [pair for phase in phases for pair in itertools.permutations(phase, 2)]
    shares = [np.median(((then - first) ** 2).mean(axis=1) / then.var(axis=1)) for first, then in pairs]
    quartiles = np.percentile(shares, (25, 50, 75))
    print(f"{len(pairs)} pairs: quartiles of the share of the variance that moves: {np.round(quartiles, 3)}")
    concentration = 1.0 / np.median([then.var(axis=1) for _, then in pairs])
    experts = loads["decode_in1000out1000"].shape[1]
    print(
        f"concentration {concentration:.2f}; ranks, redundant experts: measured, priced, where loads stay | by number"
    )
    for ranks, copies in LAYOUTS:
        rows, plain = [], []
        for first, then in pairs:
            for layer in range(0, len(first), 6):
                expert_P, copies_E = placed(first[layer], experts + copies, ranks)
                rows.append(fullest(then[layer], expert_P, copies_E, ranks))
                plain.append(fullest(then[layer], np.arange(experts), np.ones(experts, np.int64), ranks))
        at = (concentration, experts, np.array([float(ranks)]), np.array([float(copies)]))
        shown = (np.mean(rows), placed_rank(*at)[0], balanced_rank(*at)[0])
        others = (np.mean(plain), fullest_rank(concentration**-0.5, experts, float(ranks)))
        words = (", ".join(f"{value:.2f}" for value in values) for values in (shown, others))
        print(f"  {ranks:4} {copies:4}: {' | '.join(words)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

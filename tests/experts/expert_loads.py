"""Loads made up for tests of expert layouts, and an independent score of a layout."""

import numpy as np
import numpy.typing as npt

from planner.experts.ranks import Ranks


def zipf_loads(layers: int, experts: int, seed: int = 0, power: float = 0.7) -> npt.NDArray[np.float64]:
    """[layers, experts] a power law in random order, some 10,000 tokens each."""
    rng = np.random.default_rng(seed)
    law = 1.0 / np.arange(1, experts + 1) ** power
    return np.array([rng.permutation(law) * 1e4 for _ in range(layers)])


def imbalance(
    ranks: Ranks,
    expert_P: npt.NDArray[np.int64],
    load_E: npt.NDArray[np.float64],
    quota_P: npt.NDArray[np.float64] | None = None,
) -> float:
    """Slowest rank over the mean, counted slot by slot."""
    loads = [0.0] * ranks.num_ranks
    copies = {expert: int((expert_P == expert).sum()) for expert in range(len(load_E))}
    for slot, (rank, expert) in enumerate(zip(ranks.rank_P.tolist(), expert_P.tolist(), strict=True)):
        if expert >= 0:
            loads[rank] += load_E[expert] * (1 / copies[expert] if quota_P is None else quota_P[slot])
    times = [load / speed for load, speed in zip(loads, ranks.speed_R.tolist(), strict=True)]
    return float(max(times)) / (sum(loads) / float(ranks.speed_R.sum()))

"""Why no layout of a layer is better balanced than its bound: the loads and slots from which that follows.

With shares of a layer's load and of all speeds, T the imbalance, s_r the speed of rank r and S_r its slots:

(B1) T >= 1                                                        all ranks busy to the end
(B2) sum_e max(1, ceil(w_e / (T max s_r))) <= sum_r S_r            a copy carries no more than a rank does
(B3) sum_r min(T s_r, the S_r heaviest w_e) >= 1                   a rank carries no more than its heaviest experts
(B4) T sum_{r in C} s_r + sum_{e not confined to C} w_e >= 1       experts confined to some ranks C load those alone

(B4) is (B3) of two ranks: C, which may hold all, and the others, which hold the experts that are not confined to C.
(B2) to (B4) fail for every T below the bound when they fail just below it, since both sides only move apart.
"""

import numpy as np
from pydantic import JsonValue

from planner.arrays import Floats
from planner.solvers.layouts.spread import SpreadProblem

METHOD = "slots_and_mean"
JUST_BELOW = 1.0 - 1e-9  # of a bound
MOST_NUMBERS = 6000  # that a certificate lists


def bound_records(problems: list[SpreadProblem], bound_N: Floats) -> list[JsonValue] | None:
    """What derives the bound of each row above 1; None where that would be too long."""
    records = [
        {"layer": row, **_record(problem, float(bound) * JUST_BELOW)}
        for row, (problem, bound) in enumerate(zip(problems, bound_N, strict=True))
        if bound * JUST_BELOW > 1.0
    ]
    numbers = sum(len(part) for record in records for part in record.values() if isinstance(part, list))
    return list[JsonValue](records) if numbers <= MOST_NUMBERS else None


def _record(problem: SpreadProblem, imbalance: float) -> dict[str, JsonValue]:
    """The rule that an imbalance breaks, with the numbers in it."""
    share_E = problem.weight_E / problem.weight_E.sum()
    speed_R = problem.speed_R / problem.speed_R.sum()
    most = imbalance * float(speed_R.max())
    heavy = np.sort(share_E[share_E > most])[::-1]
    if np.ceil(heavy / most).sum() + len(share_E) - len(heavy) > problem.slots_R.sum():
        return {"top_speed": float(speed_R.max()), "heavy": heavy.tolist()}
    for mask_R in () if problem.allowed_ER is None else np.unique(problem.allowed_ER, axis=0):
        free = float(share_E[(problem.allowed_ER & ~mask_R).any(axis=1)].sum())
        speed, slots = float(speed_R[mask_R].sum()), int(problem.slots_R[mask_R].sum())
        if imbalance * speed + free < 1.0:
            others = int(problem.slots_R.sum()) - slots
            return {"ranks": [[1, slots, speed, 1.0], [1, others, float(speed_R[~mask_R].sum()), free]]}
    heaviest = np.cumsum(np.sort(share_E)[::-1])
    kinds, count = np.unique(np.stack([problem.slots_R, speed_R]), axis=1, return_counts=True)
    rows = zip(count.tolist(), kinds[0].astype(int).tolist(), kinds[1].tolist(), strict=True)
    return {"ranks": [[number, slots, speed, float(heaviest[slots - 1])] for number, slots, speed in rows]}

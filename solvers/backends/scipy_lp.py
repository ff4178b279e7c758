"""Linear programs given as arrays, by SciPy's HiGHS: for columns that are generated in numbers."""

from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats


@dataclass(frozen=True, slots=True)
class PackedLp:
    """The optimum of max c x subject to A x <= b, x >= 0, with the prices of its rows."""

    value: float
    price_R: Floats  # 0 or more


def maximise(value_C: Floats, use_RC: Floats, limit_R: Floats) -> PackedLp:
    """The optimum; the problem is bounded and x = 0 keeps its rows, which callers see to."""
    from scipy.optimize import linprog

    answer = linprog(-value_C, A_ub=use_RC, b_ub=limit_R, method="highs")
    assert answer.status == 0, answer.message
    assert answer.fun is not None
    return PackedLp(-float(answer.fun), np.maximum(-np.asarray(answer.ineqlin.marginals), 0.0))

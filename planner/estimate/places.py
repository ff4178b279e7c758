"""Where deployments lie among each other: their loads and layouts in doublings, by which their errors go together."""

from collections.abc import Sequence

import numpy as np

from planner.arrays import Floats
from planner.costs.rates.near_runs import layout_of
from planner.estimate.case import Case


def loads(cases: Sequence[Case]) -> Floats:
    """Base-2 logarithm of the clients of each [M]."""
    return np.log2([max(float(case.clients), 1.0) for case in cases])


def layouts(cases: Sequence[Case]) -> Floats:
    """Base-2 logarithms of GPUs and of the decoding degrees tp, dp and ep, and the mode as a distance [M, 5]."""
    rows = [(case.gpus, case.decode.tp, case.decode.dp, case.decode.ep, case.prefill is not None) for case in cases]
    return layout_of(*np.array(rows, dtype=np.float64).reshape(len(cases), 5).T)

"""One alternative of a serving decision: a deployment at a load, with its predicted times."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats
from planner.estimate.case import Case

MODE_APART = 8.0  # doublings between colocated and disaggregated: likeliest on decisions measured in both modes


@dataclass(frozen=True, slots=True)
class Alternative:
    """A deployment in a closed loop of `case.clients`, with predicted times."""

    name: str
    case: Case
    ttft_s: float
    tpot_s: float
    price: float = 1.0  # of one of its GPUs, in any unit that all alternatives share

    def output_tokens_per_s_per_gpu(self, ttft_s: float, tpot_s: float) -> float:
        """What it yields at these times, by Little's law; at prices other than 1, for each unit of price."""
        case = self.case
        return case.clients * case.osl / (ttft_s + tpot_s * (case.osl - 1.0)) / (case.gpus * self.price)


@dataclass(frozen=True, slots=True)
class Result:
    """What a run of an alternative measured; medians, or means where no median is told."""

    name: str  # of the alternative
    ttft_s: float
    tpot_s: float


def loads(cases: Sequence[Case]) -> Floats:
    """Base-2 logarithm of the clients of each [M]."""
    return np.log2([max(float(case.clients), 1.0) for case in cases])


def layouts(cases: Sequence[Case]) -> Floats:
    """Base-2 logarithms of GPUs and of the decoding degrees tp, dp and ep, and the mode as a distance [M, 5]."""
    rows = [
        (
            *np.log2(np.maximum([case.gpus, case.decode.tp, case.decode.dp, case.decode.ep], 1)),
            MODE_APART * (case.prefill is not None),
        )
        for case in cases
    ]
    return np.array(rows, dtype=np.float64).reshape(len(cases), 5)

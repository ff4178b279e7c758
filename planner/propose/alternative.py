"""One alternative of a serving decision: a deployment at a load, with its predicted times."""

from dataclasses import dataclass

from planner.estimate.case import Case


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

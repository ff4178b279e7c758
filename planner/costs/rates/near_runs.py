"""Own runs as a search takes them: how far steps of a layout are from the costs by those most like it.

A calibration says of a group of runs how much longer all its steps are, and holds what each told
(`planner.costs.rates.spread.GroupBias`). Estimates ask what they tell of a deployment with its load, searches of a
layout before anybody knows how many instances there will be; both are answered by `planner.costs.rates.likeness`.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from planner.arrays import Floats
from planner.costs.operators.work import Shards
from planner.costs.rates.likeness import TPOT, ErrorBelief
from planner.costs.rates.spread import GroupBias

NOMINAL_TPOT_S = 0.014  # of what an open load has in flight: the median of measured runs, of which 80 % take 6 to 40 ms
MODE_APART = 8.0  # doublings between colocated and disaggregated: likeliest on decisions measured in both modes


def layout_of(gpus: Floats, tp: Floats, dp: Floats, ep: Floats, disaggregated: Floats) -> Floats:
    """Base-2 logarithms of GPUs and of the decoding degrees tp, dp and ep, and the mode as a distance [M, 5]."""
    degrees = np.log2(np.maximum(np.stack([gpus, tp, dp, ep], axis=1), 1.0))
    return np.column_stack((degrees, MODE_APART * disaggregated))


def in_flight(clients: float | None, rate_per_s: float | None, output_tokens: float) -> float:
    """Requests in flight of a closed loop, or of an open one by Little's law; NaN where neither is known.

    At NOMINAL_TPOT_S, whatever is believed of its times, so that a run of an open load is known again; most take within
    one and a half doublings of that, where errors reach over three.
    """
    return float(clients or (rate_per_s or math.nan) * output_tokens * NOMINAL_TPOT_S)


def load_of(clients_per_gpu: Floats | float, gpus: Floats) -> Floats:
    """Base-2 logarithms of the clients of instances of so many GPUs [M], one at least; NaN where nobody knows."""
    return np.log2(np.maximum(clients_per_gpu * gpus, 1.0))


@dataclass(frozen=True, slots=True)
class NearRuns:
    """Runs of a group as a search takes them: by the layout of an instance, at its share of the clients or any load.

    Clients are spread over all GPUs, of which those of an instance have their share.
    """

    bias: GroupBias
    clients_per_gpu: float = math.nan  # NaN: any load
    lengths: tuple[float, ...] = (math.nan, math.nan)  # tokens of prompt and answer; NaN where they vary
    disaggregated: bool = False

    def of_role(self, function: str) -> "NearRuns":
        """The same for instances that do both or, as any other function has it, prefill or decode alone."""
        return replace(self, disaggregated=function != "colocated")

    def longer(self, shards: Shards) -> Floats:
        """Multiples of step times [N], beyond those of all of the group."""
        shape, shards = shards.tp.shape, shards.reshaped(-1)
        same = len(shards) > 1 and all(
            (degree == degree[0]).all() for degree in (shards.tp, shards.dp, shards.ep, shards.devices)
        )
        mean = self.told(shards.take(np.zeros(1, dtype=np.intp)) if same else shards).mean
        return np.broadcast_to(np.exp(mean - self.bias.mean), (len(shards),)).reshape(shape)

    def margin(self, shards: Shards, confidence: float) -> Floats:
        """By how much limits on TPOT are divided to be kept by instances [N] with so much confidence."""
        return np.exp(self.told(shards).above(confidence))

    def told(self, shards: Shards) -> ErrorBelief:
        """Of instances [N] (`planner.costs.rates.likeness.Likeness.told`)."""
        tp, dp, ep, gpus = shards.tp, shards.dp, shards.ep, shards.devices
        mode = np.full(len(shards), float(self.disaggregated))
        lengths = np.tile(self.lengths, (len(shards), 1))
        return TPOT.told(
            self.bias.seen, load_of(self.clients_per_gpu, gpus), layout_of(gpus, tp, dp, ep, mode), lengths
        )

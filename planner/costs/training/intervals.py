"""80 % prediction intervals of training step times: by class of run, wider with the distance from measured layouts.

The logarithms of a class's interval are stretched by 1 + `spread_by_distance` d, d being the distance of a run's layout
from the nearest measured run of its kind: doublings of tp, pp, cp, ep and micro-batch, and one unit each for another
ZeRO stage, training code, generation of GPUs or format, added as squares (`planner.costs.training.measured_layouts`).
`benchmarks/training.py --write` writes the spread, from runs whose group the fit had not seen.
"""

from collections.abc import Iterable
from functools import lru_cache
from math import exp

import numpy as np

from planner.arrays import Floats
from planner.costs.training.config import TrainingConfig
from planner.costs.training.measured_layouts import COUNTED, Layout, layout_of, measured_layouts
from planner.costs.training.rates import Rates
from planner.costs.training.shapes import main_shape
from planner.models.architecture import LinearAttention, MoeFfn

MEASURED = " measured"  # behind the class of runs whose shape is one of the measured ones
FARTHEST = 4.0  # beyond it, intervals widen no more


def distances(layout: Layout, others: Iterable[Layout]) -> Floats:
    """How far this layout is from each of the others of its kind, FARTHEST at most; empty where there are none."""
    alike = [other for other in others if other.kind == layout.kind]
    if not alike:
        return np.array([])
    pairs = [zip(layout[1:COUNTED], other[1:COUNTED], strict=True) for other in alike]
    named_A = np.array([sum(left != right for left, right in pair) for pair in pairs], dtype=np.float64)
    counts_AD = np.log2(np.array([other.degrees for other in alike], dtype=np.float64))
    own_D = np.log2(np.array(layout.degrees, dtype=np.float64))
    return np.asarray(np.minimum(np.sqrt(named_A + ((counts_AD - own_D) ** 2).sum(axis=1)), FARTHEST))


@lru_cache(maxsize=65536)
def distance(layout: Layout) -> float:
    """To the nearest measured run."""
    return float(min(distances(layout, measured_layouts()), default=FARTHEST))


def run_class(config: TrainingConfig, rates: Rates) -> str:
    """Runs that are about as hard to predict: by kind of model or by training code, and whether the shape is known."""
    known = MEASURED if rates.shapes.knows(main_shape(config)) else ""
    layers = [layer for layer, _ in config.arch.layer_groups()]
    if any(isinstance(layer.mixer, LinearAttention) for layer in layers):
        return f"hybrid{known}"
    if any(isinstance(layer.ffn, MoeFfn) for layer in layers):
        return f"moe{known}"
    if config.task != "pretrain":
        return f"{config.task}{known}"
    return f"{config.framework.name} {config.machine.generation}{known}"


def step_interval_s(config: TrainingConfig, step_s: float, rates: Rates) -> tuple[float, float]:
    """The 80 % interval of a step; the step itself where the calibration has none."""
    low, high = rates.spread.get(run_class(config, rates)) or rates.spread.get("all") or (0.0, 0.0)
    wider = 1.0 + rates.spread_by_distance * distance(layout_of(config)) if rates.spread_by_distance else 1.0
    return step_s * exp(wider * min(low, 0.0)), step_s * exp(wider * max(high, 0.0))

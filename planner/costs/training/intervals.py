"""80 % prediction intervals of training step times: by class of run, wider with the distance from measured layouts.

The logarithms of a class's interval are stretched by 1 + `spread_by_distance` d, d being the distance of a run's layout
from the nearest measured run of its kind: doublings of tp, pp, cp, ep and micro-batch, and one unit each for another
ZeRO stage, training code, generation of GPUs or format, added as squares. `measured_layouts.csv` has the layouts;
`benchmarks/training.py --write` writes it with the spread, from runs whose group the fit had not seen.
"""

import csv
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from importlib import resources
from math import exp
from typing import NamedTuple

import numpy as np

from planner.arrays import Floats
from planner.costs.training.config import TrainingConfig
from planner.costs.training.measured_ranges import kind_of
from planner.costs.training.rates import Rates
from planner.costs.training.shapes import main_shape
from planner.models.architecture import LinearAttention, MoeFfn

MEASURED = " measured"  # behind the class of runs whose shape is one of the measured ones
FARTHEST = 4.0  # beyond it, intervals widen no more


class Layout(NamedTuple):
    """What the distance between two runs is counted from; names must match, numbers are doublings."""

    kind: str
    code: str
    generation: str
    precision: str
    zero_stage: int
    tp: int
    pp: int
    cp: int
    ep: int
    micro_batch: int

    @property
    def degrees(self) -> tuple[int, ...]:
        """What is counted in doublings."""
        return self.tp, self.pp, self.cp, self.ep, self.micro_batch


COUNTED = 5  # the first place of `Layout` that is counted in doublings
NAMES, NUMBERS = Layout._fields[:4], Layout._fields[4:]


def layout_of(config: TrainingConfig) -> Layout:
    """The layout of a run."""
    degrees = (config.tp, config.pp, config.cp, config.ep, config.micro_batch)
    code, generation = config.framework.name, config.machine.generation
    return Layout(kind_of(config), code, generation, config.precision, config.zero_stage, *degrees)


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


@cache
def measured_layouts() -> tuple[Layout, ...]:
    """The layouts of the runs that the shipped rates are fitted to."""
    text = resources.files("planner.costs.training").joinpath("measured_layouts.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    return tuple(Layout._make([*(row[n] for n in NAMES), *(int(row[n]) for n in NUMBERS)]) for row in rows)


def written(layouts: Iterable[Layout]) -> Iterator[str]:
    """The lines of a table of these layouts, each once."""
    yield ",".join(Layout._fields)
    for layout in sorted(set(layouts)):
        yield ",".join(map(str, layout))


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

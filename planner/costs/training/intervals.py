"""80 % prediction intervals of training step times, by class of run."""

from math import exp

from planner.costs.training.config import TrainingConfig
from planner.costs.training.rates import Rates
from planner.costs.training.shapes import main_shape
from planner.models.architecture import LinearAttention, MoeFfn

MEASURED = " measured"  # behind the class of runs whose shape is one of the measured ones


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
    return step_s * exp(min(low, 0.0)), step_s * exp(max(high, 0.0))

"""How far measured steps lie from predicted ones: 80 % intervals by class of run."""

from math import exp

from planner.costs.training.config import TrainingConfig
from planner.costs.training.rates import Rates
from planner.models.architecture import LinearAttention, MoeFfn


def run_class(config: TrainingConfig) -> str:
    """Runs that are about as hard to predict."""
    layers = [layer for layer, _ in config.arch.layer_groups()]
    if any(isinstance(layer.mixer, LinearAttention) for layer in layers):
        return "hybrid"
    if any(isinstance(layer.ffn, MoeFfn) for layer in layers):
        return "moe"
    if config.task != "pretrain":
        return config.task
    return f"{config.framework.name.partition('_')[0]} {config.machine.generation}"


def step_interval_s(config: TrainingConfig, step_s: float, rates: Rates) -> tuple[float, float]:
    """The 80 % interval of a step; the step itself where the calibration has none."""
    low, high = rates.spread.get(run_class(config)) or rates.spread.get("all") or (0.0, 0.0)
    return step_s * exp(min(low, 0.0)), step_s * exp(max(high, 0.0))

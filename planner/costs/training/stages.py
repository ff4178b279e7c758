"""What the stages of a training pipeline hold: layers, those computed again whole, and the ends of the model."""

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from planner.costs.training.config import TrainingConfig, layer_runs, stage_layers
from planner.models.architecture import Layer

Part = Literal["layer", "embedding", "loss", "mtp"]


@dataclass(frozen=True, slots=True)
class StagePart:
    """Equal parts of a stage: decoder layers, `full` of them computed again whole, or an end of the model."""

    part: Part
    layer: Layer | None
    count: int = 1
    full: int = 0


def stage_contents(config: TrainingConfig) -> tuple[tuple[StagePart, ...], ...]:
    """What each of the pp x vpp stages holds, in the order in which a micro-batch passes them.

    Full recomputation takes the first layers of each stage, as Megatron-LM's block method does.
    """
    contents: list[list[StagePart]] = []
    full_layers = config.recompute.num_layers or config.arch.num_layers
    full_layers = full_layers if config.recompute.granularity == "full" else 0
    first = 0
    for count, runs in zip(stage_layers(config), layer_runs(config.arch.layers, stage_layers(config)), strict=True):
        again = Counter(config.arch.layers[first : first + min(count, full_layers)])
        contents.append([StagePart("layer", layer, number, again[layer]) for layer, number in runs])
        first += count
    contents[0].append(StagePart("embedding", None))
    contents[-1].append(StagePart("loss", None))
    contents[-1] += [StagePart("mtp", layer) for layer in config.arch.mtp_layers]
    return tuple(tuple(parts) for parts in contents)

"""What sequences hold beside text, as problems state it, and what towers and generators see of the mean sequence."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from planner.costs.operators.towers import TowerLoad
from planner.costs.training.modalities.networks import Trained
from planner.models.architecture import Encoder
from planner.plan.records import Count
from planner.schema.base import Spec

Frozen = Literal["encoder", "projector", "generator"]
ModulesUse = Literal["colocated", "apart"]
GENERATORS = ("unet",)
"""Kinds of modules that are priced by their operations a pixel."""


class Images(Spec):
    """Images of one size."""

    width: Count = Field(description="in pixels")
    height: Count = Field(description="in pixels")
    count: Count = 1


def _seconds(value: object) -> object:
    return value if isinstance(value, (list, tuple)) else (value,)


Sounds = Annotated[tuple[Annotated[float, Field(gt=0)], ...], BeforeValidator(_seconds)]


class Sample(Spec):
    """Sequences of one make, `share` of all."""

    share: Annotated[float, Field(gt=0)] = Field(description="of the sequences, as a weight")
    images: tuple[Images, ...] = Field(default=(), description="that a vision tower sees, their tokens among the rest")
    audio_s: Sounds = Field(default=(), description="sounds that an audio tower hears, each so many seconds long")
    generated: tuple[Images, ...] = Field(default=(), description="images that a generator is trained to make")


def inputs_of(encoder: Encoder, sample: Sample) -> Iterator[tuple[int, int]]:
    """(tokens, how often) of the pieces that the tower attends within: images, or chunks of what it is cut into."""
    if encoder.kind == "audio":
        pieces = [(encoder.tokens_of_sound(seconds), 1) for seconds in sample.audio_s]
    else:
        pieces = [(encoder.tokens_of_image(image.width, image.height), image.count) for image in sample.images]
    for tokens, count in pieces:
        if encoder.chunk_tokens:
            yield encoder.chunk_tokens, count * tokens // encoder.chunk_tokens
        else:
            yield tokens, count


def decoder_tokens(encoder: Encoder, sample: Sample) -> int:
    """Tokens of the language model that the sample's inputs become."""
    return sum(tokens * count for tokens, count in inputs_of(encoder, sample)) // encoder.merge


def tower_load(encoder: Encoder, samples: tuple[Sample, ...]) -> TowerLoad:
    """What the tower sees of the mean sequence."""
    whole = sum(sample.share for sample in samples)
    rows = [(s.share / whole, tokens, count) for s in samples for tokens, count in inputs_of(encoder, s)]
    total = sum(share * tokens * count for share, tokens, count in rows)
    squares = sum(share * tokens**2 * count for share, tokens, count in rows)
    return TowerLoad(total, squares / total if total else 0.0)


def generated_pixels(samples: tuple[Sample, ...]) -> tuple[float, int]:
    """Pixels that are generated for the mean sequence, and those of the largest image."""
    whole = sum(sample.share for sample in samples)
    images = [(sample.share / whole, image) for sample in samples for image in sample.generated]
    mean = sum(share * image.width * image.height * image.count for share, image in images)
    return mean, max((image.width * image.height for _, image in images), default=0)


def trained(frozen: tuple[Frozen, ...], task: str) -> Trained:
    """What of a tower learns: nothing under LoRA, whose adapters stand beside the language model's attention."""
    return Trained("encoder" not in frozen and task != "lora", "projector" not in frozen and task != "lora")

"""Weight formats that a GPU may have no kernel for, or no units: what an engine then does."""

from collections.abc import Collection
from dataclasses import dataclass

from planner.engines.release import Release, WeightFormat, numbers
from planner.engines.serving.registry import SERVING_ENGINES
from planner.hardware.accelerator import Accelerator
from planner.models.architecture import Architecture, MoeFfn


@dataclass(frozen=True, slots=True)
class StoredOnly:
    """A format that a GPU cannot multiply: the engine stores weights in it and computes in 16 bits."""

    precision: str
    format: WeightFormat


def weight_formats(arch: Architecture) -> frozenset[str]:
    """The formats of the matrices of a model."""
    parts = arch.precisions
    return frozenset((parts.attention, parts.output_projection, parts.ffn, parts.experts, parts.shared_experts))


_FAMILIES = {"fp8_block": "fp8", "fp16": "bf16", "fp32": "bf16"}
"""Formats that count as one: scales are the checkpoint's matter, and plain floats are converted by every engine."""


def stored_formats(arch: Architecture) -> frozenset[str]:
    """Families of the weight formats inside the published checkpoint of a model."""
    precisions = arch.precisions
    experts = any(isinstance(layer.ffn, MoeFfn) for layer in arch.layers)
    parts = precisions.attention, precisions.experts if experts else precisions.ffn
    return frozenset(_FAMILIES.get(part, part) for part in parts)


def as_stored(weights: str, stored: frozenset[str]) -> bool:
    """Whether a checkpoint brings weights in a format; one of which nothing is known is plain floats."""
    wanted = _FAMILIES.get(weights, weights)
    return wanted in stored or (wanted == "bf16" and not stored)


def made_while_loading(weights: str, stored: frozenset[str], made: Collection[str]) -> bool:
    """Whether an engine that makes some formats of plain floats makes this one of a checkpoint."""
    return weights in made and stored <= {"bf16"}


def runs_on(engine: str, gpu: Accelerator) -> bool:
    """Whether the engine runs on GPUs of that vendor at all."""
    vendors = SERVING_ENGINES[engine].vendors
    return not vendors or gpu.vendor in vendors


def unloadable(release: Release, precision: str, gpu: Accelerator) -> WeightFormat | None:
    """The rule by which the engine has no kernel for a format on a GPU; None where it has one, or no rule is known."""
    known = _rule(release, precision, gpu)
    return known if known is not None and numbers(gpu.compute_capability) < numbers(known.loads_from) else None


def stored_only(release: Release, precision: str, gpu: Accelerator) -> StoredOnly | None:
    """What the engine does where the GPU has no units for a format; None where it has, or no rule is known."""
    known = _rule(release, precision, gpu)
    if known is None or numbers(gpu.compute_capability) >= numbers(known.multiplies_from):
        return None
    return StoredOnly(precision, known)


def _rule(release: Release, precision: str, gpu: Accelerator) -> WeightFormat | None:
    """Capabilities number NVIDIA's GPUs alone."""
    return release.weights.get(precision) if gpu.vendor == "nvidia" else None

"""Weight formats that a GPU may have no kernel for, or no units: what an engine then does."""

from dataclasses import dataclass

from planner.engines.release import Release, WeightFormat, numbers
from planner.hardware.accelerator import Accelerator
from planner.models.architecture import Architecture


@dataclass(frozen=True, slots=True)
class StoredOnly:
    """A format that a GPU cannot multiply: the engine stores weights in it and computes in 16 bits."""

    precision: str
    format: WeightFormat


def weight_formats(arch: Architecture) -> frozenset[str]:
    """The formats of the matrices of a model."""
    parts = arch.precisions
    return frozenset((parts.attention, parts.output_projection, parts.ffn, parts.experts, parts.shared_experts))


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

"""How an engine may lay one instance on devices: rules by name, of shapes and of drafts."""

from collections.abc import Callable, Sequence
from typing import Protocol

from planner.engines.release import Release
from planner.models.architecture import (
    Architecture,
    DenseFfn,
    GroupedQueryAttention,
    LatentAttention,
    LinearAttention,
    Mixer,
    MoeFfn,
)


class Degrees(Protocol):
    """Parallel sizes of an instance: attention on tp x dp ranks of each of pp stages, experts on moe_tp x ep."""

    @property
    def tp(self) -> int: ...
    @property
    def pp(self) -> int: ...
    @property
    def dp(self) -> int: ...
    @property
    def moe_tp(self) -> int: ...
    @property
    def ep(self) -> int: ...
    @property
    def micro_batches(self) -> int: ...


def _is_deepseek(mixers: Sequence[Mixer | None]) -> bool:
    """Latent attention in every layer, none of which reads the tokens that another layer's indexer chose."""
    shared = any(isinstance(m, LatentAttention) and m.indexer is not None and m.indexer.shared for m in mixers)
    return all(isinstance(mixer, LatentAttention) for mixer in mixers) and not shared


def _is_qwen3(mixers: Sequence[Mixer | None]) -> bool:
    """Grouped queries with normalised queries and keys, without windows."""
    return all(isinstance(m, GroupedQueryAttention) and m.qk_norm and not m.window_tokens for m in mixers)


def _of_other_models(arch: Architecture) -> bool:
    mixers = [layer.mixer for layer in arch.layers]
    return not (_is_deepseek(mixers) or _is_qwen3(mixers))


def _hybrid(arch: Architecture) -> bool:
    return any(isinstance(layer.mixer, LinearAttention) for layer in arch.layers)


BLOCK = 128  # rows and columns of a weight in fp8_block that share a scale (DeepSeek-V3, arXiv:2412.19437, 3.3.2)


def cuts_blocks(arch: Architecture, tp: int, moe_tp: int) -> bool:
    """Whether a shard's width of a feed-forward layer in fp8_block is no multiple of a block."""
    formats = arch.precisions
    for layer, _ in arch.layer_groups():
        widths: list[tuple[str, float]] = []
        match layer.ffn:
            case DenseFfn() as ffn:
                widths = [(formats.ffn, ffn.intermediate_size / tp)]
            case MoeFfn() as ffn:
                shared = ffn.shared_intermediate_size / tp
                widths = [(formats.experts, ffn.intermediate_size / moe_tp), (formats.shared_experts, shared)]
            case _:
                pass
        if any(name == "fp8_block" and width % BLOCK for name, width in widths):
            return True
    return False


def _has_experts(arch: Architecture) -> bool:
    return any(isinstance(layer.ffn, MoeFfn) for layer in arch.layers)


SHAPES: dict[str, Callable[[Degrees, Architecture], bool]] = {
    "experts-split-one-way": lambda shape, arch: shape.ep not in (1, shape.tp * shape.dp) and _has_experts(arch),
    "whole-blocks": lambda shape, arch: cuts_blocks(arch, shape.tp, shape.moe_tp),
    "attention-split-one-way": lambda shape, _: shape.dp > 1 and shape.tp > 1,
    "no-two-batches": lambda shape, _: shape.micro_batches > 1,
    "no-two-batches-in-stages": lambda shape, _: shape.micro_batches > 1 and shape.pp > 1,
    "no-two-batches-of-hybrids": lambda shape, arch: shape.micro_batches > 1 and _hybrid(arch),
    "two-batches-of-deepseek-and-qwen3": lambda shape, arch: shape.micro_batches > 1 and _of_other_models(arch),
}
"""Whether a rule is broken by a shape of a model."""

DRAFTS: dict[str, Callable[[Degrees, str], bool]] = {
    "drafts-in-one-stage": lambda shape, _: shape.pp > 1,
    "no-drafts-in-two-batches": lambda shape, _: shape.micro_batches > 1,
    "no-draft-model-on-data-parallel-ranks": lambda shape, method: method == "model" and shape.dp > 1,
}
"""Whether a rule is broken by a shape that drafts by a method."""


def shape_rule(release: Release, shape: Degrees, arch: Architecture) -> str | None:
    """Why the engine cannot run a shape of a model; None where it can."""
    return next((rule.why for rule in release.shapes if SHAPES[rule.name](shape, arch)), None)


def draft_rule(release: Release, shape: Degrees, method: str) -> str | None:
    """Why the engine cannot draft by a method on a shape; None where it can."""
    return next((rule.why for rule in release.drafts if DRAFTS[rule.name](shape, method)), None)

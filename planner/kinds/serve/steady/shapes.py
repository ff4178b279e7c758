"""Parallel shapes (tp, pp, dp, ep ...) of one instance that model, node and engine allow.

The full product of powers of two is the space; what cannot run is counted by the rule that forbids it.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from planner.costs.serving.speculation import Drafter
from planner.engines.parallelism import draft_rule, shape_rule
from planner.engines.release import Release
from planner.hardware.cluster import Pool
from planner.kinds.serve.options import ServeOptions
from planner.models.architecture import (
    Architecture,
    DenseFfn,
    GroupedQueryAttention,
    LatentAttention,
    LinearAttention,
    MoeFfn,
)
from planner.plan.instance_types import type_degrees
from planner.plan.records import BY_NUMBER

MAX_TP = 64
MAX_PP = 16


@dataclass(frozen=True, slots=True, order=True)
class InstanceShape:
    """Attention on tp x dp ranks of each of pp stages, experts on moe_tp x ep = tp x dp; halves of a step, if cut."""

    tp: int
    pp: int
    dp: int
    moe_tp: int
    ep: int
    micro_batches: int = 1
    pieces: int = 1  # runs of stages that each stand in one domain, and together in any
    redundant: int = BY_NUMBER  # experts of a layer that are copied, all placed by load

    @property
    def devices(self) -> int:
        return self.tp * self.pp * self.dp

    @property
    def degrees(self) -> tuple[int, ...]:
        """Those of `all_degrees` that the type is named by."""
        return type_degrees(self.all_degrees)

    @property
    def sizes(self) -> tuple[int, int, int, int, int]:
        """tp, pp, dp, moe_tp and ep."""
        return self.tp, self.pp, self.dp, self.moe_tp, self.ep

    @property
    def all_degrees(self) -> tuple[int, ...]:
        """The sizes, micro-batches, pieces and redundant experts: what `Shards.of` takes."""
        return (*self.sizes, self.micro_batches, self.pieces, self.redundant)

    @property
    def limits(self) -> dict[str, float | int | str]:
        """Limits of a role of this shape, as far as they are not what all have."""
        stated = {"micro_batches": self.micro_batches, "pieces": self.pieces, "redundant_experts": self.redundant}
        plain = {"redundant_experts": BY_NUMBER}
        return {name: value for name, value in stated.items() if value != plain.get(name, 1)}

    @property
    def label(self) -> str:
        """Short name, such as `tp4` or `tp2dp8ep16`; expert tensor parallelism is written `mtp`."""
        parts = [("tp", self.tp), ("pp", self.pp), ("dp", self.dp)]
        moe = [("mtp", self.moe_tp), ("ep", self.ep)] if self.dp > 1 or self.ep > 1 else []
        named = "".join(f"{name}{size}" for name, size in (*parts, *moe) if size > 1)
        cut = f" in {self.pieces} pieces" if self.pieces > 1 else ""
        placed = f" with {self.redundant} redundant experts" if self.redundant != BY_NUMBER else ""
        return f"{named or 'tp1'}{cut}{' in two batches' if self.micro_batches > 1 else ''}{placed}"


@dataclass(slots=True)
class ShapeSpace:
    """Shapes that can run, the values of each axis, and the rule that forbids each of the others."""

    shapes: list[InstanceShape]
    axes: dict[str, list[int]]
    forbidden: dict[InstanceShape, str] = field(default_factory=dict)

    @property
    def pruned(self) -> dict[str, int]:
        """How many shapes each rule forbids."""
        return dict(Counter(self.forbidden.values()))


def shape_space(arch: Architecture, pool: Pool, release: Release, options: ServeOptions) -> ShapeSpace:
    """All shapes of `arch` on `pool`, smallest first."""
    cap = min(pool.num_gpus, options.max_gpus_per_instance or pool.num_gpus)
    moe = [layer.ffn for layer in arch.layers if isinstance(layer.ffn, MoeFfn)]
    experts = max((ffn.num_experts for ffn in moe), default=1)
    axes = {
        "tp": _axis(options.tp, min(cap, MAX_TP)),
        "pp": _axis(options.pp, min(cap, MAX_PP)),
        "dp": _axis(options.dp, cap) if moe else [1],
        "ep": _axis(options.ep, min(cap, experts)) if moe else [1],
    }
    space = ShapeSpace([], axes)
    cuts = [parts for overlap, parts in (("off", 1), ("two-batch", 2)) if overlap in options.overlap]
    for tp, pp, dp, ep in itertools.product(axes["tp"], axes["pp"], axes["dp"], axes["ep"]):
        for micro_batches, redundant in itertools.product(cuts, options.searched_copies) if (tp * dp) % ep == 0 else ():
            shape = InstanceShape(tp, pp, dp, tp * dp // ep, ep, micro_batches, redundant=redundant)
            rule = _forbidden(shape, arch, pool, release, cap)
            if rule is None:
                space.shapes += [shape, *_in_pieces(shape, pool)]
            else:
                space.forbidden[shape] = rule
    space.shapes.sort(key=lambda shape: (shape.devices, shape))
    return space


def placement_domain(pool: Pool) -> int:
    """Devices that instances are packed into together: a node, or a rack whose nodes share one NVLink domain."""
    return max(pool.node.num_gpus, pool.node.scale_up_size)


def group_devices(pool: Pool) -> int:
    """The largest group of ranks kept inside one domain: the largest power of two that it holds."""
    return 1 << (placement_domain(pool).bit_length() - 1)


def group_size(shape: InstanceShape, pool: Pool) -> int:
    """Devices of an instance that stand in one domain together: all of them, one piece, or as many as it holds."""
    return min(shape.devices // shape.pieces, group_devices(pool))


def _in_pieces(shape: InstanceShape, pool: Pool) -> Iterator[InstanceShape]:
    """The shape in pieces of whole stages, where they fill devices that groups twice as large leave over."""
    if shape.pp == 1 or shape.micro_batches > 1:
        return
    free = np.array([len(devices) for devices in pool.free_domains])
    size, pieces = group_size(shape, pool), 1
    while size > shape.tp * shape.dp and pieces < shape.pp:
        size, pieces = size // 2, shape.devices // (size // 2)
        if (free // size * size).sum() > (free // (2 * size) * (2 * size)).sum():
            yield replace(shape, pieces=pieces)


def _axis(wanted: Iterable[int] | None, largest: int) -> list[int]:
    if wanted is not None:
        return sorted(set(wanted))
    return [1 << power for power in range(largest.bit_length()) if 1 << power <= largest]


def _forbidden(shape: InstanceShape, arch: Architecture, pool: Pool, release: Release, cap: int) -> str | None:
    """The rule that forbids `shape`, None when it can run."""
    group = group_devices(pool)
    if shape.devices > cap:
        return "more devices than the pool has"
    if shape.tp > min(group, pool.node.scale_up_size):
        return "a tensor-parallel group leaves the scale-up domain"
    if max(shape.devices, group) % min(shape.devices, group):
        return "group sizes that do not divide the node"
    if shape.pp > arch.num_layers:
        return "more stages than layers"
    whole = shape_rule(release, replace(shape, micro_batches=1), arch)
    rule = _indivisible(shape, arch) or whole or halving_rule(shape, arch, release)
    return rule or placing_rule(shape, arch)


def _indivisible(shape: InstanceShape, arch: Architecture) -> str | None:
    return heads_rule(shape, arch) or width_rule(shape, arch)


def heads_rule(shape: InstanceShape, arch: Architecture) -> str | None:
    """The rule by which attention cannot be split over tp ranks, None when it can."""
    for layer, _ in arch.layer_groups():
        match layer.mixer:
            case GroupedQueryAttention() as mixer:
                heads, kv = mixer.num_heads, mixer.num_kv_heads
                if heads % shape.tp or (kv % shape.tp and shape.tp % kv):
                    return "attention heads do not divide"
            case LatentAttention() as mixer if mixer.num_heads % shape.tp:
                return "attention heads do not divide"
            case LinearAttention() as mixer if mixer.num_value_heads % shape.tp:
                return "attention heads do not divide"
            case _:
                pass
    return None


def width_rule(shape: InstanceShape, arch: Architecture) -> str | None:
    """The rule by which feed-forward layers cannot be split over tp, moe_tp and ep ranks, None when they can."""
    for layer, _ in arch.layer_groups():
        match layer.ffn:
            case DenseFfn() as ffn if ffn.intermediate_size % shape.tp:
                return "the feed-forward width does not divide"
            case MoeFfn() as ffn if ffn.num_experts % shape.ep or ffn.intermediate_size % shape.moe_tp:
                return "the experts do not divide"
            case _:
                pass
    return None


def drafting_rule(shape: InstanceShape, drafter: Drafter | None, release: Release) -> str | None:
    """The rule by which drafts cannot be made on the ranks of `shape`, None when they can."""
    if drafter is None:
        return None
    rule = draft_rule(release, shape, drafter.method)
    if rule is None and drafter.arch is not None and _indivisible(shape, drafter.arch) is not None:
        return "the drafter does not divide"
    return rule


def halving_rule(shape: InstanceShape, arch: Architecture, release: Release) -> str | None:
    """The rule by which steps cannot be cut in halves that hide each other's exchange, None when they can."""
    if shape.micro_batches == 1:
        return None
    if shape.dp == 1 or shape.ep == 1 or shape.moe_tp > 1:
        return "two batches need whole experts on data-parallel ranks"
    return shape_rule(release, shape, arch)


def placing_rule(shape: InstanceShape, arch: Architecture) -> str | None:
    """The rule by which engines cannot place experts by load as the shape has them, None when they can.

    vLLM's EPLB needs expert parallelism (config/parallel.py: `_validate_parallel_config`) and as many slots on every
    rank, as SGLang's (srt/eplb/expert_location.py) and TensorRT-LLM's do (llmapi/llm_args.py: `MoeLoadBalancerConfig`).
    """
    if shape.redundant != BY_NUMBER and (shape.moe_tp > 1 or shape.pp > 1):
        return "redundant experts are whole, on ranks of one stage"
    return filling_rule(shape, arch)


def filling_rule(shape: InstanceShape, arch: Architecture) -> str | None:
    """The rule by which redundant experts cannot lie on the ranks of a shape, None when they can."""
    if shape.redundant == BY_NUMBER:
        return None
    experts = [layer.ffn.num_experts for layer in arch.layers if isinstance(layer.ffn, MoeFfn)]
    if shape.ep == 1 or not experts:
        return "redundant experts need ranks that share experts"
    if any((count + shape.redundant) % shape.ep for count in experts):
        return "redundant experts do not fill all ranks alike"
    return None

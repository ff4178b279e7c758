"""Whether decoding pays with attention and feed-forward layers apart: the best ratio and micro-batches, or the refusal.

Both ways are searched over the same devices with the same costs: attention on nA devices and feed-forward on nF, whole
nodes each, micro-batches taking turns (`costs.attention_ffn.cycle_s`); or both on every device, experts spread over
all of them, one batch, or two micro-batches of which one computes while the other exchanges. The host is taken to hide
behind the device. What counts is tokens a second and device while a step takes no longer than the limit and all weights
and caches fit.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from planner.costs.attention_ffn import (
    EXCHANGE,
    attention_side_s,
    cycle_s,
    ffn_side_s,
    ffn_weight_bytes,
    num_ffn_layers,
    travelling_bytes,
)
from planner.costs.forward import forward
from planner.costs.memory import kv_cache_bytes, weight_bytes
from planner.costs.parameters import Calibration
from planner.costs.shapes import FloatArray, Shards, Work
from planner.costs.step import Pricer, price_operators
from planner.hardware.cluster import Pool
from planner.kinds.serve.demand import Target
from planner.kinds.serve.options import AttentionFfn
from planner.kinds.serve.points import Place
from planner.models.architecture import Architecture, MoeFfn

LimitedBy: TypeAlias = Literal["attention", "feed-forward", "network", "latency"]
MICRO_BATCHES = (2, 3, 4)
SEQUENCES = np.array([*range(4, 64, 4), *range(64, 256, 8), *range(256, 1025, 32)], dtype=np.float64)
"""Of an attention rank, all micro-batches together."""
DEGREES = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Hall:
    """A model on a pool with its costs: what both ways are searched in."""

    arch: Architecture
    pool: Pool
    pricer: Pricer
    context_tokens: float
    tpot_s: float
    memory_bytes: float  # of one device, workspace aside
    network_bytes_per_s: float  # of one device between nodes, achieved
    hop_s: float  # fixed time of one way between the pools


@dataclass(frozen=True, slots=True)
class Apart:
    """Attention on `attention_gpus` devices, feed-forward on `ffn_gpus`."""

    attention_gpus: int
    ffn_gpus: int
    attention_tp: int
    ffn_tp: int
    ep: int
    micro_batches: int
    sequences: int  # of an attention rank
    step_s: float
    tokens_per_s_per_gpu: float
    limited_by: LimitedBy  # what a step waits for

    @property
    def name(self) -> str:
        """In words."""
        return (
            f"{self.attention_gpus} attention (tp{self.attention_tp}) : {self.ffn_gpus} feed-forward "
            f"(tp{self.ffn_tp}, ep{self.ep}), {self.micro_batches} micro-batches, {self.sequences} sequences a rank"
        )


@dataclass(frozen=True, slots=True)
class Together:
    """Both on every device: attention data-parallel, experts spread over all."""

    gpus: int
    tp: int
    ep: int
    micro_batches: int  # 2: exchanges hide behind the work of the other one
    sequences: int
    step_s: float
    tokens_per_s_per_gpu: float

    @property
    def name(self) -> str:
        """In words."""
        shape = f"{self.gpus} devices, attention tp{self.tp}, experts ep{self.ep}"
        hidden = ", exchanges hidden" if self.micro_batches > 1 else ""
        return f"{shape}{hidden}, {self.sequences} sequences a rank"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The best of both ways; None where no design keeps the limit."""

    apart: Apart | None
    together: Together | None

    @property
    def pays(self) -> bool:
        """Whether a device yields more with the two sides apart."""
        other = 0.0 if self.together is None else self.together.tokens_per_s_per_gpu
        return self.apart is not None and self.apart.tokens_per_s_per_gpu > other

    @property
    def words(self) -> str:
        """The answer in one line."""
        if self.apart is None:
            return "attention and feed-forward apart keep no limit on the time per token"
        rate = f"{self.apart.tokens_per_s_per_gpu:.0f} tokens/s/GPU"
        if self.together is None:
            return f"apart pays: {self.apart.name}: {rate}; together keeps no limit"
        other = f"{self.together.tokens_per_s_per_gpu:.0f} with both together on {self.together.name}"
        return f"apart {'pays' if self.pays else 'does not pay'}: {self.apart.name}: {rate}, {other}"


def weigh(hall: Hall) -> Verdict:
    """Both ways on the devices of the pool; `hall.tpot_s` limits a step."""
    best = max(_apart(hall), key=lambda one: one.tokens_per_s_per_gpu, default=None)
    return Verdict(best, best_together(hall))


def best_together(hall: Hall, micro_batches: tuple[int, ...] = (1, 2)) -> Together | None:
    """The best design with both on every device."""
    return max(_together(hall, micro_batches), key=lambda one: one.tokens_per_s_per_gpu, default=None)


def best_apart(hall: Hall, attention_gpus: int, ffn_gpus: int) -> Apart | None:
    """The best design with so many devices on each side."""
    return max(_apart(hall, ratio=(attention_gpus, ffn_gpus)), key=lambda one: one.tokens_per_s_per_gpu, default=None)


def hall_of(place: Place, target: Target, calibration: Calibration) -> Hall:
    """A model on a pool with the costs of a serving problem; the workload's context and limit."""
    node, known = place.pool.node, calibration.efficiencies
    return Hall(
        arch=place.costs.arch,
        pool=place.pool,
        pricer=place.costs.pricer,
        context_tokens=target.context,
        tpot_s=target.tpot_limit_s,
        memory_bytes=place.memory_bytes - place.costs.engine.workspace_bytes,
        network_bytes_per_s=node.nic_bandwidth_bytes_per_s / place.pool.oversubscription * known.fabric_bandwidth,
        hop_s=node.nic_latency_s + known.collective_start_s,
    )


def advice(place: Place, target: Target, calibration: Calibration) -> AttentionFfn | None:
    """What a plan says of it; None where no design with the two sides apart keeps the limit."""
    verdict = weigh(hall_of(place, target, calibration))
    best = verdict.apart
    if best is None:
        return None
    return AttentionFfn(
        pays=verdict.pays,
        attention_gpus=best.attention_gpus,
        ffn_gpus=best.ffn_gpus,
        attention_tp=best.attention_tp,
        ffn_tp=best.ffn_tp,
        ep=best.ep,
        micro_batches=best.micro_batches,
        sequences=best.sequences,
        tokens_per_s_per_gpu=best.tokens_per_s_per_gpu,
        limited_by=best.limited_by,
        together_tokens_per_s_per_gpu=0.0 if verdict.together is None else verdict.together.tokens_per_s_per_gpu,
    )


def _node_counts(pool: Pool) -> list[int]:
    """Devices of 1, 2, 3, 4, 6, 8, .. whole nodes."""
    found = sorted({base << power for base in (1, 3) for power in range(12) if base << power <= pool.num_nodes})
    return [count * pool.node.num_gpus for count in found]


def _apart(hall: Hall, ratio: tuple[int, int] | None = None) -> Iterator[Apart]:
    """The best design of every ratio, degrees and number of micro-batches."""
    sizes = _node_counts(hall.pool)
    sides = [(one, other) for one in sizes for other in sizes if one + other <= hall.pool.num_gpus]
    sides = sides if ratio is None else [ratio]
    attention = {
        (tp, parts): attention_side_s(hall.arch, hall.pricer, tp, SEQUENCES / parts, hall.context_tokens)
        for tp in _attention_degrees(hall)
        for parts in MICRO_BATCHES
    }
    used_bytes = {tp: _attention_bytes(hall, tp) for tp, _ in attention}
    for ffn_gpus in dict.fromkeys(other for _, other in sides):
        for shards in _ffn_shapes(hall, ffn_gpus):
            seconds_of = ffn_side_s(hall.arch, hall.pricer, shards)
            way = travelling_bytes(hall.arch, float(shards.ep[0]))
            for (tp, parts), attention_s in attention.items():
                for attention_gpus in (one for one, other in sides if other == ffn_gpus and one % tp == 0):
                    tokens = SEQUENCES / parts * (attention_gpus / tp)
                    times = (attention_s, seconds_of(tokens), *_ways(hall, way, tokens, attention_gpus, ffn_gpus))
                    fits = used_bytes[tp] <= hall.memory_bytes
                    yield from _best(hall, times, fits, tp, parts, attention_gpus, shards)


def _best(
    hall: Hall,
    times: tuple[FloatArray, FloatArray, FloatArray, FloatArray],
    fits: NDArray[np.bool_],
    tp: int,
    parts: int,
    attention_gpus: int,
    shards: Shards,
) -> Iterator[Apart]:
    """The largest batch that keeps the limit and fits."""
    step_s = cycle_s(*times, parts)
    fits = fits & (step_s <= hall.tpot_s)
    if not fits.any():
        return
    at, ffn_gpus = int(np.flatnonzero(fits)[-1]), int(shards.devices[0])
    each = [float(seconds[at]) * parts for seconds in times]
    names: tuple[LimitedBy, ...] = ("attention", "feed-forward", "network", "network")
    slowest = int(np.argmax(each))
    yield Apart(
        attention_gpus=attention_gpus,
        ffn_gpus=ffn_gpus,
        attention_tp=tp,
        ffn_tp=int(shards.tp[0]),
        ep=int(shards.ep[0]),
        micro_batches=parts,
        sequences=int(SEQUENCES[at]),
        step_s=float(step_s[at]),
        tokens_per_s_per_gpu=float(SEQUENCES[at] * attention_gpus / tp / step_s[at] / (attention_gpus + ffn_gpus)),
        limited_by=names[slowest] if each[slowest] >= float(step_s[at]) * (1.0 - 1e-9) else "latency",
    )


def _ways(
    hall: Hall, way_bytes: tuple[float, float], tokens: FloatArray, attention_gpus: int, ffn_gpus: int
) -> tuple[FloatArray, FloatArray]:
    """Seconds of a micro-batch on its way there and back, all layers: the narrower side sets the pace [N]."""
    narrower = min(attention_gpus, ffn_gpus) * hall.network_bytes_per_s
    fixed_s = num_ffn_layers(hall.arch) * hall.hop_s
    return tokens * way_bytes[0] / narrower + fixed_s, tokens * way_bytes[1] / narrower + fixed_s


def _attention_bytes(hall: Hall, tp: int) -> FloatArray:
    """Of one attention device: its weights, and the cache of all its sequences [N]."""
    alone = Shards.of(tp, 1, 1, tp, 1)
    weights = float(weight_bytes(hall.arch, alone)[0] - ffn_weight_bytes(hall.arch, alone)[0])
    cache = float(kv_cache_bytes(hall.arch, alone, np.array([hall.context_tokens]))[0])
    return weights + cache * SEQUENCES


def _attention_degrees(hall: Hall) -> list[int]:
    heads = {getattr(layer.mixer, "num_heads", 0) for layer in hall.arch.layers}
    largest = min(hall.pool.node.num_gpus, hall.pool.node.scale_up_size)
    return [tp for tp in DEGREES if tp <= largest and all(count % tp == 0 for count in heads)]


def _ffn_shapes(hall: Hall, gpus: int) -> Iterator[Shards]:
    """Tensor and expert degrees of the feed-forward side whose weights fit its devices."""
    experts = [layer.ffn.num_experts for layer in hall.arch.layers if isinstance(layer.ffn, MoeFfn)]
    for tp in DEGREES:
        if tp > min(gpus, hall.pool.node.num_gpus):
            continue
        for ep in [1 << power for power in range(int(math.log2(gpus)) + 1)] if experts else [1]:
            if gpus % (tp * 1) or gpus % ep or (experts and max(experts) % ep):
                continue
            shards = Shards.of(tp, 1, gpus // tp, gpus // ep, ep)
            if float(ffn_weight_bytes(hall.arch, shards)[0]) <= hall.memory_bytes:
                yield shards


def _together(hall: Hall, micro_batches: tuple[int, ...]) -> Iterator[Together]:
    """The best batch of every size, attention degree and number of micro-batches."""
    experts = [layer.ffn.num_experts for layer in hall.arch.layers if isinstance(layer.ffn, MoeFfn)]
    for gpus in (1 << power for power in range(int(math.log2(hall.pool.num_gpus)) + 1)):
        for tp in _attention_degrees(hall):
            if gpus % tp or (not experts and gpus != tp) or (experts and max(experts) % gpus):
                continue
            for parts in micro_batches:
                yield from _best_together(hall, gpus, tp, gpus if experts else 1, parts)


def _best_together(hall: Hall, gpus: int, tp: int, ep: int, parts: int) -> Iterator[Together]:
    shards = Shards.of(np.full(len(SEQUENCES), float(tp)), 1, gpus // tp, gpus // ep if ep > 1 else tp, ep)
    operators = list(forward(hall.arch, shards, Work.decode(SEQUENCES / parts, hall.context_tokens)))
    exchanges = [op for op in operators if op.name in EXCHANGE]
    compute = [op for op in operators if op.name not in EXCHANGE]
    work_s, way_s = (price_operators(ops, hall.pricer, len(SEQUENCES)).device_s for ops in (compute, exchanges))
    step_s = np.maximum(work_s + way_s, parts * np.maximum(work_s, way_s))
    cache = kv_cache_bytes(hall.arch, shards, np.full(len(SEQUENCES), hall.context_tokens)) * SEQUENCES
    fits = (step_s <= hall.tpot_s) & (weight_bytes(hall.arch, shards) + cache <= hall.memory_bytes)
    if fits.any():
        at = int(np.flatnonzero(fits)[-1])
        rate = float(SEQUENCES[at] / tp / step_s[at])
        yield Together(gpus, tp, ep, parts, int(SEQUENCES[at]), float(step_s[at]), rate)

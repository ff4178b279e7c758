"""Attention-FFN disaggregation (AFD): cost of a decoded token on attention devices and on feed-forward devices.

Source: Wang et al., "Step-3 is Large yet Affordable: Model-system Co-design for Cost-effective Decoding",
arXiv:2507.19427, sections 3 (costs of a token) and 7 (the pipeline of micro-batches). N points.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike

from planner.arrays import Bools, Floats, Indices
from planner.costs.operators.experts import distinct_places
from planner.costs.operators.forward import forward
from planner.costs.operators.kernels import (
    Collective,
    Operator,
    bytes_per,
    quantises,
)
from planner.costs.operators.work import Shards, Work
from planner.costs.rates.calibration import Efficiencies
from planner.costs.rates.engine_overheads import EngineOverheads
from planner.costs.rates.overlap import cycle_s
from planner.costs.rates.pricer import Pricer
from planner.costs.rates.step import StepTime, host_s, price_operators
from planner.hardware.cluster import Pool
from planner.models.architecture import Architecture, DenseFfn, Ffn, MoeFfn
from planner.plan.records import BY_NUMBER

FFN_PARTS = frozenset(
    {"ffn_up", "ffn_activation", "ffn_down", "shared_expert_up", "shared_expert_activation", "shared_expert_down"}
    | {"latent_down", "latent_up", "experts", "expert_combine"}
)
"""Operators of the feed-forward side. The router is not among them: where a token goes is known before it leaves."""
ROUTER = frozenset({"router", "router_top_k"})
EXCHANGE = frozenset(
    {"dispatch", "combine", "moe_all_gather", "moe_all_gather_tokens", "moe_reduce_scatter", "ffn_all_reduce"}
    | {"moe_all_reduce"}
)
"""What ranks that hold both sides exchange, in whose place activations travel, and are gathered and summed there."""
ACTIVATION_BYTES = 2.0  # of what comes back
STAGES = ("attention", "network", "feed-forward", "network", "host")


@dataclass(frozen=True, slots=True)
class Units:
    """Instances with the sides apart [N]: `ranks` attention ranks of `tp` devices, and `ep` groups of `ffn_tp` others.

    Experts are spread over the groups; each shard of an expert, and of a dense layer, is one device's. Devices of the
    two sides are `stride` apart: 1 where all share one scale-up domain, else the size of a domain. Experts are copied
    and placed as `Shards` has them.
    """

    tp: Floats
    ranks: Floats
    ffn_tp: Floats
    ep: Floats
    micro_batches: Floats
    stride: Floats
    redundant: Floats

    @classmethod
    def of(
        cls, tp: ArrayLike, ranks: ArrayLike, ffn_tp: ArrayLike, ep: ArrayLike, micro_batches: ArrayLike,
        stride: ArrayLike, redundant: ArrayLike = BY_NUMBER,
    ) -> "Units":  # fmt: skip
        """Broadcast the given numbers to one length."""
        given = (tp, ranks, ffn_tp, ep, micro_batches, stride, redundant)
        return cls(*np.broadcast_arrays(*(np.atleast_1d(np.asarray(number, dtype=np.float64)) for number in given)))

    @classmethod
    def within(
        cls, tp: ArrayLike, ranks: ArrayLike, ffn_tp: ArrayLike, ep: ArrayLike, micro_batches: ArrayLike, reach: int,
        redundant: ArrayLike = BY_NUMBER,
    ) -> "Units":  # fmt: skip
        """Units that share a scale-up domain of `reach` devices where they fit one, and else stand on several."""
        devices = np.asarray(tp) * np.asarray(ranks) + np.asarray(ffn_tp) * np.asarray(ep)
        return cls.of(tp, ranks, ffn_tp, ep, micro_batches, np.where(devices <= reach, 1, reach), redundant)

    @property
    def attention_gpus(self) -> Floats:
        return self.tp * self.ranks

    @property
    def ffn_gpus(self) -> Floats:
        return self.ffn_tp * self.ep

    @property
    def attention(self) -> Shards:
        """Degrees of the attention side as a model of its own."""
        return Shards.of(self.tp, 1, 1, self.tp, 1)

    @property
    def ffn(self) -> Shards:
        """Degrees of the feed-forward side as a model of its own, a data-parallel rank a group."""
        return Shards.of(self.ffn_tp, 1, self.ep, self.ffn_tp, self.ep, redundant=self.redundant)

    def __len__(self) -> int:
        return len(self.tp)

    def take(self, index: Indices | Bools) -> "Units":
        """The chosen ones."""
        return Units(*(getattr(self, field.name)[index] for field in fields(self)))


@dataclass(frozen=True, slots=True)
class UnitStep:
    """A step of all layers: seconds [N] that one micro-batch takes at each of `STAGES`, and the step time."""

    stages: tuple[Floats, ...]
    seconds: Floats
    attention: StepTime
    ffn: StepTime

    def waits_for(self, point: int, micro_batches: float) -> str:
        """What sets the pace at one point: a stage that is always busy, or else the round of a micro-batch."""
        each = [float(stage[point]) * micro_batches for stage in self.stages]
        slowest = max(range(len(each)), key=each.__getitem__)
        return STAGES[slowest] if each[slowest] >= float(self.seconds[point]) * (1.0 - 1e-9) else "latency"


@dataclass(frozen=True, slots=True)
class Port:
    """How one device of a pool reaches devices of another."""

    bytes_per_s: float  # achieved
    hop_s: float  # fixed time of a message

    @classmethod
    def of(cls, pool: Pool, known: Efficiencies) -> "Port":
        """That of a pool's network adapters."""
        rate = pool.node.nic_bandwidth_bytes_per_s / pool.oversubscription * known.fabric_bandwidth
        return cls(rate, pool.node.nic_latency_s + known.collective_start_s)


@dataclass(frozen=True, slots=True)
class RemoteFfn:
    """A feed-forward side in another pool: its kernels, and the ports of both sides."""

    pricer: Pricer
    attention: Port
    ffn: Port

    def way_s(self, arch: Architecture, units: Units, tokens: Floats, *, out: bool) -> Floats:
        """Seconds of a micro-batch on its way there or back, all layers: the slower side sets the pace [N]."""
        slower = np.minimum(units.attention_gpus * self.attention.bytes_per_s, units.ffn_gpus * self.ffn.bytes_per_s)
        hop_s = max(self.attention.hop_s, self.ffn.hop_s)
        size = tokens * travelling_bytes(arch, units.ep)[0 if out else 1]
        return np.asarray(size / slower + num_ffn_layers(arch) * hop_s)


def unit_step(
    arch: Architecture, pricer: Pricer, engine: EngineOverheads, units: Units, work: Work, far: RemoteFfn | None = None
) -> UnitStep:
    """A step in which every attention rank does `work` for each of its micro-batches [N].

    Where ranks do not bring the same tokens, `work` is that of the slowest and has those of the mean one besides.
    """
    rows = units.ranks * work.shared_tokens
    attention = attention_side(arch, pricer, units.attention, work)
    ffn = ffn_side(arch, pricer if far is None else far.pricer, units.ffn, rows)
    there, back = (
        _way_s(arch, pricer, units, rows, out=out) if far is None else far.way_s(arch, units, rows, out=out)
        for out in (True, False)
    )
    host = host_s(units.attention, work, engine)
    stages = (attention.device_s, there, ffn.device_s, back, host)
    return UnitStep(stages, cycle_s(stages, units.micro_batches), attention, ffn)


def attention_side(arch: Architecture, pricer: Pricer, shards: Shards, work: Work) -> StepTime:
    """One micro-batch on an attention rank, all layers; embedding, router and output matrix are there."""
    operators = [op for op in forward(arch, shards, work) if op.name not in FFN_PARTS and op.name not in EXCHANGE]
    return price_operators(operators, pricer, len(shards))


def ffn_side(arch: Architecture, pricer: Pricer, shards: Shards, tokens: Floats) -> StepTime:
    """All feed-forward layers of `tokens` tokens, those of all attention ranks together.

    A group gathers the tokens that its devices received and scatters the sums of its shards, as Step-3's does (section
    7.1).
    """
    work = Work.decode(tokens / shards.dp, np.ones(len(shards)))
    operators = [op for op in forward(arch, shards, work) if op.name in FFN_PARTS]
    return price_operators([*operators, *_inside_groups(arch, shards, tokens)], pricer, len(shards))


def _inside_groups(arch: Architecture, shards: Shards, tokens: Floats) -> Iterator[Operator]:
    if np.all(shards.tp <= 1):
        return
    beside = np.ones(len(shards))
    for layer, count in arch.layer_groups():
        if layer.ffn is not None:
            copies, value = _copies(arch, layer.ffn, shards.ep)
            rows = tokens * copies / shards.ep * arch.hidden_size
            yield Collective("ffn_all_gather", float(count), "all_gather", rows * value, shards.tp, beside)
            yield Collective(
                "ffn_reduce_scatter", float(count), "reduce_scatter", rows * ACTIVATION_BYTES, shards.tp, beside
            )


def _way_s(arch: Architecture, pricer: Pricer, units: Units, tokens: Floats, *, out: bool) -> Floats:
    """Seconds of a micro-batch on its way there or back, all layers: the side with fewer devices sets the pace [N]."""
    layers = num_ffn_layers(arch)
    narrower = np.minimum(units.attention_gpus, units.ffn_gpus)
    each = tokens * travelling_bytes(arch, units.ep)[0 if out else 1] / layers / narrower
    name = "attention_to_ffn" if out else "ffn_to_attention"
    op = Collective(name, float(layers), "p2p", each, np.full(len(units), 2.0), units.stride)
    return price_operators([op], pricer, len(units)).device_s


def ffn_weight_bytes(arch: Architecture, shards: Shards) -> Floats:
    """Weights of the feed-forward layers on one device [N]: dense and shared ones by tp, experts by moe_tp and ep."""
    total = np.zeros(len(shards))
    for layer, count in arch.layer_groups():
        match layer.ffn:
            case DenseFfn() as ffn:
                size = _matrices(ffn.gated) * arch.hidden_size * ffn.intermediate_size * bytes_per(arch.precisions.ffn)
                total = total + count * size / shards.tp
            case MoeFfn() as ffn:
                width = ffn.latent_size or arch.hidden_size
                expert = _matrices(ffn.gated) * width * ffn.intermediate_size * bytes_per(arch.precisions.experts)
                shared = _matrices(ffn.gated) * arch.hidden_size * ffn.shared_intermediate_size
                slots = ffn.num_experts + np.maximum(shards.redundant, 0.0)
                total = total + count * slots * expert / (shards.moe_tp * shards.ep)
                total = total + count * shared * bytes_per(arch.precisions.shared_experts) / shards.tp
            case _:
                pass
    return total


def _matrices(gated: bool) -> float:
    return 3.0 if gated else 2.0


def travelling_bytes(arch: Architecture, ep: Floats) -> tuple[Floats, Floats]:
    """Bytes [N] of one token on its way to the feed-forward side and back, all layers together.

    A token goes to every group of devices that holds one of its experts, in fp8 where those take it, and back in bf16.
    """
    there, back = np.zeros_like(ep), np.zeros_like(ep)
    for layer, count in arch.layer_groups():
        if layer.ffn is not None:
            copies, value = _copies(arch, layer.ffn, ep)
            there = there + count * copies * arch.hidden_size * value
            back = back + count * copies * arch.hidden_size * ACTIVATION_BYTES
    return there, back


def _copies(arch: Architecture, ffn: Ffn, ep: Floats) -> tuple[Floats, float]:
    """Groups [N] of `ep` that a token goes to, and bytes of a value on its way there."""
    if not isinstance(ffn, MoeFfn):
        return np.ones_like(ep), ACTIVATION_BYTES
    places = distinct_places(ep, ffn.experts_per_token, ffn.num_experts)
    return np.maximum(places, 1.0), 1.0 if quantises(arch.precisions.experts) else ACTIVATION_BYTES


def num_ffn_layers(arch: Architecture) -> int:
    """Layers with a feed-forward part: how often activations travel."""
    return sum(count for layer, count in arch.layer_groups() if layer.ffn is not None)

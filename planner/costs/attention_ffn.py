"""Decoding with attention and feed-forward layers on devices of their own: what a token asks of each side, and seconds.

Source: Wang et al., "Step-3 is Large yet Affordable: Model-system Co-design for Cost-effective Decoding",
arXiv:2507.19427, sections 3 (costs of a token) and 5 (the pipeline of micro-batches). N points.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from planner.costs.forward import forward
from planner.costs.operators import (
    Attention,
    Collective,
    Operator,
    bytes_per,
    demand,
    distinct_places,
    quantises,
)
from planner.costs.shapes import FloatArray, Shards, Work
from planner.costs.step import Pricer, price_operators
from planner.models.architecture import Architecture, DenseFfn, MoeFfn
from planner.models.kv import kv_bytes

FFN_PARTS = frozenset(
    {"ffn_up", "ffn_activation", "ffn_down", "router", "router_top_k", "shared_expert_up", "shared_expert_activation"}
    | {"shared_expert_down", "latent_down", "latent_up", "experts", "expert_combine", "ffn_all_reduce"}
    | {"moe_all_reduce"}
)
"""Operators of the feed-forward side; all-reduces stay inside its tensor-parallel groups."""
EXCHANGE = frozenset({"dispatch", "combine", "moe_all_gather", "moe_all_gather_tokens", "moe_reduce_scatter"})
"""Exchanges between ranks that hold both sides, in whose place activations travel between the two pools."""
ACTIVATION_BYTES = 2.0  # of what comes back
LOAD_TOKENS = tuple(float(2**power) for power in range(1, 17))  # of the feed-forward side, priced; linear between


@dataclass(frozen=True, slots=True)
class TokenDemand:
    """What one decoded token asks for, weights aside, which a large batch shares (Step-3, tables 2 and 3)."""

    kv_bytes: float
    attention_flop: float
    linear_flop: float
    ffn_flop: float


@dataclass(frozen=True, slots=True)
class Rates:
    """A device by what it costs and does."""

    usd_per_hour: float
    flop_per_s: float
    bytes_per_s: float

    def attention_usd(self, token: TokenDemand) -> float:
        """USD of the attention side of a million tokens: cached tokens are read or computed with, the slower counts."""
        flop_usd, byte_usd = (self.usd_per_hour / 3600.0 / rate for rate in (self.flop_per_s, self.bytes_per_s))
        cache_usd = max(token.attention_flop * flop_usd, token.kv_bytes * byte_usd)
        return 1e6 * (cache_usd + token.linear_flop * flop_usd)

    def ffn_usd(self, token: TokenDemand) -> float:
        """USD of the feed-forward side of a million tokens."""
        return 1e6 * token.ffn_flop * self.usd_per_hour / 3600.0 / self.flop_per_s


def token_demand(arch: Architecture, context_tokens: float) -> TokenDemand:
    """The demand of one token behind `context_tokens`; embedding and output matrix are left out, as in the paper."""
    one = Shards.of(1)
    found = {"attention": 0.0, "linear": 0.0, "ffn": 0.0}
    for op in forward(arch, one, Work.decode(1.0, context_tokens)):
        if isinstance(op, Collective) or op.name in ("embedding", "logits", "sampling"):
            continue
        side = "attention" if isinstance(op, Attention) else "ffn" if op.name in FFN_PARTS else "linear"
        found[side] += float(np.asarray(demand(op).flop * op.count).sum())
    cached = float(kv_bytes(arch, np.array([context_tokens]))[0])
    return TokenDemand(cached, found["attention"], found["linear"], found["ffn"])


def attention_side_s(arch: Architecture, pricer: Pricer, tp: int, sequences: FloatArray, context: float) -> FloatArray:
    """Seconds of one micro-batch of `sequences` on an attention rank of `tp` devices, all layers [N]."""
    return _side_s(arch, pricer, Shards.of(np.full(len(sequences), float(tp))), sequences, context, _is_attention)


def ffn_side_s(arch: Architecture, pricer: Pricer, shards: Shards) -> Callable[[FloatArray], FloatArray]:
    """Seconds of all feed-forward layers, by the tokens of a micro-batch of all attention ranks together."""
    tokens = np.array(LOAD_TOKENS)
    spread = shards.take(np.zeros(len(tokens), dtype=np.intp))
    seconds = _side_s(arch, pricer, spread, tokens / shards.dp[0], 1.0, _is_ffn)
    return lambda wanted: np.interp(wanted, tokens, seconds)


def _side_s(
    arch: Architecture, pricer: Pricer, shards: Shards, sequences: FloatArray, context: float,
    wanted: Callable[[Operator], bool],
) -> FloatArray:  # fmt: skip
    operators = [op for op in forward(arch, shards, Work.decode(sequences, context)) if wanted(op)]
    return price_operators(operators, pricer, len(sequences)).device_s


def _is_attention(op: Operator) -> bool:
    return op.name not in FFN_PARTS and op.name not in EXCHANGE


def _is_ffn(op: Operator) -> bool:
    return op.name in FFN_PARTS


def ffn_weight_bytes(arch: Architecture, shards: Shards) -> FloatArray:
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
                total = total + count * ffn.num_experts * expert / (shards.moe_tp * shards.ep)
                total = total + count * shared * bytes_per(arch.precisions.shared_experts) / shards.tp
            case _:
                pass
    return total


def _matrices(gated: bool) -> float:
    return 3.0 if gated else 2.0


def travelling_bytes(arch: Architecture, ep: float) -> tuple[float, float]:
    """Bytes of one token on its way to the feed-forward side and back, all layers together.

    A token goes to every group of ranks that holds one of its experts, in fp8 where those take it, and back in bf16.
    """
    there = back = 0.0
    for layer, count in arch.layer_groups():
        copies, value = 1.0, ACTIVATION_BYTES
        if layer.ffn is None:
            continue
        if isinstance(layer.ffn, MoeFfn):
            places = distinct_places(np.array([ep]), layer.ffn.experts_per_token, layer.ffn.num_experts)
            copies = max(float(places[0]), 1.0)
            value = 1.0 if quantises(arch.precisions.experts) else ACTIVATION_BYTES
        there += count * copies * arch.hidden_size * value
        back += count * copies * arch.hidden_size * ACTIVATION_BYTES
    return there, back


def num_ffn_layers(arch: Architecture) -> int:
    """Layers with a feed-forward part: how often activations travel."""
    return sum(count for layer, count in arch.layer_groups() if layer.ffn is not None)


def cycle_s(
    attention_s: FloatArray, ffn_s: FloatArray, there_s: FloatArray, back_s: FloatArray, micro_batches: int
) -> FloatArray:
    """Seconds of a step of all layers [N]: micro-batches take turns at four stages, attention, way, feed-forward, way.

    The busiest stage sets the pace of a layer, unless one micro-batch alone takes longer for its round. All four are
    the sums over layers for one micro-batch; layers are taken to be alike.
    """
    busiest = np.maximum(np.maximum(attention_s, ffn_s), np.maximum(there_s, back_s))
    return np.asarray(np.maximum(micro_batches * busiest, attention_s + ffn_s + there_s + back_s))

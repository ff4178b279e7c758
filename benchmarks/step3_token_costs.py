"""What a decoded token costs on each side where attention and feed-forward layers have devices of their own.

Source: Wang et al., "Step-3 is Large yet Affordable: Model-system Co-design for Cost-effective Decoding",
arXiv:2507.19427, section 3 and tables 2 and 3.
"""

from dataclasses import dataclass

import numpy as np

from planner.costs.operators.forward import forward
from planner.costs.operators.kernels import Attention, Collective, demand
from planner.costs.operators.work import Shards, Work
from planner.costs.serving.attention_ffn import FFN_PARTS, ROUTER
from planner.models.architecture import Architecture
from planner.models.kv import kv_bytes


@dataclass(frozen=True, slots=True)
class TokenDemand:
    """What one decoded token asks for, weights aside, which a large batch shares (Step-3, tables 2 and 3)."""

    kv_bytes: float
    attention_flop: float
    linear_flop: float
    ffn_flop: float


@dataclass(frozen=True, slots=True)
class Device:
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
    """The demand of one token behind `context_tokens`, counted as in the paper.

    Embedding and output matrix are left out, and the router is not among the linear layers of attention.
    """
    sides = {"attention": 0.0, "linear": 0.0, "ffn": 0.0}
    for op in forward(arch, Shards.of(1), Work.decode(1.0, context_tokens)):
        if isinstance(op, Collective) or op.name in ("embedding", "logits", "sampling"):
            continue
        side = "attention" if isinstance(op, Attention) else "ffn" if op.name in FFN_PARTS | ROUTER else "linear"
        sides[side] += float(np.asarray(demand(op).flop * op.count).sum())
    cached = float(kv_bytes(arch, np.array([context_tokens]))[0])
    return TokenDemand(cached, sides["attention"], sides["linear"], sides["ffn"])

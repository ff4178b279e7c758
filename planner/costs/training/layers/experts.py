"""Training kernels of a mixture-of-experts layer: router, all-to-all of tokens, grouped GEMM, shared experts."""

from collections.abc import Iterator

from planner.costs.operators.products import dense_products, sparse_products
from planner.costs.training.config import Machine, Shard
from planner.costs.training.kernels import BACKWARD_INPUT, FORWARD, Kernel
from planner.costs.training.layers.linear import linear_kernels, products_kernels
from planner.costs.training.layers.sizes import memory_pass, scatter, spread_ranks, sweep
from planner.models.architecture import MoeFfn

ACTIVATION_BYTES = 2.0
_MODULE = "moe"


def expert_kernels(machine: Machine, ffn: MoeFfn, shard: Shard) -> Iterator[Kernel]:
    """Router, dispatch, experts and combination, and the shared experts beside them.

    Sequence-parallel ranks route their own tokens; the experts' group spreads over tp x cp x dp ranks, so every rank
    sends and receives as many rows where the load is even: its tokens times top-k, times etp.
    """
    tokens = shard.tokens / shard.tp
    rows = tokens * ffn.experts_per_token * shard.etp
    width = float(ffn.latent_size or shard.hidden)
    yield from _router(machine, ffn, shard, tokens)
    yield from _exchange(machine, ffn, shard, tokens, width)
    groups = max(ffn.num_experts / shard.ep, 1.0)
    each, inner = rows / groups, ffn.intermediate_size / shard.etp
    wide = inner * (2.0 if ffn.gated else 1.0)
    yield from linear_kernels(machine, _MODULE, shard, width, wide, rows=each, groups=groups, kind="experts")
    values = rows * inner * ACTIVATION_BYTES
    reads = 2.0 if ffn.gated else 1.0
    yield memory_pass(machine, "elementwise", FORWARD, "moe_activation", (reads + 1.0) * values, 1.0)
    yield memory_pass(machine, "elementwise", BACKWARD_INPUT, "moe_activation", (2.0 * reads + 1.0) * values, 1.0)
    yield from linear_kernels(machine, _MODULE, shard, inner, width, rows=each, groups=groups, kind="experts")
    yield from products_kernels(machine, shard, sparse_products(ffn, shard.hidden)[1:], rows=tokens)
    if ffn.shared_intermediate_size:
        yield from _shared(machine, ffn, shard)


def _router(machine: Machine, ffn: MoeFfn, shard: Shard, tokens: float) -> Iterator[Kernel]:
    """Scores of all experts in fp32, top-k, and the maps for permuting: many small launches."""
    router = sparse_products(ffn, shard.hidden)[:1]
    yield from products_kernels(machine, shard, router, rows=tokens, precision="bf16")
    scores = tokens * ffn.num_experts * 4.0
    yield memory_pass(machine, "router", FORWARD, _MODULE, 6.0 * scores, 8.0)
    yield memory_pass(machine, "router", BACKWARD_INPUT, _MODULE, 4.0 * scores, 5.0)


def _exchange(machine: Machine, ffn: MoeFfn, shard: Shard, tokens: float, width: float) -> Iterator[Kernel]:
    """Rows permuted by expert, sent, and brought back in order; gathered over etp on the way."""
    rows = tokens * ffn.experts_per_token * width * ACTIVATION_BYTES
    kind = "ep.overlapped" if shard.ep_overlap else "ep"
    for part in (FORWARD, BACKWARD_INPUT):
        yield Kernel(f"dispatch.{_waiting(shard)}", part, _MODULE)
        yield memory_pass(machine, "permute", part, _MODULE, 4.0 * rows + 2.0 * rows / ffn.experts_per_token, 4.0)
        if shard.ep > 1:
            yield exchange(machine, ffn, shard, Kernel(kind, part, _MODULE, launches=2.0), rows)
        if shard.etp > 1:
            yield sweep(machine, "tp", part, _MODULE, rows * shard.etp, shard.etp, 1, 2.0)


def _waiting(shard: Shard) -> str:
    """How the host learns the rows of each expert: not at all, or by waiting for the device, in few or many kernels."""
    if shard.host == "graphs":
        return "graphs"
    return "forwarded" if shard.forwarded else "plain"


def exchange(machine: Machine, ffn: MoeFfn, shard: Shard, kernel: Kernel, size_bytes: float) -> Kernel:
    """Dispatch and combination of `size_bytes` in all, top-k rows a token.

    Where rows are forwarded, a token crosses to every domain once for all of its experts there (DeepSeek-V3,
    arXiv:2412.19437, section 3.2.2).
    """
    whole = scatter(machine, kernel.kind, kernel.part, kernel.module, size_bytes, shard.ep, shard.etp, 2.0)
    domains = spread_ranks(machine, shard.ep, shard.etp)[1]
    if not shard.forwarded or domains <= 1.0:
        return whole
    places = distinct_domains(domains, ffn)
    crossing = 2.0 * size_bytes / ffn.experts_per_token * places * (1.0 - 1.0 / domains)
    inside = 2.0 * size_bytes * (1.0 - domains / shard.ep)
    return whole._replace(inside_s=inside / machine.link_bytes_per_s, outside_s=crossing / machine.fabric_bytes_per_s)


def distinct_domains(domains: float, ffn: MoeFfn) -> float:
    """Expected domains with at least one of a token's experts, each equally likely."""
    missed = (1.0 - 1.0 / domains) ** ffn.experts_per_token
    return float(domains * (1.0 - missed))


def _shared(machine: Machine, ffn: MoeFfn, shard: Shard) -> Iterator[Kernel]:
    width = ffn.shared_intermediate_size
    products = dense_products("shared_expert", _MODULE, width, ffn.gated, shard.hidden, shard.tp)
    yield from products_kernels(machine, shard, products)
    values = shard.tokens * width / shard.tp * ACTIVATION_BYTES
    yield memory_pass(machine, "elementwise", FORWARD, _MODULE, 3.0 * values, 1.0)
    yield memory_pass(machine, "elementwise", BACKWARD_INPUT, _MODULE, 5.0 * values, 1.0)
    if shard.tp > 1:
        size = shard.tokens * shard.hidden * ACTIVATION_BYTES
        yield sweep(machine, "tp", FORWARD, _MODULE, size, shard.tp, 1, 2.0)
        yield sweep(machine, "tp", BACKWARD_INPUT, _MODULE, size, shard.tp, 1, 2.0)

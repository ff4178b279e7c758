"""Training kernels of a mixture-of-experts layer: router, all-to-all of tokens, grouped GEMM, shared experts."""

from collections.abc import Iterator

from planner.costs.operators.elementwise import (
    ACTIVATION_BYTES,
    FUSED,
    activation,
    clamped_halves,
    expert_biases,
    permutation,
    router_selection,
)
from planner.costs.operators.exchanges import around, mirrored
from planner.costs.operators.experts import routed_rows, sent_copies
from planner.costs.operators.products import Projection, dense_products, sparse_products
from planner.costs.training.config import Machine, Shard
from planner.costs.training.kernels import BACKWARD_INPUT, FORWARD, Kernel
from planner.costs.training.layers.host import (
    bias_calls,
    captured,
    dispatch_calls,
    grouped_calls,
    overlap_calls,
    router_calls,
)
from planner.costs.training.layers.linear import linear_kernels, products_kernels
from planner.costs.training.layers.sizes import collectives, pass_kernels, scatter, spread_ranks
from planner.models.architecture import MoeFfn

_MODULE = "moe"


def expert_kernels(machine: Machine, ffn: MoeFfn, shard: Shard) -> Iterator[Kernel]:
    """Router, dispatch, experts and combination, and the shared experts beside them.

    Sequence-parallel ranks route their own tokens; the experts' group spreads over tp x cp x dp ranks, so every rank
    sends and receives as many rows where the load is even: its tokens times top-k, times etp. Where it is not, all wait
    for the fullest rank, which receives more of them.
    """
    tokens = shard.tokens / shard.tp
    uneven = shard.expert_load.of_rank(ffn.num_experts, shard.ep)
    rows = uneven * routed_rows(tokens * shard.ep * shard.etp, ffn.experts_per_token, float(shard.ep))
    width = ffn.latent_size or shard.hidden
    yield from captured(shard, "moe_router", _routed(machine, ffn, shard, tokens))
    yield from overlap_calls(shard, _MODULE)
    yield from _exchange(machine, ffn, shard, uneven * tokens, float(width))
    up, down = dense_products("expert", _MODULE, ffn.intermediate_size, ffn.gated, width, shard.etp)
    between = activation("expert_activation", "moe_activation", rows * down.depth, gated=ffn.gated, code=FUSED)
    yield from _grouped(machine, ffn, shard, up, rows, (FORWARD,))
    if not fused(ffn, shard):
        yield from pass_kernels(machine, between)
    yield from _grouped(machine, ffn, shard, down, rows, (BACKWARD_INPUT,))
    if ffn.bias:
        yield from _biased(machine, ffn, shard, rows, float(down.depth), width)
    yield from products_kernels(machine, shard, sparse_products(ffn, shard.hidden)[1:], rows=tokens)


def _routed(machine: Machine, ffn: MoeFfn, shard: Shard, tokens: float) -> Iterator[Kernel]:
    """The router, and the experts that every token passes."""
    yield from _router(machine, ffn, shard, tokens)
    if ffn.shared_intermediate_size:
        yield from _shared(machine, ffn, shard)


def fused(ffn: MoeFfn, shard: Shard) -> bool:
    """Whether activations run within the products; those with biases and clamps do not (runs of gpt-oss show none)."""
    return shard.fused_experts and not ffn.bias


def _biased(machine: Machine, ffn: MoeFfn, shard: Shard, rows: float, inner: float, width: float) -> Iterator[Kernel]:
    """Biases of both products and what is clamped between them, as experts of gpt-oss have it."""
    if ffn.gated:
        yield from pass_kernels(machine, clamped_halves(2.0 * rows * inner))
    yield from pass_kernels(machine, expert_biases(rows * width))
    yield from bias_calls(_MODULE, max(ffn.num_experts / shard.ep, 1.0))


def _grouped(
    machine: Machine, ffn: MoeFfn, shard: Shard, product: Projection, rows: float, apart: tuple[int, ...]
) -> Iterator[Kernel]:
    """One product of every expert of the rank, and its gradients.

    Where they are fused, only the inputs of the passes `apart` are quantised by kernels of their own: those of the
    others leave the product before them quantised (Transformer Engine's fused grouped feed-forward part).
    """
    groups = max(ffn.num_experts / shard.ep, 1.0)
    sizes = float(product.depth), float(product.columns)
    kernels = linear_kernels(machine, _MODULE, shard, *sizes, rows=rows / groups, groups=groups, kind="experts")
    if fused(ffn, shard):
        yield from (k for k in kernels if not k.kind.startswith("quantise") or k.part in apart)
        return
    yield from kernels
    yield from grouped_calls(shard, _MODULE, groups)


def _router(machine: Machine, ffn: MoeFfn, shard: Shard, tokens: float) -> Iterator[Kernel]:
    """Scores of all experts in fp32, top-k, and the maps for permuting: many small launches."""
    router = sparse_products(ffn, shard.hidden)[:1]
    yield from products_kernels(machine, shard, router, rows=tokens, precision="bf16")
    yield from pass_kernels(machine, router_selection(tokens * ffn.num_experts, FUSED), kind="router")
    yield from router_calls(_MODULE)


def _exchange(machine: Machine, ffn: MoeFfn, shard: Shard, tokens: float, width: float) -> Iterator[Kernel]:
    """Rows permuted by expert, sent, and brought back in order, in 16 bits; gathered over etp on the way."""
    row_bytes = tokens * width * ACTIVATION_BYTES
    kind = "ep.overlapped" if shard.ep_overlap else "ep"
    yield from pass_kernels(machine, permutation(tokens * width, ffn.experts_per_token, FUSED), kind="permute")
    yield from dispatch_calls(shard, _MODULE, ffn.num_experts)
    for part in (FORWARD, BACKWARD_INPUT):
        if shard.ep > 1:
            yield exchange(machine, ffn, shard, Kernel(kind, part, _MODULE, launches=2.0), row_bytes)
        if shard.etp > 1:
            size = row_bytes * ffn.experts_per_token * shard.etp
            yield collectives(machine, "tp", part, _MODULE, size, shard.etp, 1, around(True))


def exchange(machine: Machine, ffn: MoeFfn, shard: Shard, kernel: Kernel, size_bytes: float) -> Kernel:
    """Dispatch and combination of tokens of `size_bytes` in all: a row an expert inside a domain.

    Where they are forwarded, a token crosses to every other domain once for all of its experts there (DeepSeek-V3,
    arXiv:2412.19437, section 3.2.2). That it goes to a rank inside once as well is not counted: runs of codes that
    forward are predicted worse with it, and few say which of their exchanges joins copies.
    """
    top_k, among = ffn.experts_per_token, ffn.num_experts
    sent = size_bytes * sent_copies(float(shard.ep), top_k, among, once=False)
    whole = scatter(machine, kernel.kind, kernel.part, kernel.module, sent, shard.ep, shard.etp, 2.0)
    domains = spread_ranks(machine, shard.ep, shard.etp)[1]
    if not shard.forwarded or domains <= 1.0:
        return whole
    crossing = 2.0 * size_bytes * sent_copies(domains, top_k, among, once=True) * (1.0 - 1.0 / domains)
    inside = 2.0 * sent * (1.0 - domains / shard.ep)
    return whole._replace(inside_s=inside / machine.link_bytes_per_s, outside_s=crossing / machine.fabric_bytes_per_s)


def _shared(machine: Machine, ffn: MoeFfn, shard: Shard) -> Iterator[Kernel]:
    width = ffn.shared_intermediate_size
    up, down = dense_products("shared_expert", _MODULE, width, ffn.gated, shard.hidden, shard.tp)
    yield from products_kernels(machine, shard, (up, down))
    inner = shard.tokens * down.depth
    between = activation("shared_expert_activation", _MODULE, inner, gated=ffn.gated, code=FUSED)
    yield from pass_kernels(machine, between)
    if shard.tp > 1:
        size = shard.tokens * shard.hidden * ACTIVATION_BYTES
        kinds = around(shard.sequence_parallel)
        yield collectives(machine, "tp", FORWARD, _MODULE, size, shard.tp, 1, kinds)
        yield collectives(machine, "tp", BACKWARD_INPUT, _MODULE, size, shard.tp, 1, mirrored(kinds))

"""Training kernels of one layer on one rank: forward, input gradient and weight gradient.

A product Y = X W has two gradients, dX = dY W^T and dW = X^T dY, each as many operations as Y (Qi et al.,
arXiv:2401.10241, section 2, on why they are kept apart). Tensor parallelism gathers and scatters activations around
each half of a layer (Korthikanti et al., arXiv:2205.05198, section 4); context parallelism gathers keys and values.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from planner.costs.operators.elementwise import ACTIVATION_BYTES, activation, norm, residual
from planner.costs.operators.exchanges import around, mirrored
from planner.costs.operators.products import Projection, dense_products
from planner.costs.rates.overlap import fused_s, split_s, waves
from planner.costs.training.config import GraphScope, Machine, Shard
from planner.costs.training.kernels import BACKWARD_INPUT, FORWARD, Kernel
from planner.costs.training.layers.attention import attention_kernels, mixer_widths
from planner.costs.training.layers.experts import expert_kernels
from planner.costs.training.layers.host import captured, replay_calls
from planner.costs.training.layers.linear import products_kernels
from planner.costs.training.layers.sizes import collectives, pass_kernels, product
from planner.models.architecture import DenseFfn, Layer, LinearAttention, MoeFfn

BEHIND = "residual"  # what follows a part of a layer, and is not computed again with any module of it


def layer_kernels(machine: Machine, layer: Layer, shard: Shard) -> Iterator[Kernel]:
    """Every kernel of one layer, exchanges included; codes of 2021 wait for the device in each, to keep random states.

    In a parallel block (arXiv:2204.02311, section 2) both parts share a norm, a gather, a scatter and a residual.
    """
    if shard.host == "legacy":
        yield Kernel("sync", FORWARD, "attention")
        yield Kernel("sync", BACKWARD_INPUT, "attention")
    joined = shard.parallel_block and layer.mixer is not None and isinstance(layer.ffn, DenseFfn)
    norms = layer.num_norms // max((layer.mixer is not None) + (layer.ffn is not None), 1)  # around each part
    mixed = (0.0, 0.0) if layer.mixer is None else mixer_widths(layer.mixer, shard)
    if layer.mixer is not None:
        scope: GraphScope = "mamba" if isinstance(layer.mixer, LinearAttention) else "attn"
        kernels = attention_kernels(machine, layer.mixer, shard)
        behind = () if joined else half_layer(machine, shard, "attention", mixed, norms)
        yield from captured(shard, scope, chain(kernels, behind))
        yield from replay_calls(shard, "attention", (scope,))
    apart = layer.mixer is None or shard.captured.isdisjoint(("attn", "mamba"))
    if layer.ffn is not None and apart:
        scopes: tuple[GraphScope, ...] = ("mlp",) if isinstance(layer.ffn, DenseFfn) else ("moe", "moe_router")
        yield from replay_calls(shard, "mlp" if isinstance(layer.ffn, DenseFfn) else "moe", scopes)
    match layer.ffn:
        case DenseFfn():
            wide, inner = dense_widths(layer.ffn, shard)
            beside = (wide + mixed[0], inner + mixed[1]) if joined else (wide, inner)
            behind = half_layer(machine, shard, "mlp", beside, norms)
            yield from captured(shard, "mlp", chain(dense_kernels(machine, layer.ffn, shard), behind))
        case MoeFfn():
            behind = captured(shard, "moe_router", half_layer(machine, shard, "moe", None, norms))
            yield from captured(shard, "moe", chain(expert_kernels(machine, layer.ffn, shard), behind))
        case None:
            pass


def half_layer(
    machine: Machine, shard: Shard, module: str, widths: tuple[float, float] | None, norms: int
) -> Iterator[Kernel]:
    """Norms, dropout and residual around attention or feed-forward part, and what tensor-parallel ranks exchange.

    Under sequence parallelism the input is gathered and the output scattered, and once more for the gradients; the
    gather of the saved input for the weights' gradient runs beside a product. Without it each pass has one all-reduce.
    `widths` of a rank's shard are those behind the first product and in front of the last, which an overlapping
    exchange is hidden behind; None where another exchange takes its place.
    """
    values = shard.tokens / shard.spread * shard.hidden
    for place in range(norms):
        read = norm(values, shard.code)
        yield from pass_kernels(machine, read if place == 0 else replace(read, module=BEHIND))
    yield from pass_kernels(machine, residual(values, BEHIND, shard.code))
    if shard.tp > 1 and widths is not None:
        size, kinds = shard.tokens * shard.hidden * ACTIVATION_BYTES, around(shard.sequence_parallel)
        yield shown(machine, shard, collectives(machine, "tp", FORWARD, module, size, shard.tp, 1, kinds), widths)
        if not shard.sequence_parallel:
            yield collectives(machine, "tp.beside", BACKWARD_INPUT, module, size, shard.tp, 1, mirrored(kinds))
            return
        back = collectives(machine, "tp", BACKWARD_INPUT, module, size, shard.tp, 1, mirrored(kinds))
        yield shown(machine, shard, back, widths)
        if not shard.lora_rank:
            yield collectives(machine, "tp.beside", BACKWARD_INPUT, module, size, shard.tp, 1, ("all_gather",))


def shown(machine: Machine, shard: Shard, swept: Kernel, widths: tuple[float, float]) -> Kernel:
    """What shows of a gather and a scatter beside the products behind and in front of them, cut by rank or fused.

    Both at the data sheet's rates, of which products and exchanges reach about as much. That pieces cut by rank leave
    multiprocessors idle is left out: those of training are hundreds of rows high, and runs left out of the fit are
    predicted worse with it.
    """
    if shard.tp_overlap == "none":
        return swept
    wide, inner = widths
    moved_s = (swept.inside_s + swept.outside_s) / 2.0
    shares = (_shown_share(machine, shard, k, n, moved_s) for k, n in ((shard.hidden, wide), (inner, shard.hidden)))
    share = sum(shares) / 2.0
    return swept._replace(inside_s=swept.inside_s * share, outside_s=swept.outside_s * share)


def _shown_share(machine: Machine, shard: Shard, k: float, n: float, moved_s: float) -> float:
    """Of one exchange beside a product of depth `k` and `n` columns."""
    compute_s = product(machine, "gemm", FORWARD, "", shard.tokens, n, k, shard.precision).flop_s
    if shard.tp_overlap == "split":
        together_s = split_s(compute_s, moved_s, shard.tp)
    else:
        together_s = fused_s(compute_s, moved_s, waves(shard.tokens, n, machine.num_multiprocessors))
    return (float(together_s) - compute_s) / moved_s


def dense_widths(ffn: DenseFfn, shard: Shard) -> tuple[float, float]:
    """Columns of a rank's first projections together, and rows of its last one."""
    up, down = _dense(ffn, shard)
    return float(up.columns), float(down.depth)


def _dense(ffn: DenseFfn, shard: Shard) -> tuple[Projection, Projection]:
    return dense_products("ffn", "mlp", ffn.intermediate_size, ffn.gated, shard.hidden, shard.tp)


def dense_kernels(machine: Machine, ffn: DenseFfn, shard: Shard) -> Iterator[Kernel]:
    """Two or three projections, split by tensor parallelism, and the activation between them."""
    up, down = _dense(ffn, shard)
    yield from products_kernels(machine, shard, (up,))
    between = activation("ffn_activation", up.module, shard.tokens * down.depth, gated=ffn.gated, code=shard.code)
    yield from pass_kernels(machine, between)
    yield from products_kernels(machine, shard, (down,))

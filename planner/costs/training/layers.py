"""The kernels of one layer on one rank: forward pass, gradient of its input, gradient of its weights.

A product Y = X W has two gradients, dX = dY W^T and dW = X^T dY, each as many operations as Y (Qi et al.,
arXiv:2401.10241, section 2, on why they are kept apart). Tensor parallelism gathers and scatters activations around
each half of a layer (Korthikanti et al., arXiv:2205.05198, section 4); context parallelism gathers keys and values.
"""

from collections.abc import Iterator

from planner.costs.training.attention import attention_kernels
from planner.costs.training.config import Machine, Shard
from planner.costs.training.experts import expert_kernels
from planner.costs.training.kernels import BACKWARD_INPUT, FORWARD, Kernel
from planner.costs.training.linear import linear_kernels
from planner.costs.training.sizes import memory_pass, sweep
from planner.models.architecture import DenseFfn, Layer, MoeFfn

ACTIVATION_BYTES = 2.0  # bf16 and fp16 alike


def layer_kernels(machine: Machine, layer: Layer, shard: Shard) -> Iterator[Kernel]:
    """Every kernel of one layer, exchanges included; codes of 2021 wait for the device in each, to keep random states.

    In a parallel block (arXiv:2204.02311, section 2) both parts share a norm, a gather, a scatter and a residual.
    """
    if shard.host == "legacy":
        yield Kernel("sync", FORWARD, "attention")
        yield Kernel("sync", BACKWARD_INPUT, "attention")
    if layer.mixer is not None:
        yield from attention_kernels(machine, layer.mixer, shard)
        if not (shard.parallel_block and isinstance(layer.ffn, DenseFfn)):
            yield from half_layer(machine, shard, "attention")
    match layer.ffn:
        case DenseFfn():
            yield from dense_kernels(machine, layer.ffn, shard)
            yield from half_layer(machine, shard, "mlp")
        case MoeFfn():
            yield from expert_kernels(machine, layer.ffn, shard)
            yield from half_layer(machine, shard, "moe", exchanged=False)
        case None:
            pass


def half_layer(machine: Machine, shard: Shard, module: str, *, exchanged: bool = True) -> Iterator[Kernel]:
    """Norm, dropout and residual around attention or feed-forward part, and what tensor-parallel ranks exchange.

    Under sequence parallelism the input is gathered and the output scattered, and once more for the gradients; the
    gather of the saved input for the weights' gradient runs beside a product. Without it each pass has one all-reduce.
    """
    rows = shard.tokens / shard.spread
    width = rows * shard.hidden * ACTIVATION_BYTES
    more = 1.0 if shard.fused else 1.5
    yield memory_pass(machine, "elementwise", FORWARD, "layernorm", 2.0 * width * more, 1.0)
    yield memory_pass(machine, "elementwise", FORWARD, module, 3.0 * width * more, 1.0 if shard.fused else 3.0)
    yield memory_pass(machine, "elementwise", BACKWARD_INPUT, module, 6.0 * width * more, 3.0)
    if shard.tp > 1 and exchanged:
        size = shard.tokens * shard.hidden * ACTIVATION_BYTES
        kind = "tp.overlapped" if shard.tp_overlap else "tp"
        yield sweep(machine, kind, FORWARD, module, size, shard.tp, 1, 2.0)
        back = kind if shard.sequence_parallel else "tp.beside"
        yield sweep(machine, back, BACKWARD_INPUT, module, size, shard.tp, 1, 2.0)
        if shard.sequence_parallel and not shard.lora_rank:
            yield sweep(machine, "tp.beside", BACKWARD_INPUT, module, size, shard.tp, 1, 1.0)


def dense_kernels(machine: Machine, ffn: DenseFfn, shard: Shard) -> Iterator[Kernel]:
    """Two or three projections, split by tensor parallelism, and the activation between them."""
    inner = ffn.intermediate_size / shard.tp
    wide = inner * (2.0 if ffn.gated else 1.0)
    yield from linear_kernels(machine, "mlp", shard, shard.hidden, wide)
    yield from activation_kernels(machine, "mlp", shard, shard.tokens, inner, gated=ffn.gated)
    yield from linear_kernels(machine, "mlp", shard, inner, shard.hidden)


def activation_kernels(
    machine: Machine, module: str, shard: Shard, rows: float, inner: float, *, gated: bool
) -> Iterator[Kernel]:
    """The pass between the projections: reads gate and value and writes their product, and its gradient."""
    values = rows * inner * ACTIVATION_BYTES
    reads = 2.0 if gated else 1.0
    more = 1.0 if shard.fused else 1.5
    yield memory_pass(machine, "elementwise", FORWARD, module, (reads + 1.0) * values * more, 1.0)
    yield memory_pass(machine, "elementwise", BACKWARD_INPUT, module, (2.0 * reads + 1.0) * values * more, 1.0)

"""Training kernels of the model's ends: embedding, output logits with loss, and multi-token prediction (MTP) heads."""

from collections.abc import Iterator

from planner.costs.training.config import Machine, Shard
from planner.costs.training.kernels import BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Kernel
from planner.costs.training.layers.decoder import layer_kernels
from planner.costs.training.layers.linear import linear_kernels
from planner.costs.training.layers.sizes import memory_pass, sweep
from planner.models.architecture import Layer

ACTIVATION_BYTES = 2.0


def embedding_kernels(machine: Machine, shard: Shard) -> Iterator[Kernel]:
    """Rows looked up, and their gradients added; the vocabulary is split, so that ranks sum their rows."""
    width = shard.tokens * shard.hidden * ACTIVATION_BYTES
    yield memory_pass(machine, "elementwise", FORWARD, "embedding", 3.0 * width, 2.0)
    yield memory_pass(machine, "elementwise", BACKWARD_WEIGHT, "embedding", 4.0 * width, 2.0)
    if shard.tp > 1:
        yield sweep(machine, "tp", FORWARD, "embedding", width, shard.tp, 1, 1.0 if shard.sequence_parallel else 2.0)


def loss_kernels(machine: Machine, shard: Shard, vocab: int) -> Iterator[Kernel]:
    """Final norm, logits in bf16, and cross-entropy over the split vocabulary in fp32 (arXiv:1909.08053, section 3)."""
    width = shard.tokens * shard.hidden * ACTIVATION_BYTES
    yield memory_pass(machine, "elementwise", FORWARD, "loss", 2.0 * width / shard.spread, 1.0)
    yield memory_pass(machine, "elementwise", BACKWARD_INPUT, "loss", 3.0 * width / shard.spread, 1.0)
    columns, kind = padded_vocabulary(vocab, shard.tp)
    yield from linear_kernels(machine, "loss", shard, shard.hidden, columns, precision="bf16", kind=kind)
    values = shard.tokens * columns
    yield memory_pass(machine, "elementwise", FORWARD, "loss", values * 16.0, 4.0)
    yield memory_pass(machine, "elementwise", BACKWARD_INPUT, "loss", values * 8.0, 2.0)
    if shard.tp > 1:
        yield sweep(machine, "tp", FORWARD, "loss", width, shard.tp, 1, 1.0)
        yield sweep(machine, "tp", FORWARD, "loss", 12.0 * shard.tokens, shard.tp, 1, 2.0)
        yield sweep(machine, "tp", BACKWARD_INPUT, "loss", width, shard.tp, 1, 2.0)


def padded_vocabulary(vocab: int, tp: int) -> tuple[float, str]:
    """Columns of the output matrix on one rank, and the rates of their product.

    Split vocabularies are padded to whole columns of 128 a rank. A whole one stays as it is, and where its rows do not
    begin at multiples of 16 bytes, tensor cores read them slowly (NVIDIA, Matrix Multiplication Background, section 4).
    """
    if tp > 1:
        return float(-(-vocab // (128 * tp)) * 128), "gemm"
    return float(vocab), "gemm" if vocab % 8 == 0 else "unaligned"


def mtp_kernels(machine: Machine, shard: Shard, layer: Layer, vocab: int) -> Iterator[Kernel]:
    """One head: a matrix joins hidden state and embedding, a layer, its own loss (arXiv:2412.19437, section 2.2)."""
    yield from embedding_kernels(machine, shard)
    yield from linear_kernels(machine, "mtp", shard, 2.0 * shard.hidden, shard.hidden)
    yield from layer_kernels(machine, layer, shard)
    yield from loss_kernels(machine, shard, vocab)

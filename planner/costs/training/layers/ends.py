"""Training kernels of the model's ends: embedding, output logits with loss, and multi-token prediction (MTP) heads."""

from collections.abc import Iterator

from planner.costs.operators.elementwise import ACTIVATION_BYTES, SCORE_BYTES, cross_entropy, embedding, norm
from planner.costs.operators.exchanges import LOSS_VALUES, around, mirrored
from planner.costs.training.config import Machine, Shard
from planner.costs.training.kernels import BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Kernel
from planner.costs.training.layers.decoder import layer_kernels
from planner.costs.training.layers.linear import linear_kernels
from planner.costs.training.layers.sizes import collectives, pass_kernels
from planner.models.architecture import Layer


def embedding_kernels(machine: Machine, shard: Shard) -> Iterator[Kernel]:
    """Rows looked up, and their gradients added; the vocabulary is split, so that ranks sum their rows."""
    values = shard.tokens * shard.hidden
    yield from pass_kernels(machine, embedding(values), gradient_of=BACKWARD_WEIGHT)
    if shard.tp > 1:
        behind = around(shard.sequence_parallel)[-1:]
        size = values * ACTIVATION_BYTES
        yield collectives(machine, "tp", FORWARD, "embedding", size, shard.tp, 1, behind)
        if shard.sequence_parallel:
            yield collectives(machine, "tp", BACKWARD_WEIGHT, "embedding", size, shard.tp, 1, mirrored(behind))


def loss_kernels(machine: Machine, shard: Shard, vocab: int) -> Iterator[Kernel]:
    """Final norm, logits in bf16, and cross-entropy over the split vocabulary (arXiv:1909.08053, section 3).

    Ranks that share a sequence gather it in front of the logits and for the gradient of their matrix, and scatter that
    of the states; others sum that.
    """
    columns, kind = padded_vocabulary(vocab, shard.tp)
    yield from pass_kernels(machine, norm(shard.tokens / shard.spread * shard.hidden, shard.code))
    yield from linear_kernels(machine, "loss", shard, shard.hidden, columns, precision="bf16", kind=kind)
    yield from pass_kernels(machine, cross_entropy(shard.tokens * columns))
    if shard.tp > 1:
        size = shard.tokens * shard.hidden * ACTIVATION_BYTES
        front = around(shard.sequence_parallel)[:-1]
        again = () if shard.lora_rank else front
        back = again + (mirrored(front) or ("all_reduce",))
        if front:
            yield collectives(machine, "tp", FORWARD, "loss", size, shard.tp, 1, front)
        reduced = LOSS_VALUES * SCORE_BYTES * shard.tokens
        yield collectives(machine, "tp", FORWARD, "loss", reduced, shard.tp, 1, ("all_reduce",))
        yield collectives(machine, "tp", BACKWARD_INPUT, "loss", size, shard.tp, 1, back)


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

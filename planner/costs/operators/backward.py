"""The backward pass of a training step as operators, derived from those of the forward pass.

A product Y = X W has two gradients, each as many operations as the forward product: that of the input, dX = dY W^T, and
that of the weights, dW = X^T dY. They are kept apart, since schedules without pipeline bubbles move the second one
(Qi et al., arXiv:2401.10241, section 2). Activation recomputation, gradient reduction over data-parallel replicas and
the optimizer are no part of it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.costs.operators.elementwise import SCORE_BYTES, cross_entropy
from planner.costs.operators.exchanges import LOSS_VALUES, MIRRORED
from planner.costs.operators.forward import forward
from planner.costs.operators.kernels import (
    AttentionBackward,
    BatchedGemm,
    Collective,
    DecodeAttention,
    Experts,
    Gemm,
    MemoryPass,
    Operator,
    PrefillAttention,
    Recurrence,
    Scores,
    activation_precision,
    run_of,
)
from planner.costs.operators.products import SCAN_BACKWARD, gradient_sizes
from planner.costs.operators.work import Shards, Work
from planner.models.architecture import Architecture

PRODUCTS_PER_PRODUCT = 2.0  # a product of two activations has a gradient for each
_EMBEDDING, _LOSS_REDUCTION = "embedding", "loss_all_reduce"


@dataclass(frozen=True, slots=True)
class TrainingOperators:
    """The three parts of one micro-batch, all pipeline stages together."""

    forward: list[Operator]
    backward_input: list[Operator]
    backward_weight: list[Operator]


def backward_input(operators: Sequence[Operator]) -> list[Operator]:
    """The operators that carry gradients from the outputs of `operators` to their inputs, last one first."""
    return [back for op in reversed(operators) for back in _input_gradient(op)]


def backward_weight(operators: Sequence[Operator]) -> list[Operator]:
    """The operators that compute the gradients of weights; those of norms and biases are too small to count."""
    return [back for op in reversed(operators) for back in _weight_gradient(op)]


def training_operators(arch: Architecture, shards: Shards, work: Work) -> TrainingOperators:
    """The operators of one micro-batch of `work`, whose sequences all prefill; the loss covers every token.

    Raises ValueError for decoding sequences, PlannerError for a layer without a cost model.
    """
    if np.any(work.decode_sequences > 0):
        raise ValueError("a training step has no decoding sequences")
    operators = [_with_loss(op, arch, shards, work) for op in forward(arch, shards, work)]
    return TrainingOperators(operators, backward_input(operators), backward_weight(operators))


def _with_loss(op: Operator, arch: Architecture, shards: Shards, work: Work) -> Operator:
    """Logits of every token and a cross-entropy over the sharded vocabulary, where inference samples."""
    match op:
        case Gemm(name="logits" | "project_out"):
            return replace(op, m=work.tokens)
        case Collective(name="logits_all_gather"):
            return Collective(
                _LOSS_REDUCTION, LOSS_VALUES, "all_reduce", work.tokens * SCORE_BYTES, op.group, op.stride
            )
        case MemoryPass(name="sampling"):
            return run_of(cross_entropy(work.tokens * arch.vocab_size / shards.tp), 1.0)
        case _:
            return op


def _input_gradient(op: Operator) -> Iterator[Operator]:
    """Ranks that share an input by tensor parallelism sum its gradient: the mirror of the all-reduce behind them.

    The all-reduce behind the embedding has no mirror, but the gradient of the input of the logits has one of the same
    size, so it stands for that.
    """
    if op.name in (_EMBEDDING, _LOSS_REDUCTION):
        return
    name = f"{op.name}_input_gradient"
    match op:
        case Gemm() | BatchedGemm():
            m, n, k = gradient_sizes(op.m, op.n, op.k)[0]
            yield replace(op, name=name, m=m, n=n, k=k)
        case PrefillAttention() | DecodeAttention():
            yield AttentionBackward(name, op.count, op)
        case Experts():
            yield replace(op, name=name)
        case Recurrence():
            yield replace(op, name=name, flop_per_token=SCAN_BACKWARD * op.flop_per_token)
        case Scores():
            yield replace(op, name=name, count=PRODUCTS_PER_PRODUCT * op.count)
        case MemoryPass():
            yield from _elementwise_gradient(op, name)
        case Collective():
            yield replace(op, name=name, kind=MIRRORED[op.kind])


def _weight_gradient(op: Operator) -> Iterator[Operator]:
    """Products over the tokens; both operands have the format of activations."""
    name = f"{op.name}_weight_gradient"
    match op:
        case Gemm() | BatchedGemm():
            m, n, k = gradient_sizes(op.m, op.n, op.k)[1]
            yield replace(op, name=name, m=m, n=n, k=k, precision=activation_precision(op.precision))
        case Experts():  # the gradient of every touched expert is written where the forward pass reads its weights
            yield replace(op, name=name, precision=activation_precision(op.precision))
        case MemoryPass() if op.name == _EMBEDDING:
            yield from _elementwise_gradient(op, name)


def _elementwise_gradient(op: MemoryPass, name: str) -> Iterator[Operator]:
    if op.gradient is not None:
        moved, kernels = op.gradient
        yield replace(op, name=name, size_bytes=np.asarray(moved), kernels=kernels, gradient=None)

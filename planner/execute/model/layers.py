"""Layers of one shard in PyTorch: linear, norms, dense feed-forward, embedding and logits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from planner.execute.model.collectives import joined, spread, summed
from planner.execute.model.groups import Communicators
from planner.execute.model.recompute import again_if
from planner.execute.model.step import Operators
from planner.execute.model.weights import Piece, Weights
from planner.execute.shards.expert_layout import ExpertLayout
from planner.models.architecture import Architecture

NORM_EPSILON = 1e-6
PLAIN_FORMATS = ("bf16", "fp16", "fp32")
FP8_RANGE = 448.0  # of float8_e4m3fn


@dataclass(slots=True)
class ShardContext:
    """What every module of one rank is built from; `plain` are formats whose matrices run in the working one."""

    arch: Architecture
    groups: Communicators
    weights: Weights
    operators: Operators
    fp8: bool  # whether the device multiplies 8-bit floats and they are wanted
    layouts: Mapping[int, ExpertLayout]  # by layer; experts lie in order without one
    recompute: frozenset[str]  # modules that the backward pass computes again
    plain: set[str] = field(default_factory=set)

    def linear(self, pieces: Sequence[Piece], precision: str, biases: Sequence[Piece] = ()) -> nn.Module:
        """A matrix in the format `precision`, or in the working one where the device or this program lacks it."""
        rows, columns = sum(len(piece.outputs) for piece in pieces), len(pieces[0].inputs)
        if self.fp8 and precision.startswith("fp8") and rows % 16 == columns % 16 == 0:
            return Fp8Linear(self.weights, pieces, biases)
        if precision not in PLAIN_FORMATS:
            self.plain.add(precision)
        return Linear(self.weights, pieces, biases)


class Linear(nn.Module):
    """x [tokens, inputs] to [tokens, outputs]."""

    def __init__(self, weights: Weights, pieces: Sequence[Piece], biases: Sequence[Piece] = ()) -> None:
        super().__init__()
        self.weight = weights.parameter(pieces)
        # A bias is one row of outputs: it is cut as columns, and joined as such.
        self.biases = nn.ParameterList([weights.parameter([piece]) for piece in biases])

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias())

    def bias(self) -> Tensor | None:
        return torch.cat(list(self.biases), dim=1)[0] if len(self.biases) else None


class Fp8Linear(Linear):
    """The same with weights in 8-bit floats, one scale a tensor. No backward.

    Inputs are cast on the way in, under a scale that was set beforehand, as quantised checkpoints bring it.
    """

    def __init__(self, weights: Weights, pieces: Sequence[Piece], biases: Sequence[Piece] = ()) -> None:
        super().__init__(weights, pieces, biases)
        values, self.scale = quantised(self.weight.data)
        self.weight = nn.Parameter(values, requires_grad=False)
        self.input_scale = torch.ones((), device=values.device)

    def forward(self, x: Tensor) -> Tensor:
        product: Tensor = torch._scaled_mm(
            x.to(torch.float8_e4m3fn), self.weight.t(), scale_a=self.input_scale, scale_b=self.scale,
            bias=self.bias(), out_dtype=x.dtype,
        )  # fmt: skip
        return product


def quantised(plain: Tensor, *, by_row: bool = False) -> tuple[Tensor, Tensor]:
    """The tensor in 8-bit floats, and its scale; `by_row`: of every row [..., width] one, as [...] values."""
    largest = plain.abs().amax(dim=-1, keepdim=True) if by_row else plain.abs().amax()
    scale = (largest.float() / FP8_RANGE).clamp(min=1e-12)
    return (plain / scale.to(plain.dtype)).to(torch.float8_e4m3fn), scale.squeeze(-1) if by_row else scale


class Norm(nn.Module):
    """RMS norm (arXiv:1910.07467), or layer norm with bias for models that have one."""

    def __init__(self, shard: ShardContext, name: str, width: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = shard.weights.parameter([Piece.whole(name, 2 if bias else 1, width)])

    def forward(self, x: Tensor) -> Tensor:
        width = (x.shape[-1],)
        if len(self.weight) == 2:
            return F.layer_norm(x, width, self.weight[0], self.weight[1], NORM_EPSILON)
        return F.rms_norm(x, width, self.weight[0], NORM_EPSILON)


class DenseFeedForward(nn.Module):
    """Column-parallel up and row-parallel down projection (arXiv:1909.08053); returns this rank's part of the sum."""

    def __init__(
        self,
        shard: ShardContext,
        prefix: str,
        operator: str,
        size: int,
        precision: str,
        *,
        gated: bool,
        bias: bool = False,
    ) -> None:
        super().__init__()
        tp, hidden = shard.groups.tp, shard.arch.hidden_size
        ups = ("gate", "up") if gated else ("up",)
        part = (tp.index, tp.size)
        pieces = [Piece.by_outputs(f"{prefix}.{up}_proj", size, hidden, *part) for up in ups]
        biases = [Piece.by_inputs(f"{prefix}.{up}_bias", 1, size, *part) for up in ups] if bias else []
        self.up = shard.linear(pieces, precision, biases)
        self.down = shard.linear([Piece.by_inputs(f"{prefix}.down_proj", hidden, size, *part)], precision)
        self.gated, self.operator, self.operators = gated, operator, shard.operators

    def forward(self, x: Tensor) -> Tensor:
        with self.operators(f"{self.operator}_up"):
            inner = self.up(x)
        with self.operators(f"{self.operator}_activation"):
            inner = activated(inner, gated=self.gated)
        with self.operators(f"{self.operator}_down"):
            partial: Tensor = self.down(inner)
        return partial


class DenseBlock(nn.Module):
    """A dense feed-forward part whole: spread over tp, summed, and the output bias, which is added once."""

    def __init__(self, shard: ShardContext, prefix: str, size: int, *, gated: bool, bias: bool) -> None:
        super().__init__()
        precision, hidden = shard.arch.precisions.ffn, shard.arch.hidden_size
        self.inner = DenseFeedForward(shard, f"{prefix}mlp", "ffn", size, precision, gated=gated, bias=bias)
        piece = Piece.whole(f"{prefix}mlp.down_bias", 1, hidden)
        self.bias = shard.weights.parameter([piece]) if bias else None
        self.tp, self.operators = shard.groups.tp, shard.operators
        self.recomputed = "mlp" in shard.recompute

    def forward(self, x: Tensor) -> Tensor:
        whole = again_if(self.recomputed, self.operators, self._summed)(x)
        return whole if self.bias is None else whole + self.bias[0]

    def _summed(self, x: Tensor) -> Tensor:
        partial: Tensor = self.inner(spread(x, self.tp, "ffn_all_reduce"))
        with self.operators("ffn_all_reduce"):
            return summed(partial, self.tp, "ffn_all_reduce")


def activated(inner: Tensor, *, gated: bool) -> Tensor:
    """SwiGLU (arXiv:2002.05202) of gate and value side by side, or GELU."""
    if not gated:
        return F.gelu(inner)
    gate, value = inner.chunk(2, dim=-1)
    return F.silu(gate) * value


class Embedding(nn.Module):
    """Rows of the vocabulary over tp ranks: each looks up its own, and the sum is the embedding."""

    def __init__(self, shard: ShardContext) -> None:
        super().__init__()
        arch, self.tp = shard.arch, shard.groups.tp
        piece = Piece.by_outputs("embedding", arch.vocab_size, arch.hidden_size, self.tp.index, self.tp.size)
        self.first = piece.outputs.start
        self.weight = shard.weights.parameter([piece])
        learned = Piece.whole("positions", arch.position_embeddings, arch.hidden_size)
        self.positions = shard.weights.parameter([learned]) if arch.position_embeddings else None
        self.operators = shard.operators

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        with self.operators("embedding"):
            own = tokens - self.first
            inside = (own >= 0) & (own < len(self.weight))
            rows = F.embedding(own.clamp(0, len(self.weight) - 1), self.weight)
            partial = rows if self.tp.size == 1 else rows * inside[:, None]
        with self.operators("embedding_all_reduce"):
            whole = summed(partial, self.tp, "embedding_all_reduce")
        return whole if self.positions is None else whole + F.embedding(positions, self.positions)


class Logits(nn.Module):
    """The output matrix over tp ranks by rows of the vocabulary, joined to whole logits [tokens, vocabulary]."""

    def __init__(self, shard: ShardContext, tied: nn.Parameter | None) -> None:
        super().__init__()
        arch, self.tp = shard.arch, shard.groups.tp
        name = "embedding" if arch.tied_embeddings else "lm_head"
        piece = Piece.by_outputs(name, arch.vocab_size, arch.hidden_size, self.tp.index, self.tp.size)
        self.weight = tied if tied is not None else shard.weights.parameter([piece])
        self.vocab_size, self.operators = arch.vocab_size, shard.operators

    def forward(self, x: Tensor) -> Tensor:
        with self.operators("logits"):
            own = F.linear(spread(x, self.tp, "logits"), self.weight)
        if self.tp.size == 1:
            return own
        with self.operators("logits_all_gather"):
            each = -(-self.vocab_size // self.tp.size)
            rows = F.pad(own, (0, each - own.shape[1])).t().contiguous()
            return joined(rows, self.tp, "logits_all_gather").t()[:, : self.vocab_size]

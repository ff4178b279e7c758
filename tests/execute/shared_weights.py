"""Weights that every sharding cuts from the same full tensors, which everyone draws alike by name."""

import hashlib
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor, nn

from planner.execute.model.weights import Piece, Weights


@cache
def full_tensor(model: str, name: str, num_outputs: int, num_inputs: int) -> Tensor:
    """Normal with variance 1 / inputs, norms around one, fp32 on the CPU; nobody writes into it."""
    seed = int.from_bytes(hashlib.sha256(f"{model}/{name}".encode()).digest()[:7], "big")
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(num_outputs, num_inputs, generator=generator)
    if name.endswith("norm") or "norm_" in name:
        return 1.0 + 0.1 * drawn
    return drawn * (1.0 if num_inputs == 1 or num_outputs == 1 else num_inputs**-0.5)


def cut(piece: Piece, full: Tensor) -> Tensor:
    """What a piece is of its full tensor."""
    return full[piece.outputs.start : piece.outputs.stop, piece.inputs.start : piece.inputs.stop]


class SharedWeights(Weights):
    """Parameters cut from full tensors; `pieces` remembers, by id of the parameter, what each is cut from."""

    def __init__(self, model: str, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(device, dtype)
        self.model = model
        self.pieces: dict[int, tuple[Piece, ...]] = {}

    def parameter(self, pieces: Sequence[Piece], *, stack: int = 0) -> nn.Parameter:
        made = super().parameter(pieces, stack=stack)
        self.pieces[id(made)] = tuple(pieces)
        return made

    def drawn(self, pieces: Sequence[Piece]) -> Tensor:
        parts = [
            cut(piece, full_tensor(self.model, piece.name, piece.num_outputs, piece.num_inputs)) for piece in pieces
        ]
        return torch.cat(parts).to(self.device, self.dtype)

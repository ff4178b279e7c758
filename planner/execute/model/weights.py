"""Random weights of a shard, cut as the plan cuts the model's tensors.

A parameter of a shard is a list of pieces joined along its output side (query, key and value in one matrix, say); a
piece says which part of which tensor of `planner.models.parameters` it is. Tensors are [outputs, inputs], vectors [1,
width].
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows `outputs` and columns `inputs` of the full [num_outputs, num_inputs] tensor `name`."""

    name: str
    num_outputs: int
    num_inputs: int
    outputs: range
    inputs: range

    @classmethod
    def whole(cls, name: str, num_outputs: int, num_inputs: int) -> "Piece":
        return cls(name, num_outputs, num_inputs, range(num_outputs), range(num_inputs))

    @classmethod
    def by_outputs(cls, name: str, num_outputs: int, num_inputs: int, part: int, parts: int) -> "Piece":
        return cls(name, num_outputs, num_inputs, part_of(num_outputs, part, parts), range(num_inputs))

    @classmethod
    def by_inputs(cls, name: str, num_outputs: int, num_inputs: int, part: int, parts: int) -> "Piece":
        return cls(name, num_outputs, num_inputs, range(num_outputs), part_of(num_inputs, part, parts))


def part_of(size: int, part: int, parts: int) -> range:
    """The indices of equal part `part`; the last one is shorter where `parts` does not divide `size`."""
    each = -(-size // parts)
    return range(min(part * each, size), min((part + 1) * each, size))


class Weights:
    """Where parameters come from: drawn at random on the device, normal with variance 1 / inputs, vectors all ones."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype

    def parameter(self, pieces: Sequence[Piece], *, stack: int = 0) -> nn.Parameter:
        """The pieces joined along their outputs; with `stack` the rows are cut into that many equal matrices."""
        data = self.drawn(pieces)
        return nn.Parameter(data.view(stack, -1, data.shape[1]) if stack else data)

    def drawn(self, pieces: Sequence[Piece]) -> Tensor:
        """Values of the pieces [all outputs, inputs]."""
        first = pieces[0]
        size = (sum(len(piece.outputs) for piece in pieces), len(first.inputs))
        data = torch.empty(size, device=self.device, dtype=self.dtype)
        if first.num_inputs == 1 or first.num_outputs == 1:
            return data.fill_(1.0)
        return data.normal_(std=first.num_inputs**-0.5)

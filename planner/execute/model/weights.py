"""Random weights of a shard, cut from full tensors that every rank would draw alike.

A parameter of a shard is a list of pieces joined along its output side (query, key and value in one matrix, say); a
piece says which part of which tensor of `planner.models.parameters` it is. Tensors are [outputs, inputs], vectors [1,
width].
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

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

    def of(self, full: Tensor) -> Tensor:
        """This piece of a full tensor."""
        return full[self.outputs.start : self.outputs.stop, self.inputs.start : self.inputs.stop]


def part_of(size: int, part: int, parts: int) -> range:
    """The indices of equal part `part`; the last one is shorter where `parts` does not divide `size`."""
    each = -(-size // parts)
    return range(min(part * each, size), min((part + 1) * each, size))


def full_tensor(model: str, name: str, num_outputs: int, num_inputs: int) -> Tensor:
    """The tensor that everyone draws: normal with variance 1 / inputs, norms around one, fp32 on the CPU."""
    seed = int.from_bytes(hashlib.sha256(f"{model}/{name}".encode()).digest()[:7], "big")
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(num_outputs, num_inputs, generator=generator)
    if name.endswith("norm") or "norm_" in name:
        return 1.0 + 0.1 * drawn
    return drawn * (1.0 if num_inputs == 1 or num_outputs == 1 else num_inputs**-0.5)


@dataclass(slots=True)
class Weights:
    """Where parameters come from; `pieces` remembers what each is cut from.

    full_init: cut from `full_tensor`, so that all shardings agree; otherwise drawn on the device, much faster.
    """

    model: str
    device: torch.device
    dtype: torch.dtype
    full_init: bool
    pieces: dict[int, tuple[Piece, ...]] = field(default_factory=dict)  # by id of the parameter

    def parameter(self, pieces: Sequence[Piece], *, stack: int = 0) -> nn.Parameter:
        """The pieces joined along their outputs; with `stack` the rows are cut into that many equal matrices."""
        if self.full_init:
            cut = [p.of(full_tensor(self.model, p.name, p.num_outputs, p.num_inputs)) for p in pieces]
            data = torch.cat(cut).to(self.device, self.dtype)
        else:
            data = self._drawn(pieces)
        made = nn.Parameter(data.view(stack, -1, data.shape[1]) if stack else data)
        self.pieces[id(made)] = tuple(pieces)
        return made

    def _drawn(self, pieces: Sequence[Piece]) -> Tensor:
        first = pieces[0]
        size = (sum(len(piece.outputs) for piece in pieces), len(first.inputs))
        data = torch.empty(size, device=self.device, dtype=self.dtype)
        if first.num_inputs == 1 or first.num_outputs == 1:
            return data.fill_(1.0)
        return data.normal_(std=first.num_inputs**-0.5)

"""A kernel to time: one set of random inputs with the function that runs it on them."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from planner.errors import PlannerError

if TYPE_CHECKING:
    import torch

Run = Callable[[], object]
_BLOCK_VALUES = 2**20


@dataclass(frozen=True, slots=True)
class PreparedKernel:
    """One set of inputs with the function that runs over them; `capturable` in a CUDA graph."""

    run: Run
    source: str  # what ran, for the table's kernel sources
    capturable: bool = True
    variant: str = ""  # the implementation chosen among several; further input sets name it


class UnsupportedShapeError(PlannerError):
    """A shape that this device or this PyTorch cannot run."""


def random_values(device: "torch.device", *sizes: int, dtype: "torch.dtype | None" = None) -> "torch.Tensor":
    """Normal values; a processor, where drawing them takes long, repeats a block of a million."""
    import torch

    dtype, count = torch.bfloat16 if dtype is None else dtype, math.prod(sizes)
    if device.type == "cuda" or count <= _BLOCK_VALUES:
        return torch.randn(*sizes, device=device, dtype=dtype)
    block = torch.randn(_BLOCK_VALUES, dtype=dtype)
    return block.repeat(-(-count // _BLOCK_VALUES))[:count].view(*sizes)


def device_event(*, external: bool = False) -> Any:  # noqa: ANN401 - PyTorch leaves the constructor untyped
    """An event on the current stream that knows its time; `external`: also when a replayed graph records it."""
    import torch

    make: Any = torch.cuda.Event
    return make(enable_timing=True, external=True) if external else make(enable_timing=True)

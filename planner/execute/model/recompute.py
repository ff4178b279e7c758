"""Activation checkpointing: parts of a shard that keep only their inputs and are computed again for the backward."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from planner.costs.operators.recompute import SUFFIX
from planner.execute.model.step import Operators

Function = Callable[..., Tensor]


def again_if(wanted: bool, operators: Operators, function: Function) -> Function:
    """`function`; where `wanted` its backward pass runs all of it a second time, collectives included."""
    if not wanted or not torch.is_grad_enabled():
        return function

    def again(*inputs: object) -> Tensor:
        with set_checkpoint_early_stop(False):
            out: Tensor = checkpoint(
                function, *inputs, use_reentrant=False, preserve_rng_state=False,
                context_fn=lambda: (nullcontext(), operators.renamed(SUFFIX)),
            )  # fmt: skip
        return out

    return again


@contextmanager
def output_dropped(
    wanted: bool, operators: Operators, name: str, function: Callable[[Tensor], Tensor], source: Tensor, output: Tensor
) -> Iterator[None]:
    """Products inside keep no copy of `output` = `function(source)`, one operator, for their backward pass.

    It is computed from `source` again when the first of them needs it, and then nothing else is.
    """
    if not wanted or not torch.is_grad_enabled():
        yield
        return
    dropped = _Dropped(operators, name, function, source, output)
    with torch.autograd.graph.saved_tensors_hooks(dropped.pack, dropped.unpack):
        yield


class _Dropped:
    """Stands for a tensor that is not kept."""

    def __init__(
        self, operators: Operators, name: str, function: Callable[[Tensor], Tensor], source: Tensor, output: Tensor
    ) -> None:
        self._operators, self._name, self._function, self._source = operators, name, function, source.detach()
        self._address, self._size = output.data_ptr(), output.numel()
        self._again: Tensor | None = None

    def pack(self, saved: Tensor) -> "Tensor | _Form":
        if saved.data_ptr() == self._address and saved.numel() == self._size:
            return _Form(saved.shape, saved.stride())
        return saved

    def unpack(self, packed: "Tensor | _Form") -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        if self._again is None:
            with torch.no_grad(), self._operators.renamed(SUFFIX), self._operators(self._name):
                self._again = self._function(self._source)
        return self._again.as_strided(packed.shape, packed.stride)


class _Form(NamedTuple):
    """How a tensor lay in memory."""

    shape: torch.Size
    stride: tuple[int, ...]

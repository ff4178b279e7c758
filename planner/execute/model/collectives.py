"""Collectives with autograd: all-reduce, all-gather, all-to-all and their backward passes.

The convention is Megatron's (arXiv:1909.08053, section 3): an activation that every rank of a group holds whole has a
whole gradient on every rank. So what enters per-rank work passes `spread` (forward identity, backward sum) and what
leaves it passes `summed` (forward sum, backward identity). Where the other ranks of a group are absent a collective
returns the right shape made of this rank's own data, and is counted as skipped under the operator's name.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch import distributed as dist

from planner.execute.model.groups import Communicator


class _Adjoint(torch.autograd.Function):
    """A linear map given with its adjoint."""

    @staticmethod
    def forward(ctx, value, forward, backward, name):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN205 - torch's own form
        ctx.backward_of, ctx.operator = backward, name  # recorders look for the name
        return forward(value)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN205 - torch's own form
        return ctx.backward_of(gradient), None, None, None


Map = Callable[..., Tensor]  # of a tensor, a group, and the name of an operator


def _linear(value: Tensor, group: Communicator, name: str, forward: Map, backward: Map) -> Tensor:
    """`forward` of the value, whose adjoint is `backward`; both do nothing in a group of one."""
    if group.size == 1:
        return value
    maps = (partial(step, group=group, name=name) for step in (forward, backward))
    mapped: Tensor = _Adjoint.apply(value, *maps, name)  # type: ignore[no-untyped-call]
    return mapped


def _same(value: Tensor, group: Communicator, name: str) -> Tensor:
    del group, name
    return value.view_as(value)


def _own_rows(value: Tensor, group: Communicator, name: str) -> Tensor:
    del name
    return value.chunk(group.size)[group.index]


def spread(value: Tensor, group: Communicator, name: str) -> Tensor:
    """`value`, which all ranks of the group hold, for per-rank work; the adjoint sums the gradients of the ranks."""
    return _linear(value, group, name, _same, all_reduce)


def summed(value: Tensor, group: Communicator, name: str) -> Tensor:
    """The sum over the group of per-rank values; the adjoint hands the gradient to each rank."""
    return _linear(value, group, name, all_reduce, _same)


def summed_both_ways(value: Tensor, group: Communicator, name: str) -> Tensor:
    """The sum over the group, used by each rank for its own work; the adjoint sums as well."""
    return _linear(value, group, name, all_reduce, all_reduce)


def own_part(value: Tensor, group: Communicator, name: str) -> Tensor:
    """This rank's equal part of the rows of `value`, which all hold; the adjoint gathers the parts."""
    return _linear(value, group, name, _own_rows, all_gather)


def joined(value: Tensor, group: Communicator, name: str) -> Tensor:
    """The rows of all ranks, in order, for work that all do alike; the adjoint takes this rank's part."""
    return _linear(value, group, name, all_gather, _own_rows)


def gathered(value: Tensor, group: Communicator, name: str) -> Tensor:
    """The rows of all ranks, in order, for per-rank work; the adjoint sums over ranks and takes this rank's part."""
    return _linear(value, group, name, all_gather, reduce_scatter)


def scattered(value: Tensor, group: Communicator, name: str) -> Tensor:
    """This rank's part of the rows of the sum over the group; the adjoint gathers."""
    return _linear(value, group, name, reduce_scatter, all_gather)


def exchanged(value: Tensor, sent: list[int], received: list[int], group: Communicator, name: str) -> Tensor:
    """Rows to each rank of the group in turn, as many as `sent` says; the adjoint sends them back."""
    there = partial(all_to_all, sent=sent, received=received)
    back = partial(all_to_all, sent=received, received=sent)
    return _linear(value, group, name, there, back)


def all_reduce(value: Tensor, group: Communicator, name: str) -> Tensor:
    """The sum over the group."""
    if group.skips(name):
        return value
    result = value.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(result, group=group.handle)
    return result


def all_gather(value: Tensor, group: Communicator, name: str) -> Tensor:
    """The rows of all ranks, in order; every rank has as many."""
    if group.skips(name):
        return value.repeat(group.size, *[1] * (value.dim() - 1))
    result = value.new_empty((group.size * value.shape[0], *value.shape[1:]))
    dist.all_gather_into_tensor(result, value.contiguous(), group=group.handle)
    return result


def reduce_scatter(value: Tensor, group: Communicator, name: str) -> Tensor:
    """This rank's part of the rows of the sum; on backends without it an all-reduce of which a part stays."""
    if group.skips(name):
        return _own_rows(value, group, name)
    if dist.get_backend(group.handle) == "gloo":
        return _own_rows(all_reduce(value, group, name), group, name)
    result = value.new_empty((value.shape[0] // group.size, *value.shape[1:]))
    dist.reduce_scatter_tensor(result, value.contiguous(), group=group.handle)
    return result


def all_to_all(value: Tensor, sent: list[int], received: list[int], group: Communicator, name: str) -> Tensor:
    """The rows that the ranks of the group send to this one, in their order."""
    if group.skips(name):
        return value
    result = value.new_empty((sum(received), *value.shape[1:]))
    dist.all_to_all_single(result, value.contiguous(), received, sent, group=group.handle)
    return result


def send(value: Tensor, group: Communicator, to: int, name: str) -> None:
    """`value` to the member `to` of the group."""
    if group.skips(name):
        return
    dist.send(value.contiguous(), group.ranks[to], group=group.handle)


def receive(like: Tensor, group: Communicator, source: int, name: str) -> Tensor:
    """What the member `source` sends; zeros of that shape where it is absent."""
    if group.skips(name):
        return torch.zeros_like(like)
    result = torch.empty_like(like)
    dist.recv(result, group.ranks[source], group=group.handle)
    return result

"""Forward and backward passes of micro-batches through the stages of all ranks, and the sums of their gradients.

The plain order: all forward passes, then all backward passes. It fixes what is computed, not when.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from planner.execute.model.collectives import all_reduce
from planner.execute.model.pipeline import StagePipeline
from planner.execute.model.stage import Stage
from planner.execute.model.step import Step
from planner.execute.model.weights import part_of


class BackwardPipeline(StagePipeline):
    """A pipeline that trains."""

    def forward_backward(
        self, micro_batches: Sequence[tuple[Tensor, Step]], loss_of: Callable[[int, Tensor], Tensor]
    ) -> None:
        """Leaves gradients that are summed over micro-batches and data ranks.

        loss_of(micro_batch, logits) returns a share of the loss that only has to be summed over ranks and batches.
        """
        passes = []
        for index, (tokens, step) in enumerate(micro_batches):
            for stage in self.stages:
                entry = self.entry(stage, tokens, step)
                if not stage.spec.embeds:
                    entry.requires_grad_()
                out = stage(entry, step, None)
                if stage.spec.yields_logits:
                    out = loss_of(index, out)
                else:
                    self.hand_over(out.detach(), stage.spec.index + 1)
                passes.append((stage, entry, out))
        each = len(self.stages)
        for index in range(len(micro_batches)):
            for stage, entry, out in reversed(passes[index * each : (index + 1) * each]):
                self._backward(stage, entry, out)
        for stage in self.stages:
            _sum_over_data(stage)

    def _backward(self, stage: Stage, entry: Tensor, out: Tensor) -> None:
        index = stage.spec.index
        if stage.spec.yields_logits:
            torch.autograd.backward([out])
        else:
            torch.autograd.backward([out], [self.take_over(out.detach(), index, index + 1)])
        if not stage.spec.embeds:
            assert entry.grad is not None
            self.hand_over(entry.grad, index - 1)

    def sum_tied_gradients(self) -> None:
        """Sums the gradients of embedding and output matrix where these are one tensor on two pipeline ranks."""
        shard = self.stages[0].shard
        rows = part_of(shard.arch.vocab_size, shard.groups.tp.index, shard.groups.tp.size)
        ends = [stage.embedding.weight for stage in self.stages if stage.embedding is not None]
        ends += [stage.logits.weight for stage in self.stages if stage.logits is not None]
        own = torch.zeros(len(rows), self.hidden_size, dtype=self.dtype)
        for parameter in ends:
            own += parameter.grad
        total = all_reduce(own, self.groups.pipeline, "tied_gradients")
        for parameter in ends:
            parameter.grad = total


def _sum_over_data(stage: Stage) -> None:
    """Sums the gradients of each parameter over the ranks that hold it and saw other tokens, in one sum of a group."""
    groups, gradients = {}, defaultdict[int, list[Tensor]](list)
    for module in stage.modules():
        group = stage.data_group(module)
        if group.size > 1:
            groups[id(group)] = group
            own = [parameter.grad for parameter in module.parameters(recurse=False) if parameter.grad is not None]
            gradients[id(group)] += own
    for key, own in gradients.items():
        total = all_reduce(torch.cat([gradient.flatten() for gradient in own]), groups[key], "gradients")
        for gradient, part in zip(own, total.split([gradient.numel() for gradient in own]), strict=True):
            gradient.copy_(part.view_as(gradient))

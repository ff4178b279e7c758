"""Micro-batches through the stages of a role, each rank doing its own, activations handed from rank to rank.

The plain order: all forward passes, then all backward passes. It fixes what is computed; when each piece runs is for a
schedule. With several chunks a rank (vpp) a micro-batch passes the pipeline ranks more than once.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from planner.execute.model.collectives import receive, send
from planner.execute.model.groups import Groups
from planner.execute.model.stage import Stage, reduce_tied_gradients
from planner.execute.model.step import KvCache, Step
from planner.execute.shards.spec import RoleSpec

HANDOVER = "stage_handover"


class Pipeline:
    """The chunks of one rank between those of its neighbours."""

    def __init__(self, role: RoleSpec, groups: Groups, stages: Sequence[Stage], dtype: torch.dtype) -> None:
        self.stages, self.groups, self.dtype = list(stages), groups, dtype
        self.hidden_size = role.arch.hidden_size
        held = enumerate(role.stages_of_pipeline_rank)
        self.rank_of_stage = {index: rank for rank, indices in held for index in indices}
        self._kept_here: dict[int, list[Tensor]] = {}  # by stage, what its neighbour on this same rank handed over

    @property
    def yields_logits(self) -> bool:
        return any(stage.spec.yields_logits for stage in self.stages)

    def forward(self, tokens: Tensor, step: Step, caches: Sequence[KvCache | None] | None = None) -> Tensor | None:
        """Logits on the rank that holds the last stage, None on the others; caches are one a chunk."""
        out = None
        with torch.no_grad():
            for place, stage in enumerate(self.stages):
                _, out = self._pass(stage, tokens, step, None if caches is None else caches[place])
        return out if self.yields_logits else None

    def forward_backward(
        self, micro_batches: Sequence[tuple[Tensor, Step]], loss_of: Callable[[int, Tensor], Tensor]
    ) -> list[Tensor]:
        """Losses by micro-batch where the last stage is; gradients are summed over micro-batches and data ranks.

        loss_of(micro_batch, logits) returns a share of the loss that only has to be summed over ranks and batches.
        """
        losses, passes = [], []
        for index, (tokens, step) in enumerate(micro_batches):
            for stage in self.stages:
                entry, out = self._pass(stage, tokens, step, None)
                if stage.spec.yields_logits:
                    out = loss_of(index, out)
                    losses.append(out.detach())
                passes.append((stage, entry, out))
        each = len(self.stages)
        for index in range(len(micro_batches)):
            for stage, entry, out in reversed(passes[index * each : (index + 1) * each]):
                self._backward(stage, entry, out)
        for stage in self.stages:
            stage.reduce_gradients()
        reduce_tied_gradients(self.stages)
        return losses

    def _pass(self, stage: Stage, tokens: Tensor, step: Step, cache: KvCache | None) -> tuple[Tensor | None, Tensor]:
        """One pass of one chunk: what it received, and what came out."""
        index, entry = stage.spec.index, None
        if not stage.spec.embeds:
            like = torch.empty(step.tokens, self.hidden_size, dtype=self.dtype, device=step.positions.device)
            entry = self._receive(like, index, index - 1).requires_grad_(torch.is_grad_enabled())
        out: Tensor = stage(tokens if entry is None else entry, step, cache)
        if not stage.spec.yields_logits:
            self._send(out.detach(), index + 1)
        return entry, out

    def _backward(self, stage: Stage, entry: Tensor | None, out: Tensor) -> None:
        index = stage.spec.index
        if stage.spec.yields_logits:
            torch.autograd.backward([out])
        else:
            torch.autograd.backward([out], [self._receive(out.detach(), index, index + 1)])
        if entry is not None:
            assert entry.grad is not None
            self._send(entry.grad, index - 1)

    def _send(self, value: Tensor, to_stage: int) -> None:
        pipeline, rank = self.groups.pipeline, self.rank_of_stage[to_stage]
        if rank == pipeline.index:
            self._kept_here.setdefault(to_stage, []).append(value)
        else:
            send(value, pipeline, rank, HANDOVER)

    def _receive(self, like: Tensor, stage: int, from_stage: int) -> Tensor:
        pipeline, rank = self.groups.pipeline, self.rank_of_stage[from_stage]
        if rank == pipeline.index:
            return self._kept_here[stage].pop(0)
        return receive(like, pipeline, rank, HANDOVER)

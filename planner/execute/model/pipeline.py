"""Forward passes of micro-batches through pipeline stages, activations sent from rank to rank.

With several chunks a rank (vpp) a micro-batch passes the pipeline ranks more than once.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from planner.execute.model.collectives import receive, send
from planner.execute.model.groups import Communicators
from planner.execute.model.stage import Stage
from planner.execute.model.step import KvCache, Step
from planner.execute.shards.spec import RoleSpec

HANDOVER = "stage_handover"


class StagePipeline:
    """The chunks of one rank between those of its neighbours."""

    def __init__(self, role: RoleSpec, groups: Communicators, stages: Sequence[Stage], dtype: torch.dtype) -> None:
        self.stages, self.groups, self.dtype = list(stages), groups, dtype
        self.hidden_size = role.arch.hidden_size
        ranks = enumerate(role.stages_of_pipeline_rank)
        self.rank_of_stage = {index: rank for rank, indices in ranks for index in indices}
        self._kept_here: dict[int, list[Tensor]] = {}  # by stage, what its neighbour on this same rank handed over

    def forward(self, tokens: Tensor, step: Step, caches: Sequence[KvCache | None]) -> Tensor | None:
        """Logits on the rank that holds the last stage, None on the others; caches are one a chunk."""
        logits = None
        with torch.no_grad():
            for stage, cache in zip(self.stages, caches, strict=True):
                out: Tensor = stage(self.entry(stage, tokens, step), step, cache)
                if stage.spec.yields_logits:
                    logits = out
                else:
                    self.hand_over(out, stage.spec.index + 1)
        return logits

    def entry(self, stage: Stage, tokens: Tensor, step: Step) -> Tensor:
        """What the stage works on: the tokens, or the activations of the stage before it."""
        if stage.spec.embeds:
            return tokens
        like = torch.empty(step.tokens, self.hidden_size, dtype=self.dtype, device=step.positions.device)
        return self.take_over(like, stage.spec.index, stage.spec.index - 1)

    def hand_over(self, value: Tensor, to_stage: int) -> None:
        """`value` to the rank of another stage, or kept for it where that is this one."""
        pipeline, rank = self.groups.pipeline, self.rank_of_stage[to_stage]
        if rank == pipeline.index:
            self._kept_here.setdefault(to_stage, []).append(value)
        else:
            send(value, pipeline, rank, HANDOVER)

    def take_over(self, like: Tensor, stage: int, from_stage: int) -> Tensor:
        """What the rank of another stage handed over to this one."""
        pipeline, rank = self.groups.pipeline, self.rank_of_stage[from_stage]
        if rank == pipeline.index:
            return self._kept_here[stage].pop(0)
        return receive(like, pipeline, rank, HANDOVER)

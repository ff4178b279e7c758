"""Schema of training plans (decision)."""

import operator
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from planner.costs.training.config import ContextParallel, GraphScope
from planner.engines.training import Dispatcher
from planner.kinds.train.checkpointing import Checkpointing
from planner.kinds.train.search_options import (
    Module,
    Offload,
    Overlap,
    PoolUse,
    Precision,
    RecomputeName,
    Schedule,
    ZeroStage,
)
from planner.kinds.train.unlike import (
    CoreAttentionApart,
    ModalitySchedule,
    ModuleRun,
    SampleOrder,
    SequenceDegrees,
    SparseHeadGroups,
)
from planner.plan.records import Amount, Count, Index
from planner.plan.schema import Decision, Memory, Parallelism
from planner.schema.base import Spec


def _captured(value: object) -> object:
    """The parts of layers that `true` and none in older plans stand for."""
    return ("attn", "mlp", "moe_router", "moe_preprocess") if value is True else () if value is None else value


class RackPlacement(Spec):
    """Which rack every node stands on: a node holds the same part of its stage throughout."""

    rack_of_node: tuple[tuple[Index, ...], ...] = Field(description="by stage, nodes in the order of their ranks")
    busiest_uplink_s: Amount = Field(description="that the busiest uplink sends in a step")
    bound_s: Amount = Field(description="no placement on these racks has a less busy one")
    rank_order_s: Amount = Field(description="of ranks dealt to the racks in order")
    step_waits_s: Amount = Field(default=0.0, description="for uplinks, beyond what passes and exchanges hide")
    step_waits_least_s: Amount = Field(default=0.0, description="under any placement of this plan")


class Recompute(Spec):
    """What the backward pass computes again: nothing, some modules of every layer, or the first layers whole."""

    granularity: RecomputeName = "none"
    modules: tuple[Module, ...] = ()
    num_layers: Index = Field(default=0, description="with `full`: layers of each stage that are recomputed")


class StageRun(Spec):
    """`stages` consecutive stages alike; stages count in the order in which a micro-batch passes them."""

    stages: Count = 1
    num_layers: Index = Field(description="decoder layers in each of these stages")
    parts: tuple[Literal["embedding", "mtp", "loss"], ...] = ()
    recompute: Recompute = Recompute()


class PipelineRank(Spec):
    """What a rank of the pipeline is predicted to do for one micro-batch, all its stages together, and to hold."""

    forward_s: Amount
    backward_input_s: Amount
    backward_weight_s: Amount
    idle_share: Annotated[float, Field(ge=0, le=1)] = Field(description="of the pipeline's time without work")
    peak_micro_batches: Amount = Field(description="whose activations it holds at once, counted in its whole layers")
    memory: Memory


class RankGroup(Spec):
    """Ranks that talk to each other along one dimension: `size` of them, `stride` devices apart."""

    name: Literal["tp", "cp", "dp", "pp", "ep", "moe_tp", "expert_dp", "zero"]
    size: Count
    stride: Count
    level: str = Field(description="of the topology: the smallest domain that holds a whole group")


class LayerRun(Spec):
    """`layers` consecutive layers under one strategy of their own, where a plan mixes strategies by layer."""

    layers: Count
    tp: Count
    dp: Count
    zero_stage: ZeroStage = 0
    sequence_parallel: bool = False
    recompute: RecomputeName = "none"
    modules: tuple[Module, ...] = Field(default=(), description="with `selective`: what of each layer is recomputed")


class RecomputeSet(Spec):
    """So many layers of a rank that recompute the same."""

    layers: Count
    recompute: RecomputeName = "none"
    modules: tuple[Module, ...] = Field(default=(), description="with `selective`")


class RecomputeRow(Spec):
    """What a rank of the pipeline recomputes while its micro-batch holds inputs of one length."""

    rank: Index
    tokens: Count
    sets: tuple[RecomputeSet, ...]
    recompute_s: Amount = Field(description="of one micro-batch")
    memory_bytes: Amount = Field(description="of the rank, with this length in all micro-batches in flight")


class HostMemory(Spec):
    """What lies in host memory for each GPU of a role, by its fullest rank."""

    role: str = Field(description="of the plan")
    used_bytes: Amount = Field(description="states that the host updates, and activations in flight")
    capacity_bytes: Amount | None = Field(
        default=None, description="what the plan may use of a GPU's share of its node; absent where it is not known"
    )


class PlannedBatch(Spec):
    """How the plan runs a batch smaller than the last."""

    global_batch: Count
    tokens: Annotated[float, Field(gt=0)]
    num_micro_batches: Count = Field(description="per data-parallel rank and optimizer step")
    schedule: Schedule
    step_time_s: Amount


class TrainDecision(Decision):
    """One role of one replica whose parallelism holds all degrees; a pipeline of pp x vpp stages.

    A job across several pools has a role for each: ranks of one pipeline in its order (`stages`, pp adds up over the
    roles), or data-parallel ranks (`replicas`, dp adds up). Ranks of the job count stage by stage through the roles.
    """

    pools: PoolUse = "one"
    schedule: Schedule
    stage_runs: Annotated[tuple[StageRun, ...], Field(min_length=1)]
    micro_batch: Count = Field(description="sequences per forward pass of one data-parallel rank")
    num_micro_batches: Count = Field(description="per data-parallel rank and optimizer step, of the first role")
    role_micro_batches: tuple[Count, ...] = Field(default=(), description="of each role, where `pools` is `replicas`")
    zero_stage: ZeroStage = 0
    zero_shards: Count | None = Field(
        default=None, description="ranks that share out the sharded states (HSDP where fewer than dp x cp); none: all"
    )
    sequence_parallel: bool = False
    context_parallel: ContextParallel = "ring"
    precision: Precision = "bf16"
    offload: tuple[Offload, ...] = ()
    moved_layers: Count | None = Field(
        default=None,
        description="first layers whose activations are offloaded; none: all but the last, where these are",
    )
    host_memory: tuple[HostMemory, ...] = Field(
        default=(), exclude_if=operator.not_, description="of each role, where something is offloaded"
    )
    overlap: tuple[Overlap, ...] = ()
    dispatcher: Dispatcher | None = Field(default=None, description="what sends tokens to their experts")
    cuda_graphs: Annotated[tuple[GraphScope, ...], BeforeValidator(_captured)] = Field(
        default=(), description="what is captured as CUDA graphs: parts of layers, or whole steps"
    )
    pipeline_ranks: tuple[PipelineRank, ...] = Field(default=(), description="what is predicted of each, in order")
    groups: tuple[RankGroup, ...] = Field(default=(), description="of ranks that communicate, one entry a dimension")
    checkpointing: Checkpointing | None = Field(default=None, description="where the problem says what may fail")
    racks: RackPlacement | None = Field(default=None, description="where the cluster has racks with uplinks")
    planned_batches: tuple[PlannedBatch, ...] = Field(
        default=(), description="before the last, in order, where the batch grows during the run"
    )
    recompute_rows: tuple[RecomputeRow, ...] = Field(
        default=(), description="by rank and length of the inputs, where these vary; `stage_runs` fit the longest"
    )
    layer_runs: tuple[LayerRun, ...] = Field(default=(), description="strategies by layer, where they differ")
    modules: tuple[ModuleRun, ...] = Field(
        default=(), exclude_if=operator.not_, description="towers and generators beside the language model"
    )
    sequence_degrees: SequenceDegrees | None = Field(default=None, description="where the problem asks for them")
    sample_order: SampleOrder | None = Field(default=None, description="where there are several makes of samples")
    core_attention: CoreAttentionApart | None = Field(default=None, description="where the problem asks for it apart")
    sparse_heads: SparseHeadGroups | None = Field(default=None, description="where the problem has sparse heads")
    memory_utilisation: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None,
        exclude_if=operator.not_,
        description="of device memory, that it fills at most, where it was preferred for its room",
    )
    modality_schedule: ModalitySchedule | None = Field(default=None, description="where the problem asks for one")

    @property
    def degrees(self) -> Parallelism:
        """Of the whole job, all its roles together."""
        first = self.roles[0].parallelism
        if self.pools == "one":
            return first
        axis = "pp" if self.pools == "stages" else "dp"
        whole = sum(getattr(role.parallelism, axis) for role in self.roles)
        return first.model_copy(update={axis: whole})

    @property
    def batches(self) -> tuple[int, ...]:
        """Micro-batches of a data-parallel rank of each role."""
        return self.role_micro_batches or (self.num_micro_batches,) * len(self.roles)

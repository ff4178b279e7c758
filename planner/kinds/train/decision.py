"""What a training problem states beyond model and cluster, and what a training plan decides."""

from typing import Annotated, Literal

from pydantic import Field

from planner.plan.schema import Count, Decision, Index
from planner.schema_base import Spec

Precision = Literal["bf16", "fp8", "mxfp8", "nvfp4"]
Schedule = Literal["1f1b", "interleaved", "zb_h1", "zb_h2", "zb_v", "dualpipe", "dualpipev"]


class TrainOptions(Spec):
    """The job: a plan must train this batch of sequences of this length in this precision."""

    global_batch: Count = Field(description="sequences per optimizer step")
    sequence_tokens: Count
    precision: Precision = "bf16"


Module = Literal["core_attention", "mlp", "moe", "moe_activation", "layernorm", "mla_up_projection"]


class Recompute(Spec):
    """What the backward pass computes again: nothing, some modules of every layer, or the first layers whole."""

    granularity: Literal["none", "selective", "full"] = "none"
    modules: tuple[Module, ...] = ()
    num_layers: Index = Field(default=0, description="with `full`: layers of each stage that are recomputed")


class StageRun(Spec):
    """`stages` consecutive stages alike; stages count in the order in which a micro-batch passes them."""

    stages: Count = 1
    num_layers: Index = Field(description="decoder layers in each of these stages")
    parts: tuple[Literal["embedding", "mtp", "loss"], ...] = ()
    recompute: Recompute = Recompute()


class TrainDecision(Decision):
    """One role of one replica whose parallelism holds all degrees; a pipeline of pp x vpp stages."""

    schedule: Schedule
    stage_runs: Annotated[tuple[StageRun, ...], Field(min_length=1)]
    micro_batch: Count = Field(description="sequences per forward pass of one data-parallel rank")
    num_micro_batches: Count = Field(description="per data-parallel rank and optimizer step")
    zero_stage: Annotated[int, Field(ge=0, le=3)] = 0
    sequence_parallel: bool = False
    context_parallel: Literal["ring", "all_gather", "ulysses"] = "ring"
    precision: Precision = "bf16"
    offload: tuple[Literal["optimizer", "activations"], ...] = ()
    overlap: tuple[Literal["grad_reduce", "param_gather", "tp_comm", "p2p", "ep_comm"], ...] = ()

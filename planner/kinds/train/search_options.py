"""The decisions of a training search: the values that each may take, and what a problem fixes of them."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from planner.costs.training.config import ContextParallel
from planner.kinds.train.samples import ModulesUse
from planner.plan.records import Count
from planner.schema.base import Spec, refuse
from planner.schema.formats import format_field

PrecisionName = Literal["bf16", "fp8", "fp8_block", "mxfp8", "nvfp4"]
Precision = Annotated[PrecisionName, format_field(PrecisionName, "precision")]
Schedule = Literal["1f1b", "interleaved", "zb_h1", "zb_h2", "zb_v", "dualpipe", "dualpipev"]
NamedModule = Literal["core_attention", "mlp", "moe", "moe_activation", "layernorm", "mla_up_projection"]
Module = Literal[NamedModule, "operators"]
Offload = Literal["optimizer", "activations"]
Overlap = Literal["grad_reduce", "param_gather", "tp_comm", "tp_fused", "p2p", "ep_comm"]
RecomputeName = Literal["none", "selective", "full"]
PoolUse = Literal["one", "stages", "replicas"]
ZeroStage = Annotated[int, Field(ge=0, le=3)]


def _listed(value: object) -> object:
    """One value as a list of one, since fixing a decision is the most common wish."""
    return value if value is None or isinstance(value, (list, tuple)) else (value,)


Counts = Annotated[tuple[Count, ...], BeforeValidator(_listed)]
Shards = Annotated[tuple[Count | Literal["all"], ...], BeforeValidator(_listed)]


class SearchSpec(Spec):
    """The values that each decision may take; one value fixes it, none given leaves it free."""

    tp: Counts | None = None
    pp: Counts | None = None
    vpp: Counts | None = None
    dp: Counts | None = None
    cp: Counts | None = None
    ep: Counts | None = None
    moe_tp: Counts | None = None
    micro_batch: Counts | None = None
    schedule: Annotated[tuple[Schedule, ...], BeforeValidator(_listed)] | None = None
    zero_stage: Annotated[tuple[ZeroStage, ...], BeforeValidator(_listed)] | None = None
    zero_shards: Shards | None = Field(
        default=None,
        description="ranks that share out the sharded states: `all`, or fewer (HSDP); none: all, or one NVLink domain",
    )
    recompute: Annotated[tuple[RecomputeName, ...], BeforeValidator(_listed)] | None = None
    recompute_modules: Annotated[tuple[NamedModule, ...], Field(min_length=1), BeforeValidator(_listed)] | None = Field(
        default=None, description="what `selective` computes again, all of it; any of them when absent"
    )
    recompute_layers: Count | Literal["all"] | None = Field(
        default=None, description="of each stage, that `full` computes again whole; any number when absent"
    )
    context_parallel: Annotated[tuple[ContextParallel, ...], BeforeValidator(_listed)] | None = None
    sequence_parallel: Annotated[tuple[bool, ...], BeforeValidator(_listed)] | None = None
    offload: tuple[Offload, ...] = Field(default=(), description="what may be moved to host memory")
    layers: Literal["uneven", "even"] = Field(default="uneven", description="layers of the stages of a pipeline")
    modules: Annotated[tuple[ModulesUse, ...], BeforeValidator(_listed)] = Field(
        default=("colocated",),
        description="where towers and generators run: on the first and the last stage, or on GPUs of their own",
    )
    layerwise: bool = Field(
        default=False, description="whether layers may have a tp and dp, ZeRO stage and recomputation of their own"
    )
    pools: Annotated[tuple[PoolUse, ...], BeforeValidator(_listed)] = Field(
        default=("one", "stages", "replicas"),
        description="where there are several: one of them, stages of a pipeline across them, or whole replicas in each",
    )

    @model_validator(mode="after")
    def in_one_way_by_sequence(self) -> "SearchSpec":
        if len(set(self.sequence_parallel or ())) > 1:
            what = "sequence parallelism is on or off in all plans of a search"
            raise refuse(what, "write `sequence_parallel: true`, or `false`", "sequence_parallel")
        return self

    @model_validator(mode="after")
    def recomputing_what_is_named(self) -> "SearchSpec":
        for name, kind in (("recompute_modules", "selective"), ("recompute_layers", "full")):
            if getattr(self, name) is not None and kind not in (self.recompute or (kind,)):
                raise refuse(f"{name} that nothing recomputes", f"write `recompute: {kind}`", name)
        if self.recompute_layers is not None and self.layerwise:
            raise refuse("recompute_layers where layers differ", "leave it out, or `layerwise`", "recompute_layers")
        return self

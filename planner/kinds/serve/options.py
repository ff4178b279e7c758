"""What a serving problem may restrict, and what a serving plan decides."""

from typing import Annotated, Literal

from pydantic import Field

from planner.plan.schema import Decision
from planner.schema_base import Spec

Degrees = Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)]
Mode = Literal["colocated", "disaggregated"]


class ServeOptions(Spec):
    """The axes of the search; absent axes take every value that the model and the nodes allow."""

    modes: Annotated[tuple[Mode, ...], Field(min_length=1)] = ("colocated", "disaggregated")
    tp: Degrees | None = Field(default=None, description="tensor parallel sizes of attention")
    pp: Degrees | None = Field(default=None, description="pipeline sizes")
    dp: Degrees | None = Field(default=None, description="attention data-parallel sizes inside one instance")
    ep: Degrees | None = Field(default=None, description="expert-parallel sizes")
    max_batch: Degrees | None = Field(default=None, description="decoding sequences per attention rank")
    chunk_tokens: Degrees | None = Field(default=None, description="prefill tokens per step")
    max_gpus_per_instance: Annotated[int, Field(ge=1)] | None = None
    max_prefill_utilisation: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.95, description="how busy prefill may run, even where the limits would allow more"
    )
    attention_ffn: bool = Field(
        default=False, description="weigh decoding with attention and feed-forward layers on devices of their own"
    )
    judged_by: Literal["queueing", "simulation"] = Field(
        default="queueing", description="what judges whether a plan keeps its limits"
    )
    simulated_requests: Annotated[int, Field(ge=100, le=1_000_000)] | None = Field(
        default=None, description="requests of a run; enough for the longest to matter little where absent"
    )


class FrontierPoint(Spec):
    """One non-dominated choice between what a GPU yields and how fast a user reads."""

    tokens_per_s_per_gpu: float
    tokens_per_s_per_user: float
    bound_tokens_per_s_per_gpu: float
    roles: tuple[str, ...]  # such as `4 x decode tp2, batch 128`


class AttentionFfn(Spec):
    """The best way to decode with attention and feed-forward apart, on as many devices as yield most, and its rival.

    Rates are output tokens a second and device of decoding alone, a step no longer than the limit.
    """

    pays: bool
    attention_gpus: int
    ffn_gpus: int
    attention_tp: int
    ffn_tp: int
    ep: int
    micro_batches: int
    sequences: int
    tokens_per_s_per_gpu: float
    limited_by: Literal["attention", "feed-forward", "network", "latency"]
    together_tokens_per_s_per_gpu: float


class ServeDecision(Decision):
    """Instances by role with their shapes and limits, where they stand, and how requests flow.

    Role functions: colocated, prefill, decode. Limits of a role: max_batch (sequences per attention rank), chunk_tokens
    (prefill tokens per step), max_context_tokens.
    """

    mode: Literal["colocated", "disaggregated", "mixed"]
    kv_transfer_bytes_per_s: float = 0.0  # all prefill to decode traffic of the plan
    frontier: tuple[FrontierPoint, ...] = ()  # where the objective is a trade-off
    attention_ffn: AttentionFfn | None = None  # where the options ask for it, and a design keeps the limit

"""Schema of pools of stages for speech: options of each stage as measured, and what a listener hears."""

from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from planner.documents.units import FRACTION, TIME_S
from planner.kinds.workflow.pool_options import Amount, DecodeOption, PoolOption, PrefillOption, require_names
from planner.plan.records import Count
from planner.schema.base import Spec, refuse
from planner.schema.fields import Positive

CountFromZero = Annotated[int, Field(ge=0)]


class AudioSpec(Spec):
    """Seconds of what is said: log-normal of a mean and CV, kept between two ends."""

    mean_s: Positive
    cv: Amount = 0.0
    low_s: Positive = Field(default=0.5, description="shorter ones are as long")
    high_s: Positive = Field(default=60.0, description="longer ones are as long")

    @model_validator(mode="after")
    def ends_in_order(self) -> "AudioSpec":
        if self.low_s > self.high_s:
            what = f"what is said takes {self.low_s:g} s at least and {self.high_s:g} s at most"
            raise refuse(what, "write `low_s` no more than `high_s`", "low_s")
        return self


class EncodeOption(PoolOption):
    """Seconds to encode what is said."""

    base_s: Amount = 0.0
    per_audio_s: Amount = Field(default=0.0, description="for each second of it")


class VocodeOption(PoolOption):
    """Seconds to turn a chunk of tokens into sound."""

    base_s: Amount = 0.0
    per_token_s: Amount = 0.0


class SpeechOptions(Spec):
    """Pools of encode, prefill, decode and vocode; first audio is limited by `slo.ttft` of the workload."""

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {
        "slack": ("slack_s", TIME_S),
        "late_share": ("late_share", FRACTION),
    }
    audio: AudioSpec
    audio_tokens_per_s: Positive = Field(default=25.0, description="of what is said and of what is played")
    first_chunks: Annotated[tuple[Count, ...], Field(min_length=1)] = Field(
        default=(5, 10, 25), description="tokens of the first chunk to choose from"
    )
    chunk_tokens: Count = Field(default=25, description="of later chunks")
    context_tokens: CountFromZero = Field(default=25, description="that vocode takes in again with each later chunk")
    slack_s: Amount = Field(default=0.05, description="by which a chunk may be behind its time to be played")
    late_share: Annotated[float, Field(ge=0, lt=1)] = Field(default=0.01, description="of later chunks at most")
    most_replicas: Count = Field(default=16, description="of a stage")
    encode: Annotated[tuple[EncodeOption, ...], Field(min_length=1)]
    prefill: Annotated[tuple[PrefillOption, ...], Field(min_length=1)]
    decode: Annotated[tuple[DecodeOption, ...], Field(min_length=1)]
    vocode: Annotated[tuple[VocodeOption, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def named_once(self) -> "SpeechOptions":
        for stage in ("encode", "prefill", "decode", "vocode"):
            require_names(stage, getattr(self, stage))
        return self

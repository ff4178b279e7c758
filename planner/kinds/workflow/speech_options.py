"""Schema of pools of stages for speech: options of each stage as measured, and what a listener hears."""

from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from planner.documents.units import FRACTION, TIME_S
from planner.plan.records import Count
from planner.schema.base import Spec, refuse

Amount = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Key = Annotated[str, Field(min_length=1, max_length=60)]
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


class PoolOption(Spec):
    """GPUs that a replica of a stage stands on."""

    name: Key
    pool: Key | None = Field(default=None, description="of the cluster; the only one when absent")
    gpus: Count = Field(default=1, description="of a replica")


class EncodeOption(PoolOption):
    """Seconds to encode what is said."""

    base_s: Amount = 0.0
    per_audio_s: Amount = Field(default=0.0, description="for each second of it")


class PrefillOption(PoolOption):
    """Seconds to prefill what is said, as tokens, and the prompt around it."""

    base_s: Amount = 0.0
    per_token_s: Amount = 0.0


class DecodeOption(PoolOption):
    """Replies that a replica runs at once, and seconds a token of each of them with all slots full."""

    slots: Count
    step_s: Positive


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
            names = [option.name for option in getattr(self, stage)]
            if len(set(names)) != len(names):
                raise refuse(f"two options of `{stage}` have the same name", "give each its own", stage)
        return self

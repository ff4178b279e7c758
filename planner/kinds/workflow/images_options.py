"""Schema of pools of stages for images: options of each stage as measured, and how many images requests have."""

import math
from typing import Annotated

from pydantic import Field, model_validator

from planner.kinds.workflow.pool_options import Amount, DecodeOption, PoolOption, PrefillOption, require_names
from planner.plan.records import Count
from planner.schema.base import Spec, refuse


class ImageEncodeOption(PoolOption):
    """Seconds to encode images: those of a request together, or each on its own where they are split."""

    base_s: Amount = 0.0
    per_image_s: Amount = Field(default=0.0, description="for each image")


class ImagePrefillOption(PrefillOption):
    """Prefill, and what encoding takes on the same GPUs where no pool encodes."""

    encode_base_s: Amount | None = Field(
        default=None, description="for requests with images, where it encodes too; it never does when absent"
    )
    encode_per_image_s: Amount = Field(default=0.0, description="for each image, where it encodes too")

    @model_validator(mode="after")
    def of_encoding(self) -> "ImagePrefillOption":
        if self.encode_base_s is None and self.encode_per_image_s:
            what = "`encode_per_image_s` is of options that encode too, and this has no `encode_base_s`"
            raise refuse(what, "write `encode_base_s: 0`", "encode_per_image_s")
        return self


class ImagesOptions(Spec):
    """Pools of encode (or none), prefill and decode; `slo.ttft` and `slo.tpot` of the workload limit them."""

    shares: Annotated[tuple[Amount, ...], Field(min_length=2)] = Field(
        description="of requests with 0, 1, 2 and so on images; they add up to 1"
    )
    image_tokens: Count = Field(description="that prefill takes in of an image")
    move_per_image_s: Amount = Field(default=0.0, description="to move features from an encode pool to prefill")
    move_per_token_s: Amount = Field(default=0.0, description="to move the KV cache of a prompt to decode")
    split_images: bool | None = Field(
        default=None, description="whether images of a request are encoded side by side; chosen when absent"
    )
    most_replicas: Count = Field(default=16, description="of a stage")
    encode: tuple[ImageEncodeOption, ...] = Field(default=(), description="of a pool that encodes; none when empty")
    prefill: Annotated[tuple[ImagePrefillOption, ...], Field(min_length=1)]
    decode: Annotated[tuple[DecodeOption, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def whole(self) -> "ImagesOptions":
        for stage in ("encode", "prefill", "decode"):
            require_names(stage, getattr(self, stage))
        if not math.isclose(sum(self.shares), 1.0, abs_tol=1e-6):
            raise refuse(f"shares of requests add up to {sum(self.shares):g}", "make them add up to 1", "shares")
        if not sum(self.shares[1:]):
            raise refuse("no request has images", "give a share above 0 behind the first", "shares")
        if not self.encode and all(option.encode_base_s is None for option in self.prefill):
            what = "no option encodes images"
            raise refuse(what, "give options of `encode`, or an option of `prefill` its `encode_base_s`", "encode")
        return self

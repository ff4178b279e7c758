"""What requests bring beside text, images and sounds, as problems state it.

Tokens that they become are among `input_tokens`, as engines count prompts.
"""

import math
from statistics import NormalDist
from typing import Annotated

import numpy as np
from pydantic import Field, model_validator

from planner.arrays import Floats
from planner.schema.base import Spec, refuse
from planner.schema.fields import Positive

PARTS = 64  # equally likely ones that stand for a distribution
SPREADS = 4.0  # deviations above the mean at which moments are taken to end

Name = Annotated[str, Field(min_length=1)]


class MomentAmounts(Spec):
    """Log-normal amounts of this mean and coefficient of variation."""

    mean: Positive = Field(description="images or seconds of a request")
    cv: Annotated[float, Field(ge=0)] = Field(default=0.0, description="standard deviation over mean")


class ListedAmounts(Spec):
    """These amounts, each of its share of the requests."""

    values: Annotated[tuple[Annotated[float, Field(ge=0)], ...], Field(min_length=1)] = Field(
        description="images or seconds of a request, 0 among them"
    )
    shares: tuple[Positive, ...] = Field(description="of the requests, one for each value; they add up to 1")

    @model_validator(mode="after")
    def whole(self) -> "ListedAmounts":
        if len(self.values) != len(self.shares):
            what = f"{len(self.values)} values with {len(self.shares)} shares"
            raise refuse(what, "give each value its share", "shares")
        if not math.isclose(sum(self.shares), 1.0, abs_tol=1e-6):
            raise refuse(f"shares of requests add up to {sum(self.shares):g}", "make them add up to 1", "shares")
        if not any(self.values):
            raise refuse("no request has any", "give a value above 0, or leave the media out", "values")
        return self


class TraceAmounts(Spec):
    """The amounts in a column of a trace; a plan keeps their distribution."""

    trace: Name = Field(description="path of a CSV file (`.gz` too) or of JSON lines, one request a row")
    column: Name | None = Field(default=None, description="defaults to `images` or `audio_s`")


Amounts = Annotated[Positive, Field(description="every request alike")] | MomentAmounts | ListedAmounts | TraceAmounts


class ImagesSpec(Spec):
    """Images of a request, all of one size."""

    count: Amounts = Field(default=1.0, description="of a request")
    width: Annotated[int, Field(ge=1)] | None = Field(default=None, description="in pixels")
    height: Annotated[int, Field(ge=1)] | None = Field(default=None, description="in pixels")
    tokens: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="of the prompt that an image becomes, where its size is not stated"
    )

    @model_validator(mode="after")
    def sized(self) -> "ImagesSpec":
        size = (self.width is None) + (self.height is None)
        if size == 1 or (size == 0) == (self.tokens is not None):
            raise refuse("an image has either a size or tokens", "write `width` and `height`, or `tokens`")
        return self


def distribution(amounts: "float | MomentAmounts | ListedAmounts") -> ListedAmounts:
    """Amounts and their shares; of moments the means of `PARTS` equally likely parts."""
    if isinstance(amounts, ListedAmounts):
        return amounts
    if isinstance(amounts, MomentAmounts) and amounts.cv > 0.0:
        sigma = math.sqrt(math.log1p(amounts.cv**2))
        edges = [-math.inf, *(NormalDist().inv_cdf(part / PARTS) for part in range(1, PARTS)), math.inf]
        below = np.array([NormalDist().cdf(edge - sigma) for edge in edges])
        values = amounts.mean * np.diff(below) * PARTS
        return ListedAmounts(values=tuple(values.tolist()), shares=(1.0 / PARTS,) * PARTS)
    value = amounts.mean if isinstance(amounts, MomentAmounts) else amounts
    return ListedAmounts(values=(value,), shares=(1.0,))


def listed(values: Floats) -> ListedAmounts:
    """Recorded amounts: each with how often it comes, or means of `PARTS` parts where more differ."""
    different, counts = np.unique(values, return_counts=True)
    if len(different) > PARTS:
        parts = np.array_split(np.sort(values), PARTS)
        different, counts = np.array([part.mean() for part in parts]), np.array([len(part) for part in parts])
    return ListedAmounts(values=tuple(different.tolist()), shares=tuple((counts / counts.sum()).tolist()))


def most_images(images: ImagesSpec) -> int:
    """Of a request, `SPREADS` deviations above the mean of moments."""
    if isinstance(images.count, MomentAmounts):
        return math.ceil(images.count.mean * (1.0 + SPREADS * images.count.cv))
    assert not isinstance(images.count, TraceAmounts), "problems are resolved"
    return math.ceil(max(distribution(images.count).values))

"""Schema of memory for prefixes: tiers that are bought in units, and `cache` of a serving problem."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from planner.documents.units import BYTES, BYTES_PER_S, TIME_S
from planner.schema.base import Spec, refuse
from planner.schema.fields import Positive

Units = Annotated[int, Field(ge=0, le=100_000)]
UsdPerGb = Annotated[float, Field(ge=0)]


class CacheTierSpec(Spec):
    """Memory that is bought in units, for blocks that the tier before it evicts."""

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {
        "unit": ("unit_bytes", BYTES),
        "bandwidth": ("bandwidth_bytes_per_s", BYTES_PER_S),
        "request_bandwidth": ("request_bandwidth_bytes_per_s", BYTES_PER_S),
    }
    name: str
    unit_bytes: Positive = Field(description="the least that can be bought, and the step")
    max_units: Units
    usd_per_gb_hour: UsdPerGb
    bandwidth_bytes_per_s: Positive = Field(description="to all requests, held in every window")
    request_bandwidth_bytes_per_s: Positive | None = Field(
        default=None, description="to one request; that of the tier if absent"
    )

    @property
    def to_a_request_bytes_per_s(self) -> float:
        """What one request gets while no other fetches."""
        return min(self.request_bandwidth_bytes_per_s or self.bandwidth_bytes_per_s, self.bandwidth_bytes_per_s)


class ServingTierSpec(CacheTierSpec):
    """A tier that all serving instances share; its name says what it is, and so how engines are told of it."""

    name: Literal["host", "ssd", "pool"]


class PrefixCacheSpec(Spec):
    """What may be bought for prefixes beside GPUs, fastest first; all instances share it."""

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {"window": ("window_s", TIME_S)}
    tiers: tuple[ServingTierSpec, ...]
    window_s: Positive = Field(default=60.0, description="in which no tier gives more than its bandwidth")
    block_tokens: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="of a block where the trace names conversations; 512 if absent"
    )

    @model_validator(mode="after")
    def named_once(self) -> "PrefixCacheSpec":
        if not self.tiers:
            raise refuse("no tier is given", "give one or more, fastest first", "tiers")
        refuse_same_names(self.tiers)
        return self


def refuse_same_names(tiers: Sequence[CacheTierSpec]) -> None:
    """Raises where two tiers have one name."""
    names = [tier.name for tier in tiers]
    for index, name in enumerate(names):
        if names.index(name) < index:
            raise refuse(f"two tiers are called `{name}`", "give each a name of its own", "tiers")

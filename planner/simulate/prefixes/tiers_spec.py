"""Schema of the file of `planner cache TRACE --tiers FILE`: what memory costs and gives, and what computing costs."""

from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from planner.documents.read import load_document
from planner.documents.units import BYTES, TIME_S, USD_PER_HOUR, format_si
from planner.errors import PlannerError
from planner.problem.prefix_tiers import CacheTierSpec, refuse_same_names
from planner.schema.base import Spec, Where, refuse
from planner.schema.fields import Positive
from planner.schema.keys import validated

SCHEMA: Final = "planner.cache/1"


class CacheSpec(Spec):
    """Tiers, fastest first, and what a block costs where no tier has it."""

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {
        "block": ("block_bytes", BYTES),
        "compute": ("compute_s", TIME_S),
        "compute_per_position": ("compute_s_per_position", TIME_S),
        "instance": ("instance_usd_per_hour", USD_PER_HOUR),
        "window": ("window_s", TIME_S),
    }
    schema_: Literal["planner.cache/1"] = Field(default=SCHEMA, alias="schema")
    block_bytes: Positive = Field(description="of the keys and values of a block of the trace")
    compute_s: Annotated[float, Field(ge=0)] = Field(description="to prefill the first block of a prompt")
    compute_s_per_position: Annotated[float, Field(ge=0)] = Field(
        default=0.0, description="by which each further block of a prompt takes longer"
    )
    instance_usd_per_hour: Annotated[float, Field(ge=0)] = Field(description="of what computes, or waits for a fetch")
    window_s: Positive = Field(default=60.0, description="in which no tier gives more than its bandwidth")
    tiers: tuple[CacheTierSpec, ...]

    @model_validator(mode="after")
    def tiers_hold_blocks(self) -> Self:
        if not self.tiers:
            raise refuse("no tier is given", "give one or more, fastest first", "tiers")
        for index, tier in enumerate(self.tiers):
            if tier.unit_bytes < self.block_bytes:
                unit, block = format_si(tier.unit_bytes, "B"), format_si(self.block_bytes, "B")
                raise refuse(
                    f"a unit of `{tier.name}` has {unit}, and a block {block}",
                    "give a unit that holds a block or more",
                    ("tiers", index, "unit"),
                )
        refuse_same_names(self.tiers)
        return self


def load_cache_spec(path: str) -> CacheSpec:
    """The tiers in a YAML or JSON file; raises PlannerError with file, line and fix."""
    document = load_document(path)
    where = Where(lambda: document.lines, document.source)
    if not isinstance(document.data, dict):
        what = "tiers of a cache are a mapping of keys to values"
        raise PlannerError(what, where=where(()), hint=f"start it with `schema: {SCHEMA}`")
    return validated(CacheSpec, document.data, where)

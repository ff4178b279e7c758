"""Schema of graphs whose stages are primitives that engines take in batches (Teola)."""

from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from planner.documents.units import TIME_S
from planner.kinds.workflow.latency_options import Amount, Key
from planner.plan.records import Count
from planner.schema.base import Spec, refuse


class PrimitiveSpec(Spec):
    """What a batch of one kind of primitive takes on its engine: `setup` and `each` for every member."""

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {
        "setup": ("setup_s", TIME_S),
        "each": ("each_s", TIME_S),
    }
    engine: Key = Field(description="runs one batch at a time, of one kind")
    setup_s: Amount = 0.0
    each_s: Amount = 0.0
    most_members: Count = Field(default=1, description="of a batch")

    @model_validator(mode="after")
    def takes_time(self) -> "PrimitiveSpec":
        if self.setup_s + self.each_s <= 0.0:
            raise refuse("a batch takes no time", "give `setup` or `each` above 0")
        return self


class EnginesSpec(Spec):
    """Kinds of primitives, and queries that each are one copy of the graph."""

    primitives: Annotated[dict[Key, PrimitiveSpec], Field(min_length=1)] = Field(
        description="by name, as stages name them"
    )
    queries_s: Annotated[tuple[Amount, ...], Field(min_length=1, max_length=1000)] = Field(
        description="when each query comes"
    )

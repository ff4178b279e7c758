"""Schema of graphs whose stages are split over functions on servers, and grouped where they share memory (Ditto)."""

from typing import Annotated, ClassVar

from pydantic import Field

from planner.documents.units import TIME_S
from planner.plan.records import Count
from planner.schema.base import Spec

Slots = Annotated[int, Field(ge=1, le=100_000)]


class WorkPart(Spec):
    """Seconds of a part of a stage: what its functions share, and what each takes; fits may be below 0."""

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {
        "split": ("split_s", TIME_S),
        "whole": ("whole_s", TIME_S),
    }
    split_s: float = Field(default=0.0, description="divided by the number of functions")
    whole_s: float = Field(default=0.0, description="of any number of functions")


class WorkSpec(Spec):
    """Work of a stage: with d functions max(0, sum of `split`) / d + max(0, sum of `whole`) over its parts."""

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {"one_function": ("one_function_s", TIME_S)}
    computes: WorkPart = WorkPart()
    reads: WorkPart = Field(default=WorkPart(), description="through storage, or memory where all before it are near")
    writes: WorkPart = Field(default=WorkPart(), description="through storage, or memory where all behind it are near")
    one_function_s: Annotated[float, Field(ge=0)] | None = Field(
        default=None, description="of a stage that cannot be split, away from those before and behind it"
    )


class ServersSpec(Spec):
    """Servers that functions of all stages stand on."""

    slots: Annotated[tuple[Slots, ...], Field(min_length=1, max_length=1000)] = Field(
        description="functions that each server holds"
    )
    most_members: Count = Field(default=3, description="linked stages of a group, which stands on one server")
    memory_speedup: Annotated[float, Field(ge=1)] = Field(
        default=50.0, description="times that reads and writes through memory are as fast as through storage"
    )

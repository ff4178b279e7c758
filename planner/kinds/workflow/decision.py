"""Schema of workflow plans: the option of every stage, with the serving plan of each model."""

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field, JsonValue, model_validator

from planner.plan.records import Amount, Count, Index
from planner.plan.schema import Decision, Role
from planner.schema.base import Spec, refuse


class StageChoice(Spec):
    """The option of a stage: a function on so many servers, or a serving plan of its own with the roles that it has."""

    stage: str = Field(description="of the problem")
    option: str = Field(description="its function, or where its model is served")
    usd_per_hour: Amount | None = Field(default=None, description="of its servers, calls or GPUs; none of schedules")
    servers: Count | None = Field(default=None, description="of a function with servers")
    functions: Count | None = Field(default=None, description="that its work is split over")
    transfer_order: tuple[str, ...] = Field(
        default=(), description="of clusters beyond GPU memory: each is moved, and computed, behind those before it"
    )
    roles: tuple[str, ...] = Field(default=(), description="of its serving plan, by their names in this plan")
    limit_s: Amount | None = Field(
        default=None,
        description="that its plan is for: on the p95 of the stage, or a lower percentile of the whole; on first "
        "tokens where no stage and no limit waits for its end",
    )
    plan: dict[str, JsonValue] | None = Field(
        default=None, description="of kind `serve`, on devices counted from 0 in pools of its own"
    )


class StageGroup(Spec):
    """Linked stages whose functions stand on one server, and hand over through its memory."""

    stages: Annotated[tuple[str, ...], Field(min_length=2)]
    server: Index = Field(description="of `servers.slots` of the problem")


class EngineBatch(Spec):
    """Primitives of one kind that an engine takes together: a stage of a query each."""

    engine: str
    primitive: str
    start_s: Amount
    queries: Annotated[tuple[Index, ...], Field(min_length=1)] = Field(
        description="of each member, by its place in `engines.queries_s` of the problem"
    )
    stages: tuple[str, ...] = Field(description="of each member")

    @model_validator(mode="after")
    def of_each(self) -> "EngineBatch":
        if len(self.queries) != len(self.stages):
            raise refuse(f"{len(self.queries)} queries and {len(self.stages)} stages", "give a member both", "stages")
        return self

    @property
    def members(self) -> Iterator[tuple[int, str]]:
        """Queries and stages."""
        return zip(self.queries, self.stages, strict=True)


class WorkflowDecision(Decision):
    """Roles of all serving plans, on the devices of the whole, and the choice of every stage."""

    roles: tuple[Role, ...] = ()
    stages: Annotated[tuple[StageChoice, ...], Field(min_length=1)] = Field(
        description="what was chosen for every stage, in an order in which each comes behind those it waits for"
    )

    first_chunk_tokens: Count | None = Field(default=None, description="of the first audio, where stages are of speech")
    split_images: bool | None = Field(
        default=None, description="whether replicas of an encode pool take images of a request side by side"
    )

    groups: tuple[StageGroup, ...] = Field(default=(), description="of stages split over functions on servers")
    batches: tuple[EngineBatch, ...] = Field(default=(), description="of primitives on engines, by start")

    def reasons(self) -> tuple[str, ...]:
        """What each stage costs, or how a schedule is the shortest."""
        if self.batches:
            return (f"{len(self.batches)} batches, so that queries end soonest on average",)
        if any(stage.functions is not None for stage in self.stages):
            split = ", ".join(f"`{stage.stage}` {stage.functions}" for stage in self.stages)
            return (f"functions and groups with which the graph ends soonest: {split}",)
        paid = ", ".join(
            f"`{stage.stage}` {stage.option} for {stage.usd_per_hour or 0.0:.4g} USD/h" for stage in self.stages
        )
        return (f"the cheapest stages that keep the limits together: {paid}",)

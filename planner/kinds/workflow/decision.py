"""Schema of workflow plans: the option of every stage, with the serving plan of each model."""

from typing import Annotated

from pydantic import Field, JsonValue

from planner.plan.records import Amount, Count
from planner.plan.schema import Decision, Role
from planner.schema.base import Spec


class StageChoice(Spec):
    """The option of a stage: a function on so many servers, or a serving plan of its own with the roles that it has."""

    stage: str = Field(description="of the problem")
    option: str = Field(description="its function, or where its model is served")
    usd_per_hour: Amount = Field(description="of its servers, calls or GPUs")
    servers: Count | None = Field(default=None, description="of a function with servers")
    roles: tuple[str, ...] = Field(default=(), description="of its serving plan, by their names in this plan")
    limit_s: Amount | None = Field(default=None, description="on the p95 of the stage, that its serving plan is for")
    plan: dict[str, JsonValue] | None = Field(
        default=None, description="of kind `serve`, on devices counted from 0 in pools of its own"
    )


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

    def reasons(self) -> tuple[str, ...]:
        """What each stage costs."""
        paid = ", ".join(f"`{stage.stage}` {stage.option} for {stage.usd_per_hour:.4g} USD/h" for stage in self.stages)
        return (f"the cheapest stages that keep the limits together: {paid}",)

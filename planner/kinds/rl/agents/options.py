"""Schema of agents in RL problems, and of what their plans decide beyond other RL plans."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from planner.documents.units import TIME_S
from planner.plan.records import Amount, Count, Index
from planner.schema.base import Spec, refuse

MOST_STALENESS = 64  # iterations ahead, each an arrangement to price
Priority = Literal["fifo", "longest_first"]
AgentDispatch = Literal["fifo", "longest_first", "assigned"]


class AgentTrajectory(Spec):
    """Turns of output; every turn but the last ends with a tool call."""

    input_tokens: Index = Field(description="of the prompt")
    output_tokens: Annotated[tuple[Count, ...], Field(min_length=1)] = Field(description="by turn")
    wait_s: tuple[Amount, ...] = Field(default=(), description="by tool call: until it returns")
    observation_tokens: tuple[Index, ...] = Field(default=(), description="by tool call: what it adds to the context")
    predicted: tuple[float, ...] | None = Field(
        default=None, description="output tokens left before each turn; the true ones when absent"
    )

    @model_validator(mode="after")
    def aligned(self) -> "AgentTrajectory":
        turns = len(self.output_tokens)
        wanted = {"wait_s": turns - 1, "observation_tokens": turns - 1, "predicted": turns}
        for name, size in wanted.items():
            given = getattr(self, name)
            if given is not None and len(given) != size:
                raise refuse(f"{len(given)} figures, {turns} turns have {size}", f"give {size}", name)
        return self


class AgentBatch(Spec):
    """The trajectories of one iteration."""

    trajectories: Annotated[tuple[AgentTrajectory, ...], Field(min_length=1)] = Field(
        description="as many as `prompts`"
    )


class Agents(Spec):
    """Trajectories one by one, what a tool call does to them, and what a plan may choose of.

    Replicas of up to two kinds generate. A trajectory that moves in a call sends its KV cache, which takes
    move_s + move_token_s for each token of it.
    """

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {"move": ("move_s", TIME_S)}
    batches: Annotated[tuple[AgentBatch, ...], Field(min_length=1)] = Field(description="of successive iterations")
    staleness: Annotated[tuple[Annotated[int, Field(ge=0, le=MOST_STALENESS)], ...], Field(min_length=1)] = Field(
        default=(0,), description="iterations by which generation may run ahead of training, each one allowed"
    )
    dispatches: Annotated[tuple[AgentDispatch, ...], Field(min_length=1)] = Field(
        default=("fifo",),
        description="one queue of all trajectories, as listed or the longest predicted first, or a replica for each",
    )
    priorities: Annotated[tuple[Priority, ...], Field(min_length=1)] = Field(
        default=("fifo",), description="who goes first of those that wait: the first, or the predicted longest"
    )
    move_thresholds: Annotated[tuple[Annotated[float, Field(ge=1)] | None, ...], Field(min_length=1)] = Field(
        default=(None,),
        description="a trajectory moves in a call to a replica whose step is so many times shorter; null is never",
    )
    keep_kv: bool = Field(default=True, description="a call keeps the KV cache; else the context is prefilled again")
    move_s: Amount = Field(default=0.0, description="sending a KV cache to another replica")
    move_token_s: Amount = Field(default=0.0, description="in addition, for each token of it")


class AgentRollouts(Spec):
    """Who starts where, and how many trajectories move in their calls."""

    assignment: tuple[tuple[Index, ...], ...] = Field(
        default=(), description="by iteration and trajectory: its replica, counted over the roles; of `assigned` alone"
    )
    moved: Index = Field(description="trajectories that go to another replica in a call, over all iterations")

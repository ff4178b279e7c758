"""The decision of a plan of a day: nodes of every job by window, what runs beside them, curves, and plans."""

import operator
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from planner.plan.records import Amount, Count, Index
from planner.plan.schema import Decision
from planner.schema.base import Spec


class ElasticRun(Spec):
    """GPUs of an elastic job by pool, on which its logical workers run in turn."""

    gpus: dict[str, Count]
    step_s: Amount
    speed: Amount = Field(description="of that of its reference")


class Window(Spec):
    """Nodes of every job, and nodes that nobody has, in a phase of the plan."""

    hours: str = Field(description="from and to, by the clock")
    nodes: dict[str, Index]
    idle_nodes: Index = 0
    pools: dict[str, dict[str, Count]] = Field(
        default_factory=dict,
        exclude_if=operator.not_,
        description="nodes of every job by pool, where there are several",
    )
    elastic: dict[str, ElasticRun] = Field(default_factory=dict, exclude_if=operator.not_)


class SharedRun(Spec):
    """An opportunistic job on GPUs of production jobs."""

    job: str
    rate: Amount = Field(description="share of full speed at which it is held")
    speed: Amount = Field(description="that it has on the slowest of its GPUs")
    gpus: dict[str, Count] = Field(description="of the jobs on whose GPUs it runs")


class SharedWindow(Spec):
    """What runs beside production in a window."""

    window: Index
    usd_per_hour: Amount
    bound_usd_per_hour: Amount
    runs: tuple[SharedRun, ...] = ()
    losses: dict[str, Amount] = Field(default_factory=dict, description="the most that a GPU of a job loses, a share")


class CurvePoint(Spec):
    """What a job makes of a number of nodes, as so many copies of a plan."""

    job: str
    nodes: Count
    units_per_hour: Amount
    copies: Count = 1
    pools: dict[str, Count] = Field(
        default_factory=dict, exclude_if=operator.not_, description="the nodes by pool, where there are several"
    )


class JobDay(Spec):
    """What a job makes in the day, and what that is worth."""

    job: str
    node_hours: Amount
    units: Amount
    missing: Amount = 0.0
    starts: Index = 0
    usd: float


class BesideDay(Spec):
    """What an elastic or opportunistic job has in the day, and what that is worth."""

    job: str
    gpu_hours: Amount
    mean_speed: Amount = Field(description="over the whole day")
    least_speed: Amount = Field(description="in any window")
    usd: Amount


class NodeMove(Spec):
    """A node that a job gives up, or one that it takes."""

    job: str
    action: Literal["drop", "bring"]
    pool: str
    node: Index


class Change(Spec):
    """What moves where the split changes, in order, and what is lost until all that arrives has started up."""

    at: str = Field(description="by the clock")
    moves: tuple[NodeMove, ...]
    moved_bytes: Amount = Field(description="of weights, to the nodes that arrive")
    least_s: Amount = Field(description="in which the network of a node can bring its part")
    lost_node_hours: Amount
    lost_usd: Amount = Field(description="of what is not made meanwhile, at what a unit is worth")


class JobPlan(Spec):
    """The plan of a job on a number of nodes; on more of them it runs in copies."""

    job: str
    nodes: Count
    plan: dict[str, JsonValue] = Field(description="a plan of its own kind")
    pool: str | None = Field(default=None, description="of the nodes, where there are several")

    @property
    def label(self) -> str:
        """`chat-1`, or `chat-h200-1` of several pools."""
        return f"{self.job}-{self.nodes}" if self.pool is None else f"{self.job}-{self.pool}-{self.nodes}"


class FleetDecision(Decision):
    """Who has which nodes when."""

    windows: Annotated[tuple[Window, ...], Field(min_length=1)]
    days: tuple[JobDay, ...]
    curves: tuple[CurvePoint, ...]
    plans: tuple[JobPlan, ...] = ()
    opportunistic: tuple[SharedWindow, ...] = Field(default=(), exclude_if=operator.not_)
    beside: tuple[BesideDay, ...] = Field(default=(), exclude_if=operator.not_)
    changes: tuple[Change, ...] = Field(default=(), exclude_if=operator.not_)

    def parts(self) -> dict[str, dict[str, JsonValue]]:
        """The plans of the jobs by their place in the decision."""
        return {f"decision.plans.{each.label}": each.plan for each in self.plans}

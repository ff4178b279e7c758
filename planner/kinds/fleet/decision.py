"""The decision of a plan of a day: nodes of every job by window, curves, and the plans of the jobs."""

from typing import Annotated

from pydantic import Field, JsonValue

from planner.plan.records import Amount, Count, Index
from planner.plan.schema import Decision
from planner.schema.base import Spec


class Window(Spec):
    """Nodes of every job, and nodes that nobody has, in a phase of the plan."""

    hours: str = Field(description="from and to, by the clock")
    nodes: dict[str, Index]
    idle_nodes: Index = 0


class CurvePoint(Spec):
    """What a job makes of a number of nodes, as so many copies of a plan."""

    job: str
    nodes: Count
    units_per_hour: Amount
    copies: Count = 1


class JobDay(Spec):
    """What a job makes in the day, and what that is worth."""

    job: str
    node_hours: Amount
    units: Amount
    missing: Amount = 0.0
    starts: Index = 0
    usd: float


class JobPlan(Spec):
    """The plan of a job on a number of nodes; on more of them it runs in copies."""

    job: str
    nodes: Count
    plan: dict[str, JsonValue] = Field(description="a plan of its own kind")


class FleetDecision(Decision):
    """Who has which nodes when."""

    windows: Annotated[tuple[Window, ...], Field(min_length=1)]
    days: tuple[JobDay, ...]
    curves: tuple[CurvePoint, ...]
    plans: tuple[JobPlan, ...] = ()

    def parts(self) -> dict[str, dict[str, JsonValue]]:
        """The plans of the jobs by their place in the decision."""
        return {f"decision.plans.{each.job}-{each.nodes}": each.plan for each in self.plans}

"""Schema of the rack of every node in a training plan."""

from pydantic import Field

from planner.plan.records import Amount, Index
from planner.schema.base import Spec


class RackPlacement(Spec):
    """Which rack every node stands on: a node holds the same part of its stage throughout."""

    rack_of_node: tuple[tuple[Index, ...], ...] = Field(description="by stage, nodes in the order of their ranks")
    busiest_uplink_s: Amount = Field(description="that the busiest uplink sends in a step")
    bound_s: Amount = Field(description="no placement on these racks has a less busy one")
    rank_order_s: Amount = Field(description="of ranks dealt to the racks in order")
    step_waits_s: Amount = Field(default=0.0, description="for uplinks, beyond what passes and exchanges hide")
    step_waits_least_s: Amount = Field(default=0.0, description="under any placement of this plan")

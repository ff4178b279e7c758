"""Schema of racks: free nodes and uplinks in a training problem, the rack of every node in its plan."""

from typing import Annotated, ClassVar

from pydantic import Field

from planner.documents.units import BYTES_PER_S
from planner.plan.records import Amount, Index
from planner.problem.schema import Positive
from planner.schema.base import Spec


class RackSpec(Spec):
    """Racks that the job may stand on: free nodes of each, and what leaves one."""

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {"uplink": ("uplink_bytes_per_s", BYTES_PER_S)}
    free_nodes: Annotated[tuple[Index, ...], Field(min_length=1)] = Field(description="of each rack")
    uplink_bytes_per_s: Positive = Field(description="of each rack and direction")


class RackPlacement(Spec):
    """Which rack every node stands on: a node holds the same part of its stage throughout."""

    rack_of_node: tuple[tuple[Index, ...], ...] = Field(description="by stage, nodes in the order of their ranks")
    busiest_uplink_s: Amount = Field(description="that the busiest uplink sends in a step")
    bound_s: Amount = Field(description="no placement on these racks has a less busy one")
    rank_order_s: Amount = Field(description="of ranks dealt to the racks in order")

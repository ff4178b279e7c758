"""Schema of multi-model placement problems (options) and plans (decision)."""

from typing import Annotated

from pydantic import Field

from planner.plan.records import Amount, Count
from planner.plan.schema import Decision, Fraction
from planner.schema.base import Spec


class PlaceOptions(Spec):
    """Limits of the placement."""

    max_group_gpus: Count | None = Field(default=None, description="devices that one group may have at most")
    min_replicas: Count = Field(default=1, description="groups that every model with a workload must live on")


class Host(Spec):
    """A model that lives on a group, beside others: all weights stay in memory, requests take turns."""

    group: str = Field(description="name of the role that is the group")
    model: str = Field(description="key of the problem's models")
    weights_bytes: Amount = Field(description="on the fullest device of the group")
    share: Fraction = Field(default=1.0, description="of all requests to the model")
    max_batch: Count = 1


class PlaceDecision(Decision):
    """Each role of function `group` is one set of devices with its parallelism; `hosts` say which models live there."""

    hosts: Annotated[tuple[Host, ...], Field(min_length=1)]

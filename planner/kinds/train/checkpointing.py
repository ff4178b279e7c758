"""Schema of checkpointing: failure rates and storage in a training problem, interval and tier in its plan."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from planner.documents.units import BYTES_PER_S, FRACTION, TIME_S
from planner.plan.records import Count, Index
from planner.schema.base import Spec
from planner.schema.fields import Positive

TierName = Literal["synchronous", "asynchronous", "on_failure"]


class Reliability(Spec):
    """Where checkpoints go, and how often machines fail; rates of published runs where no `mtbf` is given."""

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {
        "remote_write": ("remote_write_bytes_per_s", BYTES_PER_S),
        "remote_read": ("remote_read_bytes_per_s", BYTES_PER_S),
        "mtbf": ("mtbf_s", TIME_S),
        "slow_nodes": ("slow_nodes", FRACTION),
        "save_slowdown": ("save_slowdown", FRACTION),
    }
    remote_write_bytes_per_s: Positive = Field(description="of the checkpoint store, the whole job together")
    remote_read_bytes_per_s: Positive | None = Field(default=None, description="as fast as writes when absent")
    mtbf_s: Positive | None = Field(default=None, description="mean time between faults of the whole job")
    nodes_per_rack: Count = Field(default=1, description="that a fault of one switch takes")
    tier: TierName | None = Field(default=None, description="the one that wastes least when absent")
    spare_nodes: Index | None = Field(default=None, description="the number that wastes least when absent")
    save_slowdown: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.0,
        description="of steps while a checkpoint is on its way to the store, beside its share of the network",
    )
    slow_nodes: Annotated[float, Field(ge=0, lt=1)] = Field(default=0.0, description="share that lags at a time")
    slow_speed: Annotated[float, Field(gt=0, le=1)] = Field(default=0.9, description="of a job with one of them")


class Checkpointing(Spec):
    """How the run is saved: see `planner.reliability.tiers`."""

    tier: TierName
    interval_steps: Count = Field(description="steps between snapshots")
    spare_nodes: Index = 0

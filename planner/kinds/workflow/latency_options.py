"""Schema of what a call takes: drawn times, times in scenarios, or clusters that are moved and computed in an order."""

from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from planner.documents.units import BYTES, TIME_S
from planner.schema.base import Spec, refuse
from planner.schema.fields import Positive

Amount = Annotated[float, Field(ge=0)]
Key = Annotated[str, Field(min_length=1, max_length=60)]


class ClusterMove(Spec):
    """A cluster of vectors or layers: moved to the GPU, then computed there."""

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {
        "transfer": ("transfer_s", TIME_S),
        "compute": ("compute_s", TIME_S),
        "size": ("size_bytes", BYTES),
    }
    name: Key
    transfer_s: Amount
    compute_s: Amount
    size_bytes: Amount


class TransfersSpec(Spec):
    """What does not fit into GPU memory at once: clusters that every call moves through a buffer (Rummy)."""

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {"buffer": ("buffer_bytes", BYTES)}
    buffer_bytes: Positive = Field(description="of GPU memory, which a cluster holds from its transfer to its last use")
    clusters: Annotated[tuple[ClusterMove, ...], Field(min_length=1, max_length=200)]

    @model_validator(mode="after")
    def each_fits(self) -> "TransfersSpec":
        names = [cluster.name for cluster in self.clusters]
        if len(set(names)) != len(names):
            raise refuse("two clusters have the same name", "give each its own", "clusters")
        largest = max(self.clusters, key=lambda cluster: cluster.size_bytes)
        if largest.size_bytes > self.buffer_bytes:
            what = f"cluster `{largest.name}` has {largest.size_bytes:g} bytes, the buffer {self.buffer_bytes:g}"
            raise refuse(what, "give a buffer that holds the largest cluster", "buffer_bytes")
        if not any(cluster.transfer_s or cluster.compute_s for cluster in self.clusters):
            raise refuse("no cluster takes any time", "give a `transfer` or a `compute`", "clusters")
        return self


class LatencySpec(Spec):
    """Times of a call: log-normal of a mean and CV, samples of scenarios, or clusters that are moved and computed."""

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {"mean": ("mean_s", TIME_S)}
    mean_s: Positive | None = None
    cv: Amount = 0.0
    samples_s: Annotated[tuple[Amount, ...], Field(min_length=1)] | None = Field(
        default=None, description="the time in every scenario, in one order in all options"
    )
    transfers: TransfersSpec | None = Field(
        default=None, description="of stages beyond GPU memory; the order is chosen, and a call takes what it takes"
    )

    @model_validator(mode="after")
    def one_form(self) -> "LatencySpec":
        if sum(form is not None for form in (self.mean_s, self.samples_s, self.transfers)) != 1:
            what = "a latency is a `mean`, with its `cv`, or `samples_s`, or `transfers`"
            raise refuse(what, "give one of the three")
        if self.mean_s is None and self.cv:
            raise refuse("a `cv` is of a `mean`", "remove `cv`", "cv")
        return self

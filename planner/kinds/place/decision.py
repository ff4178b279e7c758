"""Schema of multi-model placement problems (options) and plans (decision)."""

from collections import Counter
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from planner.documents.units import FRACTION, PER_S, USD_PER_HOUR
from planner.plan.records import Amount, Count
from planner.plan.schema import Decision, Fraction
from planner.schema.base import Spec, refuse

Degrees = Annotated[tuple[Count, ...], Field(min_length=1)]
Key = Annotated[str, Field(min_length=1, max_length=200)]


class LayersOptions(Spec):
    """The layers of one model over unequal nodes, in place of models on groups."""

    max_stages: Count = Field(default=8, description="nodes that a request passes at most")
    max_batch: Count = Field(default=32, description="sequences of a micro-batch at most")


class BucketSpec(Spec):
    """Requests alike, in slices of which each goes to one GPU type."""

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {"rate": ("rate_per_s", PER_S)}
    rate_per_s: Annotated[float, Field(gt=0)]
    slices: Count = 8


class SpotSpec(Spec):
    """GPUs of a pool that are sold for less and may be taken away."""

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {
        "price": ("usd_per_gpu_hour", USD_PER_HOUR),
        "lost": ("lost", FRACTION),
    }
    usd_per_gpu_hour: Annotated[float, Field(ge=0)]
    gpus: Count | None = Field(default=None, description="of the pool's that are sold so; all where absent")
    lost: Annotated[float, Field(ge=0, le=1)] = Field(
        description="part of its instances, rounded up, that may be gone at once while the rest serves all slices"
    )


RatesSpec = dict[str, dict[str, Amount]]


class MixOptions(Spec):
    """Instances of GPU types, one a pool, that serve buckets of requests at least cost, in place of groups."""

    buckets: Annotated[dict[str, BucketSpec], Field(min_length=1)]
    rates: RatesSpec = Field(
        default_factory=dict,
        description="requests a second that an instance of a pool serves of a bucket alone, within limits, as measured",
    )
    prefill: RatesSpec = Field(
        default_factory=dict, description="the same of instances that prefill alone, for others that decode"
    )
    decode: RatesSpec = Field(default_factory=dict, description="the same of instances that decode alone")
    gpus_per_instance: dict[str, Count] = Field(default_factory=dict, description="by pool; 1 where absent")
    spot: dict[str, SpotSpec] = Field(default_factory=dict, description="by pool: instances at spot prices, besides")
    at_least: dict[str, Count] = Field(default_factory=dict, description="instances of a pool, for whatever use")
    least: Count = Field(default=1, description="instances of all types together")
    failures: Annotated[int, Field(ge=0)] = Field(default=0, description="instances, any, that may fail")


class AdapterSpec(Spec):
    """A LoRA adapter: its load, and where engines load it from."""

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {"rate": ("rate_per_s", PER_S)}
    rate_per_s: Annotated[float, Field(gt=0)]
    checkpoint: str | None = Field(default=None, description="folder or repository; the adapter's name where absent")


class LoraOptions(Spec):
    """Adapters of one base model on engines that all run it, in place of models on groups."""

    adapters: Annotated[dict[str, AdapterSpec], Field(min_length=1)]
    rank: Count = Field(default=16, description="of every adapter")
    modules: Annotated[tuple[Literal["attention", "ffn"], ...], Field(min_length=1)] = Field(
        default=("attention", "ffn"), description="matrices that adapters change"
    )
    slots: Count = Field(default=8, description="adapters that an engine holds at most")
    merged: bool = Field(
        default=False,
        description="whether an engine may run with an adapter merged into its weights: faster, and of that one alone",
    )
    slowdown: Annotated[float, Field(ge=1)] | None = Field(
        default=None,
        description="time of a request with an adapter beside the weights over one without, as measured; by the bytes "
        "and FLOP of adapters where absent",
    )
    max_busy: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None, description="part of the time that engines may work, where they are to be few; 0.9 where absent"
    )


class FloorOptions(Spec):
    """Where groups stand: what others use of the nodes, how copies of a model are kept apart, and models from others.

    Groups lie inside NVLink domains of nodes, and as few nodes as can be are used of which nothing is taken.
    """

    taken: dict[str, tuple[Annotated[int, Field(ge=0)], ...]] = Field(
        default_factory=dict, description="by node, its index or name: the GPUs that others use, counted from 0"
    )
    racks: Annotated[tuple[Count, ...], Field(min_length=1)] | None = Field(
        default=None, description="nodes of every rack, in order; scale-up domains of nodes or pods where absent"
    )
    apart: Literal["node", "rack"] | None = Field(
        default=None, description="what `min_replicas` copies of a model are to be on different ones of"
    )
    never_together: tuple[tuple[str, str], ...] = Field(default=(), description="pairs of models that share no group")


class PlaceOptions(Spec):
    """Limits of the placement, and how the engines of a group work; or the layers of one model over all pools."""

    paths: ClassVar[tuple[str, ...]] = ("arrivals",)
    layers: LayersOptions | None = Field(
        default=None, description="place the layers of the only model over the nodes of all pools"
    )
    mix: MixOptions | None = Field(default=None, description="the cheapest mix of GPU types for buckets of requests")
    lora: LoraOptions | None = Field(default=None, description="LoRA adapters on engines of the only model")
    without: tuple[Key, ...] = Field(default=(), description="pools that hold no layers, or that a mix has none of")
    floor: FloorOptions | None = Field(default=None, description="where groups stand; on all nodes when absent")
    arrivals: Annotated[str, Field(min_length=1)] | None = Field(
        default=None, description="trace whose gaps all arrivals have, scaled to their rates; of `arrival_cv` if absent"
    )
    max_group_gpus: Count | None = Field(default=None, description="devices that one group may have at most")
    min_replicas: Count = Field(default=1, description="groups that every model with a workload must live on")
    tp: Degrees | None = Field(default=None, description="tensor parallel sizes of groups")
    pp: Degrees | None = Field(default=None, description="pipeline sizes of groups, where engines do not batch")
    batching: bool = Field(
        default=True,
        description="whether engines batch requests; without, a group takes them one by one, stage after stage, and "
        "drops those that would be late",
    )
    max_batch: Count = Field(
        default=16,
        description="sequences of a model that its engine on a group takes at a time, at most: 1 to 8 and four steps "
        "from power to power of 2 beyond, such as 16, 20, 24, 28, 32",
    )
    chunk_tokens: Count = Field(default=8192, description="prompt tokens of a step")
    simulated_requests: Annotated[int, Field(ge=200, le=1_000_000)] = Field(
        default=4000, description="requests of each stream that placements are judged on"
    )


class Host(Spec):
    """A model that lives on a group, beside others: all weights stay in memory, requests take turns."""

    group: str = Field(description="name of the role that is the group")
    model: str = Field(description="key of the problem's models")
    weights_bytes: Amount = Field(description="on the fullest device of the group")
    kv_cache_bytes: Amount = Field(default=0.0, description="of its engine's cache, on the fullest device")
    share: Fraction = Field(default=1.0, description="of all requests to the model")
    max_batch: Count = 1


class BucketSlices(Spec):
    """Slices of a bucket that go to the instances of a role; where phases are apart, to one for each."""

    bucket: str
    to: str = Field(description="name of a role")
    slices: Count


class AdapterHost(Spec):
    """An adapter on an engine, with the part of its requests that goes there."""

    engine: str = Field(description="name of a role")
    adapter: str
    share: Fraction = Field(description="of all requests to the adapter")
    merged: bool = Field(default=False, description="whether the engine runs with its weights changed by the adapter")


class PlaceDecision(Decision):
    """Each role of function `group` is one set of devices with its parallelism; `hosts` say which models live there."""

    hosts: tuple[Host, ...] = Field(default=(), description="of roles that are a `group`, and of no others")
    slices: tuple[BucketSlices, ...] = Field(default=(), description="of buckets, where roles are of a `mix`")
    adapters: tuple[AdapterHost, ...] = Field(default=(), description="of roles that hold `adapters`")

    @model_validator(mode="after")
    def inhabited(self) -> "PlaceDecision":
        if not self.hosts and any(role.function == "group" for role in self.roles):
            raise refuse("groups have at least 1 host", "name the models that live on them", "hosts")
        return self

    def reasons(self) -> tuple[str, ...]:
        """How many groups of each shape, and on how many of them models live; or the stages that hold layers."""
        if not self.hosts:
            return self._stages() if self.roles[0].function == "stage" else ()
        shapes = Counter(f"tp{role.parallelism.tp} pp{role.parallelism.pp}" for role in self.roles)
        homes = sorted(Counter(host.model for host in self.hosts).values())
        alike = ", ".join(f"{count} of {name}" for name, count in shapes.items())
        often = f"{homes[0]}" if homes[0] == homes[-1] else f"{homes[0]} to {homes[-1]}"
        return (f"groups: {alike}; every model lives on {often} of them",)

    def _stages(self) -> tuple[str, ...]:
        spans = Counter((role.limits.get("first_layer"), role.limits.get("num_layers")) for role in self.roles)
        rows = sorted((int(first or 0), int(number or 0), count) for (first, number), count in spans.items())
        stages = ", ".join(f"{first} to {first + number - 1} on {count}" for first, number, count in rows)
        return (f"layers {stages} nodes",)

"""What the problem of a day says of opportunistic jobs, on GPUs of others, and of elastic ones."""

from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from planner.documents.units import BYTES, FRACTION, TIME_S
from planner.schema.base import Spec, refuse
from planner.schema.errors import LABEL
from planner.schema.fields import Count, Name, Positive

Share = Annotated[float, Field(ge=0, le=1)]
Label = Annotated[str, Field(pattern=LABEL)]
Usd = Annotated[float, Field(ge=0)]


class SharedSpec(Spec):
    """Of a job whose GPUs opportunistic jobs may share: what it leaves of each."""

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {
        "busy": ("busy", FRACTION),
        "free_memory": ("free_memory_bytes", BYTES),
    }
    busy: Share = Field(description="of the time of a GPU that it takes; with a load, while it serves all that it can")
    free_memory_bytes: Annotated[float, Field(ge=0)] = Field(description="of a GPU, that it does not use")
    like: Name | None = Field(default=None, description="what its contention is listed under; its name if absent")


class OpportunisticJobSpec(Spec):
    """A job that runs on GPUs of others, as far as these lose little."""

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {
        "busy": ("busy", FRACTION),
        "memory": ("memory_bytes", BYTES),
    }
    name: Label
    gpus: Count = Field(default=1, description="that it runs on together, as fast as on the slowest")
    usd_per_gpu_hour: Usd = Field(description="worth of an hour of one of its GPUs at full speed")
    busy: Share = Field(default=1.0, description="of the time of a GPU that it takes at full speed")
    memory_bytes: Annotated[float, Field(gt=0)] = Field(description="of each GPU; what does not fit spills to the host")
    contention: Share | dict[Name, Share] = Field(
        default=0.0, description="share that a production job loses beside it at full speed, of all or by what they are"
    )


class OpportunisticSpec(Spec):
    """Jobs on GPUs of production jobs, and what is known of sharing a GPU (TGS)."""

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {"most_loss": ("most_loss", FRACTION)}
    most_loss: Share = Field(default=0.03, description="share of its speed that a production job may lose")
    rates: tuple[Annotated[float, Field(gt=0, le=1)], ...] = Field(
        default=(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
        min_length=1,
        description="shares of full speed at which a job may be held",
    )
    overload_loss: Annotated[float, Field(ge=0)] = Field(
        default=0.5, description="share lost for each share of a GPU's time that both want beyond all of it"
    )
    spill_loss: Annotated[float, Field(ge=0)] = Field(
        default=0.04, description="share lost beside a job at full speed all of whose memory spills"
    )
    spill_slowdown: Share = Field(default=0.5, description="share of its speed that such a job loses itself")
    jobs: Annotated[tuple[OpportunisticJobSpec, ...], Field(min_length=1, max_length=64)]


class ElasticJobSpec(Spec):
    """A job of equal logical workers that run in turn on whatever GPUs it has, with the same results (EasyScale)."""

    name: Label
    workers: Annotated[int, Field(ge=1, le=1024)] = Field(description="logical workers, all of which do a step")
    worker_s: dict[Name, Positive] = Field(description="seconds of a step of one worker, by pool", min_length=1)
    most_workers: dict[Name, Count] = Field(default={}, description="that fit on a GPU, by pool; all if absent")
    usd_per_hour: Usd = Field(description="worth of an hour at the speed of `reference_s`")
    reference_s: Positive | None = Field(
        default=None, description="the step whose speed is 1; that on the whole cluster if absent"
    )
    least_speed: Annotated[float, Field(ge=0)] = Field(default=0.0, description="that it has in every window")

    @model_validator(mode="after")
    def fits(self) -> "ElasticJobSpec":
        odd = next((pool for pool in self.most_workers if pool not in self.worker_s), None)
        if odd is not None:
            what = f"elastic job `{self.name}` fits workers on GPUs of `{odd}`, on which it has no step"
            raise refuse(what, "write its `worker_s` there too", "most_workers")
        return self


class ElasticSpec(Spec):
    """Elastic jobs, which together have nodes in the day as one job does."""

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {"start_up": ("start_up_s", TIME_S)}
    start_up_s: Annotated[float, Field(ge=0)] = Field(
        default=0.0, description="in which none of them runs, after a change of their nodes"
    )
    jobs: Annotated[tuple[ElasticJobSpec, ...], Field(min_length=1, max_length=32)]

    @model_validator(mode="after")
    def told_apart(self) -> "ElasticSpec":
        require_own_names("elastic", [job.name for job in self.jobs])
        return self


def require_own_names(of: str, names: list[str]) -> None:
    """Raises where two jobs have one name."""
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise refuse(f"two {of} jobs are called `{twice}`", "give each a name of its own", "jobs")

"""Schema of workflow problems: a graph of stages, with the options of each."""

from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, ClassVar

from pydantic import Field, JsonValue, model_validator

from planner.documents.units import FRACTION, TIME_S, USD_PER_HOUR
from planner.kinds.workflow.images_options import ImagesOptions
from planner.kinds.workflow.speech_options import SpeechOptions
from planner.plan.records import Count
from planner.problem.schema import Lengths
from planner.schema.base import Spec, refuse

Positive = Annotated[float, Field(gt=0)]
Amount = Annotated[float, Field(ge=0)]
Key = Annotated[str, Field(min_length=1, max_length=60)]


class LatencySpec(Spec):
    """Times of a call: log-normal of a mean and CV, or samples, which are the same scenarios in every stage."""

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {"mean": ("mean_s", TIME_S)}
    mean_s: Positive | None = None
    cv: Amount = 0.0
    samples_s: Annotated[tuple[Amount, ...], Field(min_length=1)] | None = Field(
        default=None, description="the time in every scenario, in one order in all options"
    )

    @model_validator(mode="after")
    def one_form(self) -> "LatencySpec":
        if (self.mean_s is None) == (self.samples_s is None):
            raise refuse("a latency is either a `mean`, with its `cv`, or `samples_s`", "give one of the two")
        if self.samples_s is not None and self.cv:
            raise refuse("samples have a spread of their own", "remove `cv`", "cv")
        return self


class FunctionOption(Spec):
    """A way to run a stage: a function as often as it is called, or servers that each take some calls at a time."""

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {
        "price": ("usd_per_hour", USD_PER_HOUR),
        "recall": ("recall", FRACTION),
    }
    name: Key
    latency: LatencySpec
    usd_per_call: Amount = 0.0
    usd_per_hour: Amount = Field(default=0.0, description="of a server")
    servers: Annotated[tuple[Count, ...], Field(min_length=1)] | None = Field(
        default=None, description="numbers of servers to choose from; calls never wait when absent"
    )
    slots: Count = Field(default=1, description="calls that a server takes at a time")
    image: Annotated[str, Field(min_length=1)] | None = Field(
        default=None,
        description="container that answers calls on port 8080, for launch files; a Service of one's own when absent",
    )
    recall: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None, description="share of the right neighbours that a search with this option finds"
    )

    @model_validator(mode="after")
    def of_servers(self) -> "FunctionOption":
        if self.servers is None and (self.usd_per_hour or self.slots > 1):
            key = "usd_per_hour" if self.usd_per_hour else "slots"
            raise refuse(f"`{key}` is of servers, and there are none", "write `servers: [1, 2, 4]`", key)
        return self


class ServeSpec(Spec):
    """A model for which serving plans are solved: one for each limit on the p95 of the stage's own latency."""

    model: Key | None = Field(default=None, description="key of `models`; that of the workload when absent")
    input_tokens: Lengths | None = Field(default=None, description="of a call; those of the workload when absent")
    output_tokens: Lengths | None = Field(default=None, description="of a call; those of the workload when absent")
    pools: Annotated[tuple[Key, ...], Field(min_length=1)] | None = Field(
        default=None, description="pools that it may stand on, each tried alone; all when absent"
    )
    limits_s: Annotated[tuple[Positive, ...], Field(min_length=1)] | None = Field(
        default=None, description="p95 latencies of the stage to solve for; ever shorter ones when absent"
    )
    options: dict[str, JsonValue] = Field(default_factory=dict, description="`options` of kind `serve`")


class StageSpec(Spec):
    """A stage: what it waits for, and either its options or the model that is served."""

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {"least_recall": ("least_recall", FRACTION)}
    name: Key
    after: tuple[Key, ...] = Field(default=(), description="stages whose ends it waits for; arrival when empty")
    options: tuple[FunctionOption, ...] | None = None
    serve: ServeSpec | None = None
    least_recall: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None, description="options with less `recall` are left out"
    )

    @model_validator(mode="after")
    def some_options(self) -> "StageSpec":
        if not self.options and self.serve is None:
            raise refuse(f"stage `{self.name}` has no options", "give it `options`, or a model to `serve`", "options")
        if self.options and self.serve is not None:
            raise refuse(f"stage `{self.name}` has `options` and `serve`", "keep one of the two", "serve")
        names = [option.name for option in self.options or ()]
        if len(set(names)) != len(names):
            raise refuse(f"two options of stage `{self.name}` have the same name", "give each its own", "options")
        if self.least_recall is not None:
            self._require_recall(self.least_recall)
        return self

    def _require_recall(self, least: float) -> None:
        if any(option.recall is None for option in self.options or ()) or not self.options:
            raise refuse(f"options of stage `{self.name}` state no recall", "give each its `recall`", "least_recall")
        best = max(option.recall or 0.0 for option in self.options)
        if best < least:
            what = f"no option of stage `{self.name}` has a recall of {least:g}, the best has {best:g}"
            raise refuse(what, f"ask for {best:g} at most", "least_recall")


class WorkflowOptions(Spec):
    """The graph, or pools of stages for speech or images, and how limits are judged."""

    stages: tuple[StageSpec, ...] = Field(default=(), description="of a graph; this, `speech` or `images`")
    speech: SpeechOptions | None = Field(default=None, description="pools of encode, prefill, decode and vocode")
    images: ImagesOptions | None = Field(default=None, description="pools of encode, prefill and decode")
    correlation: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.0, description="share of the variance of logarithms of latencies that stages of a request have alike"
    )
    simulated_requests: Annotated[int, Field(ge=200, le=200_000)] = Field(
        default=10_000, description="requests of each stream that options are chosen on and judged by"
    )

    @model_validator(mode="after")
    def graph(self) -> "WorkflowOptions":
        if sum((bool(self.stages), self.speech is not None, self.images is not None)) != 1:
            raise refuse("a workflow has either `stages`, `speech` or `images`", "give one of the three", "stages")
        names = [stage.name for stage in self.stages]
        if len(set(names)) != len(names):
            raise refuse("two stages have the same name", "give each its own `name:`", "stages")
        for stage in self.stages:
            unknown = [name for name in stage.after if name not in names]
            if unknown:
                what = f"stage `{stage.name}` waits for `{unknown[0]}`, which is no stage"
                raise refuse(what, f"the stages are {', '.join(names)}", "stages")
        try:
            self.order()
        except CycleError as error:
            cycle = " before ".join(names[index] for index in error.args[1])
            raise refuse(
                f"stages wait for each other: {cycle}",
                "take one out of `after`",
                "stages",
            ) from None
        self._require_scenarios()
        return self

    def order(self) -> list[int]:
        """Stages so that each comes behind those it waits for; of several the one that is written first."""
        number = {stage.name: index for index, stage in enumerate(self.stages)}
        sorter = TopologicalSorter({index: [number[name] for name in s.after] for index, s in enumerate(self.stages)})
        sorter.prepare()
        order: list[int] = []
        while sorter.is_active():
            ready = sorted(sorter.get_ready())
            order += ready
            sorter.done(*ready)
        return order

    def sampled(self) -> Iterator[tuple[str, int]]:
        """Options with samples, as `stage.option`, and how many."""
        for stage in self.stages:
            for option in stage.options or ():
                if option.latency.samples_s is not None:
                    yield f"{stage.name}.{option.name}", len(option.latency.samples_s)

    def _require_scenarios(self) -> None:
        counts = dict(self.sampled())
        if len(set(counts.values())) > 1:
            first = next(iter(counts))
            other = next(name for name, count in counts.items() if count != counts[first])
            what = f"`{first}` has {counts[first]} scenarios, and `{other}` has {counts[other]}"
            raise refuse(what, "give every option its time in the same scenarios", "stages")

"""Schema of a stage of a graph: its options, the model it serves, the work that it splits, or the primitive it is."""

from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field, JsonValue, model_validator

from planner.documents.units import FRACTION, USD_PER_HOUR
from planner.kinds.workflow.latency_options import Amount, Key, LatencySpec
from planner.kinds.workflow.servers_options import WorkSpec
from planner.plan.records import Count
from planner.problem.schema import Lengths
from planner.schema.base import Spec, refuse
from planner.schema.fields import Positive


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
        default=None,
        description="share of the right neighbours that a search with this option finds, for `least_recall`",
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
    """A stage: what it waits for, and its options, the model that it serves, its work, or the primitive that it is."""

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {"least_recall": ("least_recall", FRACTION)}
    name: Key
    after: tuple[Key, ...] = Field(default=(), description="stages whose ends it waits for; arrival when empty")
    options: tuple[FunctionOption, ...] | None = None
    serve: ServeSpec | None = None
    work: WorkSpec | None = Field(default=None, description="split over functions, where the graph has `servers`")
    primitive: Key | None = Field(default=None, description="one of `engines.primitives`, where the graph has them")
    least_recall: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None, description="options with less `recall` are left out"
    )

    @model_validator(mode="after")
    def some_options(self) -> "StageSpec":
        given = [key for key in ("options", "serve", "work", "primitive") if getattr(self, key)]
        if not given:
            hint = "give it `options`, a model to `serve`, `work` for servers, or the `primitive` that it is"
            raise refuse(f"stage `{self.name}` has no options", hint, "options")
        if len(given) > 1:
            raise refuse(f"stage `{self.name}` has `{given[0]}` and `{given[1]}`", "keep one of the two", given[1])
        names = [option.name for option in self.options or ()]
        if len(set(names)) != len(names):
            raise refuse(f"two options of stage `{self.name}` have the same name", "give each its own", "options")
        if self.least_recall is not None:
            self._require_recall(self.least_recall)
        stating = next((place for place, option in enumerate(self.options or ()) if option.recall is not None), None)
        if self.least_recall is None and stating is not None:
            what = f"`recall` has no effect in stage `{self.name}`, which asks for none"
            raise refuse(what, "write `least_recall` of the stage, or remove it", ("options", stating, "recall"))
        return self

    def _require_recall(self, least: float) -> None:
        if any(option.recall is None for option in self.options or ()) or not self.options:
            raise refuse(f"options of stage `{self.name}` state no recall", "give each its `recall`", "least_recall")
        best = max(option.recall or 0.0 for option in self.options)
        if best < least:
            what = f"no option of stage `{self.name}` has a recall of {least:g}, the best has {best:g}"
            raise refuse(what, f"ask for {best:g} at most", "least_recall")


class ChoiceSpec(Spec):
    """What may be chosen of a stage; all that the problem has where nothing is said."""

    options: Annotated[tuple[Annotated[str, BeforeValidator(str)], ...], Field(min_length=1)] | None = Field(
        default=None, description="names of options; `served on POOL` of models, `none` of an encode pool"
    )
    servers: Annotated[tuple[Count, ...], Field(min_length=1)] | None = Field(
        default=None, description="numbers of servers or replicas"
    )

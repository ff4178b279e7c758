"""Schema of workflow problems: a graph of stages, with the options of each, or pools of stages."""

from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, Literal

from pydantic import Field, model_validator

from planner.kinds.workflow.images_options import ImagesOptions
from planner.kinds.workflow.latency_options import Key
from planner.kinds.workflow.primitives_options import EnginesSpec
from planner.kinds.workflow.servers_options import ServersSpec
from planner.kinds.workflow.speech_options import SpeechOptions
from planner.kinds.workflow.stage_options import ChoiceSpec, StageSpec
from planner.schema.base import Spec, refuse

SERVED_ON = "served on "


class WorkflowOptions(Spec):
    """The graph, or pools of stages for speech or images, and how limits are judged."""

    stages: tuple[StageSpec, ...] = Field(default=(), description="of a graph; this, `speech` or `images`")
    servers: ServersSpec | None = Field(
        default=None, description="of functions, over which stages split their `work`: the graph ends soonest"
    )
    engines: EnginesSpec | None = Field(
        default=None, description="that take the `primitive` of stages in batches: queries end soonest"
    )
    speech: SpeechOptions | None = Field(default=None, description="pools of encode, prefill, decode and vocode")
    images: ImagesOptions | None = Field(default=None, description="pools of encode, prefill and decode")
    correlation: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.0, description="share of the variance of logarithms of latencies that stages of a request have alike"
    )
    simulated_requests: Annotated[int, Field(ge=200, le=200_000)] = Field(
        default=10_000, description="requests of each stream that options are chosen on and judged by"
    )
    scenarios: Literal["together", "apart"] = Field(
        default="together", description="whether `samples_s` of a request are of one scenario in all stages, or of any"
    )

    choices: dict[Key, ChoiceSpec] = Field(
        default_factory=dict, description="by stage, what may be chosen of it; all when absent"
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
        self._require_form()
        self._require_choices()
        return self

    def named(self) -> dict[str, list[str] | None]:
        """Names of options of every stage that has any to choose from; None of a model, which is served on pools."""
        form = self.speech or self.images
        if form is None:
            rows = {
                stage.name: stage.options for stage in self.stages if stage.work is None and stage.primitive is None
            }
            return {name: None if options is None else [row.name for row in options] for name, options in rows.items()}
        names = [name for name in ("encode", "prefill", "decode", "vocode") if hasattr(form, name)]
        none = ["none"] if self.images is not None else []
        rows_of = {name: [row.name for row in getattr(form, name)] for name in names}
        return {name: [*rows, *(none if name == "encode" else [])] for name, rows in rows_of.items()}

    def may(self, stage: str, option: str, servers: int | None = None) -> bool:
        """Whether an option of a stage, on so many servers, may be chosen."""
        choice = self.choices.get(stage)
        if choice is None:
            return True
        named = choice.options is None or option in choice.options
        return named and (choice.servers is None or servers is None or servers in choice.servers)

    def _require_choices(self) -> None:
        known = self.named()
        for stage, choice in self.choices.items():
            if stage not in known:
                what = f"`choices` names stage `{stage}`, which has none"
                raise refuse(what, f"the stages are {', '.join(known)}" if known else "remove `choices`", "choices")
            names = known[stage]
            for name in choice.options or ():
                if names is not None and name not in names:
                    what = f"stage `{stage}` has no option `{name}`"
                    raise refuse(what, f"its options are {', '.join(names)}", "choices")
                if names is None and not name.startswith(SERVED_ON):
                    raise refuse(f"stage `{stage}` serves a model", f"write `{SERVED_ON}POOL`", "choices")
            own = next((row.options or () for row in self.stages if row.name == stage), ())
            if choice.servers is not None and own and all(row.servers is None for row in own):
                raise refuse(f"no option of stage `{stage}` has servers", "remove `servers`", "choices")
            stated = {number for row in own for number in row.servers or ()}
            odd = next((number for number in choice.servers or () if stated and number not in stated), None)
            if odd is not None:
                what = f"no option of stage `{stage}` has {odd} servers"
                raise refuse(what, f"its numbers are {', '.join(map(str, sorted(stated)))}", "choices")
            if choice.servers is not None and names is None:
                raise refuse(f"stage `{stage}` serves a model, and has no servers", "remove `servers`", "choices")

    def _require_form(self) -> None:
        """Stages have what the graph is planned by: `work` for servers, a `primitive` for engines."""
        if self.servers is not None and self.engines is not None:
            raise refuse("a graph has either `servers` or `engines`", "keep one of the two", "engines")
        for key, inner in (("servers", "work"), ("engines", "primitive")):
            lacking = [stage.name for stage in self.stages if getattr(stage, inner) is None]
            if getattr(self, key) is not None and (lacking or not self.stages):
                what = f"stage `{lacking[0]}` has no `{inner}`" if lacking else f"`{key}` are of a graph"
                raise refuse(f"{what}, and the graph has `{key}`", f"give every stage its `{inner}`", "stages")
            if getattr(self, key) is None and len(lacking) < len(self.stages):
                name = next(stage.name for stage in self.stages if stage.name not in lacking)
                raise refuse(f"stage `{name}` has `{inner}`, and there are no `{key}`", f"give `{key}:`", "stages")
        for stage in self.stages if self.engines is not None else ():
            known = self.engines.primitives if self.engines is not None else {}
            if stage.primitive not in known:
                what = f"stage `{stage.name}` is of primitive `{stage.primitive}`, which is not given"
                raise refuse(what, f"the primitives are {', '.join(known)}", "stages")
        if self.engines is not None:
            idle = sorted(self.engines.primitives.keys() - {stage.primitive for stage in self.stages})
            if idle:
                place = ("engines", "primitives", idle[0])
                raise refuse(f"no stage is of primitive `{idle[0]}`", "give it a stage, or remove it", place)
        if self.servers is not None and sum(self.servers.slots) < len(self.stages):
            what = f"{len(self.stages)} stages, and servers with {sum(self.servers.slots)} slots"
            raise refuse(what, "give every stage one function at least", "servers")

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

    @property
    def every_scenario(self) -> bool:
        """Whether each scenario is looked at once: all are functions that never wait, with nothing to draw."""
        options = [option for stage in self.stages for option in stage.options or ()]
        drawn = any(option.servers is not None or option.latency.mean_s is not None for option in options)
        served = any(stage.serve is not None for stage in self.stages)
        return bool(options) and not drawn and not served and self.scenarios == "together"

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

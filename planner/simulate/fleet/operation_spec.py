"""Schema of the operation file of `planner simulate PLAN --operation FILE`: scaling, failures, autoscaler."""

from dataclasses import replace
from typing import Annotated, ClassVar, Final, Literal

import numpy as np
from pydantic import Field

from planner.documents.read import load_document
from planner.documents.units import BYTES, BYTES_PER_S, FRACTION, TIME_S
from planner.errors import PlannerError
from planner.schema.base import Spec, Where
from planner.schema.keys import validated
from planner.simulate.fleet.operation import Change, Control
from planner.simulate.requests.stream import Requests

SCHEMA: Final = "planner.operation/1"
Seconds = Annotated[float, Field(ge=0)]


class DraftingSpec(Spec):
    """Speculative decoding of every role that decodes."""

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {
        "acceptance": ("acceptance", FRACTION),
        "draft_step": ("draft_step_s", TIME_S),
    }
    draft_tokens: Annotated[int, Field(ge=1, le=64)]
    acceptance: Annotated[float, Field(ge=0, le=1)] = Field(
        description="chance of a draft to be right where those before it are"
    )
    draft_step_s: Seconds = Field(default=0.0, description="time of a step of the draft model")


class ChangeSpec(Spec):
    """What happens to a replica of a role."""

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {"time": ("time_s", TIME_S)}
    time_s: Seconds
    role: str
    replica: Annotated[int, Field(ge=0)]
    action: Literal["start", "drain", "fail", "to-prefill", "to-decode"]


class ControlSpec(Spec):
    """What an autoscaler does; the replicas of the plan are the most that there can be."""

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {
        "period": ("period_s", TIME_S),
        "start": ("start_s", TIME_S),
    }
    period_s: Annotated[float, Field(gt=0)]
    crowded_above: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="requests for each that is up, above which one more is started"
    )
    idle_below: Annotated[float, Field(ge=0)] = Field(
        default=0.0, description="requests for each, below which one is drained"
    )
    least: Annotated[int, Field(ge=1)] = Field(default=1, description="left of each side")
    start_s: Seconds = Field(default=0.0, description="from the decision to the first request")
    flip_above: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="requests waiting for each, above which a side gets one of the other"
    )

    def control(self) -> Control:
        """The same for the simulator."""
        never = float("inf")
        return Control(
            self.period_s,
            crowded_above=self.crowded_above or never,
            idle_below=self.idle_below,
            least=self.least,
            start_s=self.start_s,
            flip_above=self.flip_above or never,
        )


class AdaptersSpec(Spec):
    """Adapters that requests ask for, drawn for each with chances that fall as 1 / rank."""

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {"load": ("load_s", TIME_S)}
    count: Annotated[int, Field(ge=1, le=10_000)]
    slots: Annotated[int, Field(ge=1)] = Field(description="adapters that an engine holds at once")
    load_s: Seconds = Field(default=0.0, description="by which loading one lengthens a step")


class PrefixStoreSpec(Spec):
    """A cache of prompts that all engines share, beside those that they keep with `--prefix-caching`."""

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {
        "size": ("size_bytes", BYTES),
        "bandwidth": ("bandwidth_bytes_per_s", BYTES_PER_S),
    }
    size_bytes: Annotated[float, Field(gt=0)]
    bandwidth_bytes_per_s: Annotated[float, Field(gt=0)] = Field(
        description="to a request, which is queued once its blocks are there"
    )


class ElasticSpec(Spec):
    """Engines that keep one KV cache together, join for a prefill and part again for decoding (arXiv:2404.09526)."""

    borrows: bool = Field(default=True, description="engines that decode join prefills while others are idle")
    scale_up_above: Annotated[int, Field(ge=1)] | None = Field(
        default=None,
        description="decoding sequences of an engine above which idle ones join; as many as it runs if absent",
    )


class OperationSpec(Spec):
    """All that is done to the engines of a plan."""

    schema_: Literal["planner.operation/1"] = Field(default=SCHEMA, alias="schema")
    speculation: DraftingSpec | None = None
    changes: tuple[ChangeSpec, ...] = ()
    control: ControlSpec | None = None
    adapters: AdaptersSpec | None = None
    prefix_store: PrefixStoreSpec | None = None
    prefix_eviction: Literal["lru", "pgdsf", "farthest"] = Field(
        default="lru",
        description="what memory tiers evict: the least recent, the least worth, or what is used again last, a bound",
    )
    elastic: ElasticSpec | None = None
    skew: tuple[Annotated[float, Field(ge=1, le=1000)], ...] = Field(
        default=(), description="factors by which successive steps are longer where experts are loaded unevenly"
    )

    def with_adapters(self, requests: Requests, seed: int) -> Requests:
        """The requests, each with the adapter that it asks for."""
        if self.adapters is None:
            return requests
        chances = 1.0 / np.arange(1, self.adapters.count + 1)
        drawn = np.random.default_rng(seed + 2).choice(len(chances), len(requests), p=chances / chances.sum())
        return replace(requests, adapter=drawn.astype(np.int64))

    def changes_of(self, leaders: dict[str, list[list[int]]]) -> tuple[Change, ...]:
        """Changes of instances, from the leaders of the groups of each replica of each role; raises PlannerError."""
        changes = []
        for index, change in enumerate(self.changes):
            replicas = leaders.get(change.role)
            where = f"operation: changes[{index}]"
            if replicas is None:
                raise PlannerError(
                    f"the plan has no role `{change.role}`", where=where, hint=f"roles are {', '.join(sorted(leaders))}"
                )
            if change.replica >= len(replicas):
                raise PlannerError(
                    f"role `{change.role}` has no replica {change.replica}",
                    where=where,
                    hint=f"replicas are 0 to {len(replicas) - 1}",
                )
            changes += [Change(change.time_s, leader, change.action) for leader in replicas[change.replica]]
        return tuple(changes)


def load_operation(path: str) -> OperationSpec:
    """The operation in a YAML or JSON file; raises PlannerError with file, line and fix."""
    document = load_document(path)
    where = Where(lambda: document.lines, document.source)
    if not isinstance(document.data, dict):
        raise PlannerError(
            "an operation is a mapping of keys to values", where=where(()), hint=f"start it with `schema: {SCHEMA}`"
        )
    return validated(OperationSpec, document.data, where)

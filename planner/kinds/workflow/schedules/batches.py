"""Primitives of queries in batches on engines (Teola): queries end soonest on average."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from pydantic import JsonValue

from planner.errors import PlannerError
from planner.kinds.workflow.decision import EngineBatch, StageChoice, WorkflowDecision
from planner.kinds.workflow.primitives_options import EnginesSpec
from planner.kinds.workflow.schedules.form import ScheduleForm
from planner.plan.schema import Prediction
from planner.solvers.result import SolveResult
from planner.solvers.workflow.cover import Cover
from planner.solvers.workflow.engine_batches import (
    Batch,
    EngineBatches,
    Primitive,
    PrimitiveType,
    least_mean_latency,
    mean_latency_s,
)

SOLVED = "solved"
Batches = tuple[Batch, ...]


@dataclass(frozen=True, slots=True)
class BatchesForm(ScheduleForm[Batches]):
    """The mean latency of the queries counts."""

    key: ClassVar[str] = "engines"
    claim: ClassVar[str] = "no batches of these primitives on these engines end queries sooner on average than {plan}"
    assumptions: ClassVar[tuple[str, ...]] = (
        "an engine runs one batch at a time, which takes its setup and as much for every member",
        "a stage may begin when all stages of its query that it waits for have ended, without a transfer between",
    )

    @property
    def engines(self) -> EnginesSpec:
        assert self.options.engines is not None
        return self.options.engines

    @property
    def kinds(self) -> list[str]:
        """Names of primitives, in the order of the solver's types."""
        return list(self.engines.primitives)

    @property
    def problem(self) -> EngineBatches:
        """As the solver has it."""
        names = sorted({kind.engine for kind in self.engines.primitives.values()})
        kinds, stages = self.kinds, [self.options.stages[index] for index in self.order]
        return EngineBatches(
            tuple(
                Primitive(kinds.index(stage.primitive or ""), parents)
                for stage, parents in zip(stages, self.parents, strict=True)
            ),
            tuple(
                PrimitiveType(names.index(kind.engine), kind.setup_s, kind.each_s, kind.most_members)
                for kind in self.engines.primitives.values()
            ),
            self.engines.queries_s,
        )

    @property
    def axes(self) -> dict[str, list[JsonValue]]:
        """Too many to list: every batch at every time."""
        return {}

    def shortest(self, time_limit_s: float, cover: Cover) -> SolveResult[Batches]:
        """As `ScheduleForm` states."""
        result = least_mean_latency(self.problem, time_limit_s=time_limit_s)
        cover.add(SOLVED, 1, result.bound)
        return result

    def seconds(self, schedule: Batches) -> float:
        """As `ScheduleForm` states."""
        return mean_latency_s(self.problem, schedule)

    def decision(self, schedule: Batches) -> WorkflowDecision:
        """As `ScheduleForm` states."""
        names, kinds = self.names, self.kinds
        batches = [
            EngineBatch(
                engine=self.engines.primitives[kinds[batch.type]].engine,
                primitive=kinds[batch.type],
                start_s=max(batch.start_s, 0.0),
                queries=tuple(query for query, _ in sorted(batch.members)),
                stages=tuple(names[node] for _, node in sorted(batch.members)),
            )
            for batch in schedule
        ]
        batches.sort(key=lambda batch: (batch.start_s, batch.engine, batch.primitive))
        return WorkflowDecision(
            stages=tuple(
                StageChoice(stage=stage.name, option=stage.primitive or "")
                for stage in (self.options.stages[index] for index in self.order)
            ),
            batches=tuple(batches),
        )

    def stated(self, decision: WorkflowDecision) -> Batches:
        """As `ScheduleForm` states."""
        place, kinds = {name: number for number, name in enumerate(self.names)}, self.kinds
        count = len(self.engines.queries_s)
        for batch in decision.batches:
            strange = [stage for query, stage in batch.members if stage not in place or query >= count]
            if batch.primitive not in kinds or strange:
                what = (
                    f"the batch of `{batch.primitive}` at {batch.start_s:g} s is of no stages or queries of the problem"
                )
                raise PlannerError(what, where="decision.batches", hint="solve again")
        return tuple(
            Batch(kinds.index(batch.primitive), batch.start_s, tuple((q, place[stage]) for q, stage in batch.members))
            for batch in decision.batches
        )

    def predictions(self, schedule: Batches) -> Iterator[Prediction]:
        """The latency of every query, and how full batches of each primitive are."""
        last_s = dict[int, float]()
        for batch in schedule:
            end_s = batch.start_s + self.problem.types[batch.type].batch_s(len(batch.members))
            for query, _ in batch.members:
                last_s[query] = max(last_s.get(query, 0.0), end_s)
        for query, come_s in enumerate(self.engines.queries_s):
            yield Prediction(metric="latency_s", of=f"query {query}", value=last_s[query] - come_s)

    def simulated(self, decision: WorkflowDecision) -> tuple[float, dict[str, JsonValue]]:
        """As `ScheduleForm` states: batches by start, queries done with their last stage."""
        primitives, come_s = self.engines.primitives, self.engines.queries_s
        done_s, ends = list(come_s), dict[str, float]()
        for batch in sorted(decision.batches, key=lambda batch: batch.start_s):
            kind = primitives[batch.primitive]
            end_s = batch.start_s + kind.setup_s + kind.each_s * len(batch.queries)
            for query, stage in batch.members:
                done_s[query] = max(done_s[query], end_s)
                ends[stage] = max(ends.get(stage, 0.0), end_s)
        mean_s = sum(done - come for done, come in zip(done_s, come_s, strict=True)) / len(come_s)
        return mean_s, {name: {"end_s": end} for name, end in ends.items()}

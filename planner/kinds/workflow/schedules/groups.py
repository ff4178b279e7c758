"""Stages split over functions on servers, and grouped where they share memory (Ditto): the graph ends soonest."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from pydantic import JsonValue

from planner.errors import PlannerError
from planner.kinds.workflow.decision import StageChoice, StageGroup, WorkflowDecision
from planner.kinds.workflow.options import WorkflowOptions
from planner.kinds.workflow.schedules.form import ScheduleForm
from planner.kinds.workflow.servers_options import ServersSpec, WorkSpec
from planner.plan.schema import Prediction
from planner.problem.resolve import Resolved
from planner.solvers.result import SolveResult
from planner.solvers.workflow.cover import Cover
from planner.solvers.workflow.server_groups import (
    EVERY,
    GraphStage,
    Grouped,
    Nearness,
    ServerGroups,
    Work,
    group_stages,
    groupings,
    longest_path_s,
    nearness,
    useful_groups,
)

MOST_GROUPINGS = 100_000  # each of which is bounded


@dataclass(frozen=True, slots=True)
class GroupsForm(ScheduleForm[Grouped]):
    """The longest path counts."""

    key: ClassVar[str] = "servers"
    claim: ClassVar[str] = "no functions and groups of stages on these servers end before {plan}"
    assumptions: ClassVar[tuple[str, ...]] = (
        "functions of a stage share its work evenly; a stage begins when all stages it waits for have ended",
        "reads (writes) of a stage go through memory where all stages before (behind) it are in its group",
        "functions of stages in no group stand on any slots that groups leave",
    )

    @property
    def servers(self) -> ServersSpec:
        assert self.options.servers is not None
        return self.options.servers

    @property
    def problem(self) -> ServerGroups:
        """As the solver has it."""
        stages = tuple(
            GraphStage(parents, works(work, self.servers.memory_speedup), splits=work.one_function_s is None)
            for parents, work in zip(self.parents, self._work, strict=True)
        )
        return ServerGroups(stages, self.servers.slots, self.servers.most_members)

    @property
    def _work(self) -> list[WorkSpec]:
        return [work for index in self.order if (work := self.options.stages[index].work) is not None]

    @property
    def axes(self) -> dict[str, list[JsonValue]]:
        """Too many to list: every grouping, with every number of functions."""
        return {}

    def shortest(self, time_limit_s: float, cover: Cover) -> SolveResult[Grouped]:
        """As `ScheduleForm` states."""
        return group_stages(self.problem, time_limit_s=time_limit_s, cover=cover)

    def seconds(self, schedule: Grouped) -> float:
        """As `ScheduleForm` states."""
        return longest_path_s(self.problem, schedule)

    def decision(self, schedule: Grouped) -> WorkflowDecision:
        """As `ScheduleForm` states."""
        names = self.names
        return WorkflowDecision(
            stages=tuple(
                StageChoice(stage=name, option="functions", functions=functions)
                for name, functions in zip(names, schedule.functions_S, strict=True)
            ),
            groups=tuple(
                StageGroup(stages=tuple(names[stage] for stage in group), server=server)
                for group, server in zip(schedule.groups, schedule.server_G, strict=True)
            ),
        )

    def stated(self, decision: WorkflowDecision) -> Grouped:
        """As `ScheduleForm` states."""
        place, functions = {name: number for number, name in enumerate(self.names)}, functions_of(decision)
        if set(functions) != set(place) or any(name not in place for each in decision.groups for name in each.stages):
            raise PlannerError("does not state every stage's functions", where="decision.stages", hint="solve again")
        return Grouped(
            tuple(functions[name] for name in self.names),
            tuple(tuple(place[name] for name in group.stages) for group in decision.groups),
            tuple(group.server for group in decision.groups),
        )

    def predictions(self, schedule: Grouped) -> Iterator[Prediction]:
        """Seconds of every stage."""
        near_S = nearness(self.problem, schedule.groups)
        for name, stage, near, functions in zip(
            self.names, self.problem.stages, near_S, schedule.functions_S, strict=True
        ):
            yield Prediction(metric="latency_s", of=name, value=stage.work[near].time_s(functions))

    def simulated(self, decision: WorkflowDecision) -> tuple[float, dict[str, JsonValue]]:
        """As `ScheduleForm` states: stages in order, each behind those it waits for."""
        group_of = {name: number for number, group in enumerate(decision.groups) for name in group.stages}
        functions, ends = functions_of(decision), dict[str, float]()
        waiting: dict[str, list[str]] = {name: [] for name in self.names}
        for stage in self.options.stages:
            for name in stage.after:
                waiting[name].append(stage.name)
        for index in self.order:
            stage = self.options.stages[index]
            assert stage.work is not None
            own = group_of.get(stage.name, -1)
            near = [
                bool(others) and own >= 0 and all(group_of.get(name) == own for name in others)
                for others in (stage.after, waiting[stage.name])
            ]
            took_s = _took_s(stage.work, near[0], near[1], self.servers.memory_speedup, functions[stage.name])
            ends[stage.name] = max((ends[name] for name in stage.after), default=0.0) + took_s
        return max(ends.values()), {name: {"end_s": end} for name, end in ends.items()}


def functions_of(decision: WorkflowDecision) -> dict[str, int]:
    """By stage; those that state none have none."""
    return {choice.stage: choice.functions for choice in decision.stages if choice.functions is not None}


def _took_s(work: WorkSpec, reads_near: bool, writes_near: bool, speedup: float, functions: int) -> float:
    """Seconds of a stage, from what its parts take through storage and memory."""
    if work.one_function_s is not None and not (reads_near or writes_near):
        return work.one_function_s
    reads, writes = (speedup if near else 1.0 for near in (reads_near, writes_near))
    split_s = work.computes.split_s + work.reads.split_s / reads + work.writes.split_s / writes
    whole_s = work.computes.whole_s + work.reads.whole_s / reads + work.writes.whole_s / writes
    if work.one_function_s is not None:
        return max(0.0, split_s + whole_s)
    return max(0.0, split_s) / functions + max(0.0, whole_s)


def works(work: WorkSpec, speedup: float) -> dict[Nearness, Work]:
    """By whether reads and writes go through memory; a stage of one function has all of it whole."""
    rows: dict[Nearness, Work] = {}
    for reads, writes in EVERY:
        faster = (1.0, speedup if reads else 1.0, speedup if writes else 1.0)
        parts = tuple(zip((work.computes, work.reads, work.writes), faster, strict=True))
        split_s, whole_s = (sum(getattr(part, key) / f for part, f in parts) for key in ("split_s", "whole_s"))
        if work.one_function_s is None:
            rows[reads, writes] = Work(split_s, whole_s)
        else:
            rows[reads, writes] = Work(0.0, split_s + whole_s if reads or writes else work.one_function_s)
    return rows


def read_groups(resolved: Resolved, options: WorkflowOptions) -> GroupsForm:
    """Raises PlannerError for graphs with more groupings than can be looked at one by one."""
    form = GroupsForm(resolved, options)
    many = sum(1 for _ in itertools.islice(groupings(useful_groups(form.problem)), MOST_GROUPINGS + 1))
    if many > MOST_GROUPINGS:
        place = resolved.where(("options", "servers", "most_members"))
        what = f"these stages have more than {MOST_GROUPINGS} groupings of up to {form.servers.most_members}"
        raise PlannerError(what, where=place, hint="lower `most_members`, or split the graph")
    return form

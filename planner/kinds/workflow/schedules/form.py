"""What forms of graphs that run once have in common: a problem, what solves it, and schedules stated and judged."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from pydantic import JsonValue

from planner.kinds.workflow.decision import WorkflowDecision
from planner.kinds.workflow.options import WorkflowOptions
from planner.plan.schema import Prediction
from planner.problem.resolve import Resolved
from planner.solvers.result import SolveResult
from planner.solvers.workflow.cover import Cover

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class ScheduleForm(ABC, Generic[S]):
    """A graph of one form; nothing in it is drawn."""

    resolved: Resolved
    options: WorkflowOptions

    key: ClassVar[str]  # of the form in `options`
    claim: ClassVar[str]  # with `{plan}` for what no schedule is shorter than
    assumptions: ClassVar[tuple[str, ...]]

    @property
    def order(self) -> list[int]:
        """Stages, so that each comes behind those it waits for."""
        return self.options.order()

    @property
    def names(self) -> list[str]:
        """Of stages in that order."""
        return [self.options.stages[index].name for index in self.order]

    @property
    def parents(self) -> list[tuple[int, ...]]:
        """By place in that order, the places of the stages that each waits for."""
        place = {name: number for number, name in enumerate(self.names)}
        return [tuple(place[name] for name in self.options.stages[index].after) for index in self.order]

    @property
    @abstractmethod
    def axes(self) -> dict[str, list[JsonValue]]:
        """What is chosen from, where it can be listed."""

    @abstractmethod
    def shortest(self, time_limit_s: float, cover: Cover) -> SolveResult[S]:
        """The shortest schedule, with what is proven; `cover` is filled."""

    @abstractmethod
    def seconds(self, schedule: S) -> float:
        """What counts of a schedule [s]."""

    @abstractmethod
    def decision(self, schedule: S) -> WorkflowDecision:
        """The schedule as a plan states it."""

    @abstractmethod
    def stated(self, decision: WorkflowDecision) -> S:
        """The schedule that a plan states; raises PlannerError for one that the problem does not have."""

    @abstractmethod
    def predictions(self, schedule: S) -> Iterator[Prediction]:
        """Figures of a schedule beside what counts."""

    @abstractmethod
    def simulated(self, decision: WorkflowDecision) -> tuple[float, dict[str, JsonValue]]:
        """What counts [s], and when each stage ends, of the stated schedule run step by step without the solver."""

"""The form of graphs that run once that a problem has, if any."""

from typing import Any

from planner.kinds.workflow.options import WorkflowOptions
from planner.kinds.workflow.schedules.batches import BatchesForm
from planner.kinds.workflow.schedules.form import ScheduleForm
from planner.kinds.workflow.schedules.groups import read_groups
from planner.problem.resolve import Resolved


def read_schedule(resolved: Resolved) -> ScheduleForm[Any] | None:
    """None for other problems; raises PlannerError for those that no schedule answers."""
    options = WorkflowOptions.model_validate(resolved.problem.options)
    if options.servers is not None:
        return read_groups(resolved, options)
    return BatchesForm(resolved, options) if options.engines is not None else None

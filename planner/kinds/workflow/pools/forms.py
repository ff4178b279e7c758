"""The form of pools that a problem has, if any."""

from typing import Any

from planner.kinds.workflow.options import WorkflowOptions
from planner.kinds.workflow.pools.form import PoolsForm
from planner.kinds.workflow.pools.images import read_images
from planner.kinds.workflow.pools.speech import read_speech
from planner.problem.resolve import Resolved


def read_form(resolved: Resolved) -> PoolsForm[Any] | None:
    """None for graphs; raises PlannerError for problems that no pools answer."""
    options = WorkflowOptions.model_validate(resolved.problem.options)
    if options.speech is not None:
        return read_speech(resolved)
    return read_images(resolved) if options.images is not None else None

"""Solves a workflow problem: the options of its stages that keep the limits of the whole at least cost."""

from planner.kinds.workflow.graph import plan
from planner.kinds.workflow.options import WorkflowOptions
from planner.kinds.workflow.speech import plan as speech
from planner.plan.schema import Envelope
from planner.problem.resolve import Resolved
from planner.progress import Limits


def solve(resolved: Resolved, limits: Limits) -> Envelope:
    """The plan; raises Infeasible, Stopped, and PlannerError for problems that no workflow answers."""
    if WorkflowOptions.model_validate(resolved.problem.options).speech is not None:
        return speech.solve(resolved, limits)
    return plan.solve(resolved, limits)

"""Solves a workflow problem: the cheapest options of its stages that keep the limits, or the shortest schedule."""

from planner.kinds.workflow.graph import plan
from planner.kinds.workflow.pools import plan as pools
from planner.kinds.workflow.pools.forms import read_form
from planner.kinds.workflow.schedules import plan as schedules
from planner.kinds.workflow.schedules.forms import read_schedule
from planner.plan.schema import Envelope
from planner.problem.resolve import Resolved
from planner.progress import Limits


def solve(resolved: Resolved, limits: Limits) -> Envelope:
    """The plan; raises Infeasible, Stopped, and PlannerError for problems that no workflow answers."""
    schedule = read_schedule(resolved)
    if schedule is not None:
        return schedules.solve(schedule, limits)
    form = read_form(resolved)
    return plan.solve(resolved, limits) if form is None else pools.solve(form, limits)

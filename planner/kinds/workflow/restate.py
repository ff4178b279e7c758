"""States a workflow plan again from its problem and its own choices, and derives its bound again."""

from collections.abc import Iterator

from planner.kinds.workflow.decision import WorkflowDecision
from planner.kinds.workflow.graph import plan
from planner.kinds.workflow.options import WorkflowOptions
from planner.kinds.workflow.pools import plan as pools
from planner.kinds.workflow.pools.forms import read_form
from planner.kinds.workflow.schedules import plan as schedules
from planner.kinds.workflow.schedules.forms import read_schedule
from planner.plan.findings import Finding
from planner.plan.restated import Restated
from planner.plan.schema import Envelope
from planner.problem.recorded import AtHand, resolved_again


def restate(stated: Envelope, decision: WorkflowDecision, hand: AtHand) -> Restated:
    """The plan of these choices on the streams of its problem.

    Raises NotAtHand for inputs that are not, PlannerError for choices that the problem does not have.
    """
    resolved = resolved_again(stated.inputs, WorkflowOptions, hand)
    schedule = read_schedule(resolved)
    if schedule is not None:
        return schedules.restate(schedule, stated, decision)
    form = read_form(resolved)
    if form is not None:
        return pools.restate(form, stated, decision)
    return plan.restate(resolved, stated, decision, hand)


def prove(stated: Envelope, decision: WorkflowDecision, hand: AtHand) -> Iterator[Finding]:
    """Whether the bound follows from the problem."""
    del decision
    resolved = resolved_again(stated.inputs, WorkflowOptions, hand)
    schedule = read_schedule(resolved)
    if schedule is not None:
        yield from schedules.prove(schedule, stated)
        return
    form = read_form(resolved)
    yield from plan.prove(resolved, stated) if form is None else pools.prove(form, stated)

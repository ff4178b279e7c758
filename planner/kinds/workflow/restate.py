"""States a workflow plan again from its problem and its own choices, and derives its bound again."""

from collections.abc import Iterator

from planner.kinds.workflow.decision import WorkflowDecision
from planner.kinds.workflow.graph import plan
from planner.kinds.workflow.options import WorkflowOptions
from planner.kinds.workflow.speech import plan as speech
from planner.plan.findings import Finding
from planner.plan.restated import Restated
from planner.plan.schema import Envelope
from planner.problem.recorded import AtHand, resolved_again


def restate(stated: Envelope, decision: WorkflowDecision, hand: AtHand) -> Restated:
    """The plan of these choices on the streams of its problem.

    Raises NotAtHand for inputs that are not, PlannerError for choices that the problem does not have.
    """
    resolved = resolved_again(stated.inputs, WorkflowOptions, stated.digests.models, hand)
    if WorkflowOptions.model_validate(resolved.problem.options).speech is not None:
        return speech.restate(resolved, stated, decision)
    return plan.restate(resolved, stated, decision, hand)


def prove(stated: Envelope, decision: WorkflowDecision, hand: AtHand) -> Iterator[Finding]:
    """Whether the bound follows from the problem."""
    del decision
    resolved = resolved_again(stated.inputs, WorkflowOptions, stated.digests.models, hand)
    if WorkflowOptions.model_validate(resolved.problem.options).speech is not None:
        yield from speech.prove(resolved, stated)
        return
    yield from plan.prove(resolved, stated)

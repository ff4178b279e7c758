"""What of a serving plan can move: its replicas, which stay where solving lays them."""

from collections.abc import Iterator

from planner.errors import PlannerError
from planner.plan.copies import role_copies
from planner.plan.schema import Decision, Envelope
from planner.problem.resolve import Resolved
from planner.solvers.placement.regroup import Copy


def copies(decision: Decision) -> Iterator[Copy]:
    """Every replica."""
    return role_copies(decision)


def near(resolved: Resolved, plan: Envelope, running: Decision, loss: float) -> Envelope:
    """The plan as it is; raises PlannerError for a loss."""
    del resolved, running
    if loss:
        what = "a loss is of placements of models on groups, some of which stay as they are for it"
        raise PlannerError(what, where="--loss", hint="leave `--loss` out")
    return plan

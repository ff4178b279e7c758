"""Partial rollouts, as a plan states them: played once more for what they carry over."""

from planner.kinds.rl.decision import PartialRollouts
from planner.rl.partial import partial_iterations
from planner.rl.plan import RlPlan
from planner.rl.problem import RlProblem


def partial_rollouts(problem: RlProblem, plan: RlPlan) -> PartialRollouts | None:
    """Means over the batches, of which the first has nothing carried over; None where the problem asks for none."""
    if not problem.partial:
        return None
    found = partial_iterations(problem, plan.groups[0])
    return PartialRollouts(
        carried=sum(one.carried for one in found) / len(found),
        stale_share=sum(one.stale_tokens for one in found) / sum(one.tokens for one in found),
        oldest=max(one.oldest for one in found),
    )

"""Other replicas late in a rollout, as a plan states them: played once more for their times."""

import numpy as np

from planner.kinds.rl.decision import LateRollout
from planner.rl.generation import LateBatch, batch_finish_times
from planner.rl.plan import RlPlan
from planner.rl.problem import RlProblem


def late_rollout(problem: RlProblem, plan: RlPlan) -> LateRollout | None:
    """The change of `plan` with its times, means over the batches; None where it has none, or none that works."""
    if plan.late is None:
        return None
    played = [LateBatch(batch, plan.groups[0], problem.dispatch) for batch in problem.batches]
    cuts = [one.cut(plan.late) for one in played]
    done = [one.done_s(plan.late, problem.late_change_s) for one in played]
    if any(one is None for one in (*cuts, *done)):
        return None
    unchanged = [batch_finish_times(batch, plan.groups, problem.dispatch, 0.0).max() for batch in problem.batches]
    return LateRollout(
        threshold=plan.late.threshold,
        samples_left=plan.late.samples(problem.batches[0].size),
        changed_s=float(np.mean([one.end_s for one in cuts if one is not None])),
        generated_s=float(np.mean([one.max() for one in done if one is not None])),
        unchanged_s=float(np.mean(unchanged)),
    )

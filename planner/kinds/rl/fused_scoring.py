"""Scoring fused with generation, as a plan states it: played once more for its times."""

import numpy as np

from planner.kinds.rl.decision import FusedScoring
from planner.rl.generation import FusedBatch, batch_finish_times
from planner.rl.plan import RlPlan
from planner.rl.problem import RlProblem


def fused_scoring(problem: RlProblem, plan: RlPlan) -> FusedScoring | None:
    """The fusion of `plan` with its times, means over the batches; None where it has none, or none that works."""
    if plan.fusion is None or plan.groups[0].option.pool not in problem.scoring:
        return None
    group, scoring = plan.groups[0], problem.scoring[plan.groups[0].option.pool]
    played = [FusedBatch(batch, group, problem.dispatch, scoring) for batch in problem.batches]
    times = [one.times(plan.fusion) for one in played]
    found = [one for one in times if one is not None]
    if len(found) < len(times):
        return None
    unfused_s = [
        batch_finish_times(batch, plan.groups, problem.dispatch, 0.0).max()
        + scoring.load_s
        + float(batch.tokens_N.sum()) * scoring.gpu_s / group.gpus
        for batch in problem.batches
    ]
    return FusedScoring(
        threshold=plan.fusion.threshold,
        samples_left=plan.fusion.samples(problem.batches[0].size),
        kept=plan.fusion.kept,
        free_s=float(np.mean([one.free_s for one in found])),
        generated_s=float(np.mean([one.generation_s for one in found])),
        scored_s=float(np.mean([one.end_s for one in found])),
        unfused_s=float(np.mean(unfused_s)),
    )

"""Why no training plan can have axes that somebody asks for: the rules that leave no combination of them."""

import numpy as np

from planner.kinds.train.job import jobs_of
from planner.kinds.train.search.conflicts import has_candidates
from planner.kinds.train.space.space import allowed_schedules, axis_values, space_of
from planner.kinds.train.space.space import rules_against as broken
from planner.problem.resolve import Resolved


def rules_against(resolved: Resolved) -> tuple[str, ...]:
    """The fewest rules that leave no combination of the axes, or that no schedule runs what is left; else none.

    Of problems with several pools nothing is said: each use of them has a space of its own.
    """
    jobs = jobs_of(resolved)
    if len(jobs) > 1 or has_candidates(jobs[0]):
        return ()
    (job,) = jobs
    rules = broken(job)
    if rules:
        return rules
    space = space_of(job)
    batches = np.unique(job.options.global_batch // (space.dp * space.micro_batch)).tolist()
    schedules = " or ".join(allowed_schedules(job))
    stages, chunks = (", ".join(map(str, values)) for values in (np.unique(space.pp).tolist(), axis_values(job)["vpp"]))
    told = ", ".join(map(str, batches[:6])) + (" ..." if len(batches) > 6 else "")
    return (f"{schedules} does not run {told} micro-batches over {stages} ranks with {chunks} stages each",)

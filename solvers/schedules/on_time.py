"""Throughput scheduling (1 | r_j, agreeable d_j | sum U_j): the most jobs of one machine that can be on time.

Problem     1 | r_j, agreeable d_j | sum U_j, with or without preemption (the earliest deadline never preempts here)
Agreeable   whoever is released later is also due later
Method      jobs in their order; when one is late, the job is left out whose absence lets the machine end soonest
Source      Kise, Ibaraki and Mine, "A solvable case of the one-machine scheduling problem with ready and due times",
            Operations Research 26 (1978). O(J^2) at worst, near O(J) where busy periods are short.
"""

import numpy as np

from planner.arrays import Floats


def most_on_time(release: Floats, deadline: Floats, work: Floats, *, wanted: int = 0) -> int:
    """How many of the jobs can be done by their deadlines; -1 as soon as it is clear that not `wanted` of them can.

    All three [J], in one unit; release and deadline never fall from a job to the next.
    """
    from planner.solvers.compiled import on_time

    arrays = [np.ascontiguousarray(values, dtype=np.float64) for values in (release, deadline, work)]
    if any(np.any(np.diff(values) < 0.0) for values in arrays[:2]):
        raise ValueError("jobs must be in the order of their releases and of their deadlines")
    release_J, deadline_J, work_J = arrays
    return int(on_time.most_on_time(release_J, deadline_J, work_J, len(release_J) - wanted))

"""The first-come rule over groups of stages (numba). J request, M model, G group, C shape, K stage."""

import numpy as np
from numba import njit

from planner.solvers.compilation.kept import kept


@kept
@njit
def lost(
    time_J, model_J, hosts_MG, count_M, shape_G, stage_s_CMK, stages_C, limit_s_M, most, end_s_J, left_M, weight_M
):
    """Requests that are late or have no host, up to one more than `most`; ends of the others in end_s_J, if any.

    A late request takes one of its model's left_M, or weighs weight_M more where none is left.
    """
    groups = len(shape_G)
    clock = np.full((groups, stage_s_CMK.shape[2]), -np.inf)
    ended = np.full(groups, -np.inf)
    trial = np.empty(stage_s_CMK.shape[2])
    total, marks = 0, len(end_s_J) > 0
    for j in range(len(time_J)):
        model = model_J[j]
        late = True
        if count_M[model] > 0:
            group = hosts_MG[model, 0]
            for q in range(1, count_M[model]):
                other = hosts_MG[model, q]
                if ended[other] < ended[group]:
                    group = other
            shape = shape_G[group]
            stages = stages_C[shape]
            now = time_J[j]
            for k in range(stages):
                now = max(now, clock[group, k]) + stage_s_CMK[shape, model, k]
                trial[k] = now
            if now - time_J[j] <= limit_s_M[model]:
                late = False
                ended[group] = now
                if marks:
                    end_s_J[j] = now
                for k in range(stages):
                    clock[group, k] = trial[k]
        if late:
            total += 1 if left_M[model] > 0 else 1 + weight_M[model]
            left_M[model] -= left_M[model] > 0
            if total > most:
                return total
    return total

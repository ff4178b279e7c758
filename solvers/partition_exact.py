"""The contiguous partition as a mixed-integer program: the referee of the dynamic program, for small instances."""

from planner.solvers.backends.model import LinearModel, total
from planner.solvers.partition import PartitionProblem


def build(problem: PartitionProblem) -> LinearModel:
    """Contiguous partition minimising the slowest stage.

    Sets        l in L items, s in S stages, o in O options
    Parameters  t_ol time, h_ol held bytes, g_l fixed bytes, d_s depth, e_s, E_s more time and bytes, M_s capacity
    Variables   x_los in {0,1} item l runs on stage s under option o;   T >= 0 slowest stage
    Minimise    T
    (C1) sum_os x_los = 1                                          for l      each item runs once
    (C2) e_s + sum_lo t_ol x_los <= T                              for s      T bounds every stage
    (C3) E_s + sum_lo (g_l + d_s h_ol) x_los <= M_s                for s      stage fits
    (C4) sum_{o,k<=s} x_{l+1,o,k} <= sum_{o,k<=s} x_lok            for l, s   stages are contiguous
    (C5) sum_lo x_los >= n_s                                       for s      least items
    """
    O, L = (range(size) for size in problem.time_OL.shape)
    S = range(problem.num_stages)
    t, h, g = problem.time_OL, problem.held_OL, problem.fixed_L
    d, e, E, M = problem.depth_S, problem.more_time_S, problem.more_bytes_S, problem.capacity_S
    model = LinearModel()
    x = {(l, o, s): model.binary(f"x[{l},{o},{s}]") for l in L for o in O for s in S}
    T = model.continuous("T", 0.0)
    unit = max(float(M.max()), 1.0)  # bytes in units of the largest stage
    model.minimise(T)
    for l in L:
        model.add(total(x[l, o, s] for o in O for s in S) == 1.0, name=f"C1[{l}]")
    for s in S:
        model.add(total(float(t[o, l]) * x[l, o, s] for l in L for o in O) + float(e[s]) - T <= 0.0, name=f"C2[{s}]")
        used = total(float((g[l] + d[s] * h[o, l]) / unit) * x[l, o, s] for l in L for o in O)
        model.add(used <= float((M[s] - E[s]) / unit), name=f"C3[{s}]")
        for l in L[:-1]:
            after = total(x[l + 1, o, k] for o in O for k in S[: s + 1])
            model.add(after - total(x[l, o, k] for o in O for k in S[: s + 1]) <= 0.0, name=f"C4[{l},{s}]")
        model.add(total(x[l, o, s] for l in L for o in O) >= float(problem.least_S[s]), name=f"C5[{s}]")
    return model

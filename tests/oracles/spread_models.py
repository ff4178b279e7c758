"""Copies of items in slots of bins as programs: equal shares, and shares for given places.

Small instances only. All take weights [E], slots [R] and speeds [R]; `allowed_ER` says which bin may hold which item.
"""

from math import lcm

import numpy as np

from planner.arrays import Bools, Floats, Ints
from planner.solvers.backends.model import LinearModel, total


def equal_shares_model(
    weight_E: Floats, slots_R: Ints, speed_R: Floats, allowed_ER: Bools | None = None, *, whole: bool = False
) -> LinearModel:
    """Copies with equal shares.

    `whole` counts T in units of 1 / lcm(1..|R|) and makes it integer, exact for whole weights on bins of speed 1: what
    solvers without continuous variables need.

    Sets        e in E items, r in R bins, n in 1..|R| copies
    Parameters  w_e weight, v_r speed, S_r slots, a_er in {0,1} allowed
    Variables   z_en in {0,1} e has n copies;  y_enr in {0,1} one of the n is on r;  T slowest bin
    Minimise    T
    (C1) sum_n z_en = 1                    for e      a number of copies
    (C2) sum_r y_enr = n z_en              for e, n   so many copies, on different bins
    (C3) sum_en y_enr = S_r                for r      every slot is filled
    (C4) sum_en (w_e / n) y_enr <= v_r T   for r      T bounds every bin
    """
    E, R = range(len(weight_E)), range(len(slots_R))
    w, v, S = weight_E, speed_R, slots_R
    a = np.ones((len(E), len(R)), np.bool_) if allowed_ER is None else allowed_ER
    unit = lcm(*range(1, len(R) + 1)) if whole else 1
    model = LinearModel()
    N = [range(1, int(a[e].sum()) + 1) for e in E]
    z = {(e, n): model.binary(f"z[{e},{n}]") for e in E for n in N[e]}
    y = {(e, n, r): model.binary(f"y[{e},{n},{r}]") for e in E for n in N[e] for r in R if a[e, r]}
    T = model.variable("T", 0.0, float(unit * w.sum() / v.min()), integer=whole)
    model.minimise(T)
    for e in E:
        model.add(total(z[e, n] for n in N[e]) == 1, name=f"C1[{e}]")
        for n in N[e]:
            copies = total(y[e, n, r] for r in R if a[e, r])
            model.add(copies - n * z[e, n] == 0, name=f"C2[{e},{n}]")
    for r in R:
        here = [(e, n) for e in E for n in N[e] if a[e, r]]
        model.add(total(y[e, n, r] for e, n in here) == float(S[r]), name=f"C3[{r}]")
        load = total(float(unit * w[e] / n) * y[e, n, r] for e, n in here)
        model.add(load - float(v[r]) * T <= 0, name=f"C4[{r}]")
    return model


def shares_model(weight_E: Floats, slots_R: Ints, speed_R: Floats, item_P: Ints) -> LinearModel:
    """Shares for given places.

    Sets        p in P slots with item e(p) on bin r(p)
    Variables   x_p >= 0 weight carried by slot p;  T slowest bin
    Minimise    T
    (C1) sum_{p: e(p) = e} x_p = w_e      for e   all weight is carried
    (C4) sum_{p: r(p) = r} x_p <= v_r T   for r   T bounds every bin
    """
    P, bin_P, w = range(len(item_P)), np.repeat(np.arange(len(slots_R)), slots_R), weight_E
    model = LinearModel()
    x = [model.continuous(f"x[{p}]", 0.0, float(w[item_P[p]])) for p in P]
    T = model.continuous("T")
    model.minimise(T)
    for e in range(len(w)):
        model.add(total(x[p] for p in P if item_P[p] == e) == float(w[e]), name=f"C1[{e}]")
    for r in range(len(slots_R)):
        carried = total(x[p] for p in P if bin_P[p] == r)
        model.add(carried - float(speed_R[r]) * T <= 0, name=f"C4[{r}]")
    return model

"""Weight handed from fixed homes to free slots of other bins as an integer program, for small instances."""

from planner.arrays import Floats, Ints
from planner.solvers.backends.model import LinearModel, total


def exports_model(weight_E: Floats, home_R: Ints, free_R: Ints, speed_R: Floats, *, whole: bool = False) -> LinearModel:
    """Parts of items handed from their home bin to free slots of others.

    `whole` hands over whole units of weight, on bins of speed 1: what solvers without continuous variables need.

    Sets        e in E items with home h(e), r in R bins
    Parameters  w_e weight, v_r speed, k_r free slots
    Variables   y_er in {0,1} a free slot of r takes e;  x_er >= 0 weight of e carried there;  T slowest bin
    Minimise    T
    (C1) x_er <= w_e y_er                                       for e, r != h(e)   only where a slot is taken
    (C2) sum_e y_er <= k_r                                      for r              free slots
    (C3) sum_r x_er <= w_e                                      for e              no more than there is
    (C4) sum_{h(e)=r} (w_e - sum_q x_eq) + sum_e x_er <= v_r T  for r              T bounds every bin
    """
    E, R = range(len(weight_E)), range(len(home_R))
    w, v, k = weight_E, speed_R, free_R
    h = [r for r in R for _ in range(int(home_R[r]))]
    model = LinearModel()
    pairs = [(e, r) for e in E for r in R if r != h[e]]
    y = {(e, r): model.binary(f"y[{e},{r}]") for e, r in pairs}
    x = {(e, r): model.variable(f"x[{e},{r}]", 0.0, float(w[e]), integer=whole) for e, r in pairs}
    T = model.variable("T", 0.0, float(w.sum() / v.min()), integer=whole)
    model.minimise(T)
    for e, r in pairs:
        model.add(x[e, r] - float(w[e]) * y[e, r] <= 0, name=f"C1[{e},{r}]")
    for r in R:
        model.add(total(y[e, r] for e in E if h[e] != r) <= float(k[r]), name=f"C2[{r}]")
    for e in E:
        model.add(total(x[e, r] for r in R if r != h[e]) <= float(w[e]), name=f"C3[{e}]")
    for r in R:
        own = float(sum(w[e] for e in E if h[e] == r))
        out = total(x[e, q] for e in E if h[e] == r for q in R if q != r)
        into = total(x[e, r] for e in E if h[e] != r)
        model.add(into - out - float(v[r]) * T <= -own, name=f"C4[{r}]")
    return model

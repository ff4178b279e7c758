"""Every cut of a row into stages with every choice of options, one by one; and the same as an integer program.

A stage is (depth, more time, more bytes, capacity, least items).
"""

from collections.abc import Iterator, Sequence
from itertools import product

from planner.solvers.backends.model import LinearModel, total

Stage = tuple[float, float, float, float, int]


def cuts(items: int, stages: int) -> Iterator[tuple[int, ...]]:
    """Every way to give `items` to `stages` in order."""
    if stages == 1:
        yield (items,)
        return
    for first in range(items + 1):
        yield from ((first, *rest) for rest in cuts(items - first, stages - 1))


def least_slowest(
    time: Sequence[Sequence[float]],
    resident: Sequence[Sequence[float]],
    fixed: Sequence[float],
    stages: Sequence[Stage],
) -> float | None:
    """The least slowest stage; None where nothing fits."""
    best = None
    for counts in cuts(len(fixed), len(stages)):
        if any(count < stage[4] for count, stage in zip(counts, stages, strict=True)):
            continue
        slowest, first = 0.0, 0
        for count, (depth, more_time, more_bytes, capacity, _) in zip(counts, stages, strict=True):
            span = range(first, first + count)
            first += count
            room = capacity * (1 + 1e-12) - more_bytes - sum(fixed[item] for item in span)
            fastest = [
                sum(time[option][item] for option, item in zip(chosen, span, strict=True))
                for chosen in product(range(len(time)), repeat=count)
                if depth * sum(resident[option][item] for option, item in zip(chosen, span, strict=True)) <= room
            ]
            slowest = max(slowest, more_time + min(fastest)) if fastest else float("inf")
        if slowest < float("inf") and (best is None or slowest < best):
            best = slowest
    return best


def stage_bytes(
    resident: Sequence[Sequence[float]],
    fixed: Sequence[float],
    stages: Sequence[Stage],
    counts: Sequence[int],
    options: Sequence[int],
) -> list[float]:
    """Bytes of every stage under a cut and a choice of options."""
    used, first = [], 0
    for count, (depth, _, more_bytes, _, _) in zip(counts, stages, strict=True):
        span = range(first, first + count)
        first += count
        used.append(more_bytes + sum(fixed[item] + depth * resident[options[item]][item] for item in span))
    return used


def partition_model(
    time: Sequence[Sequence[float]],
    resident: Sequence[Sequence[float]],
    fixed: Sequence[float],
    stages: Sequence[Stage],
) -> LinearModel:
    """Contiguous partition minimising the slowest stage.

    Sets        l in L items, s in S stages, o in O options
    Parameters  t_ol time, h_ol resident bytes, g_l fixed bytes, d_s depth, e_s, E_s more time and bytes, M_s capacity
    Variables   x_los in {0,1} item l runs on stage s under option o;   T >= 0 slowest stage
    Minimise    T
    (C1) sum_os x_los = 1                                          for l      each item runs once
    (C2) e_s + sum_lo t_ol x_los <= T                              for s      T bounds every stage
    (C3) E_s + sum_lo (g_l + d_s h_ol) x_los <= M_s                for s      stage fits
    (C4) sum_{o,k<=s} x_{l+1,o,k} <= sum_{o,k<=s} x_lok            for l, s   stages are contiguous
    (C5) sum_lo x_los >= n_s                                       for s      least items
    """
    O, L, S = range(len(time)), range(len(fixed)), range(len(stages))
    t, h, g = time, resident, fixed
    d, e, E, M, n = zip(*stages, strict=True)
    model = LinearModel()
    x = {(l, o, s): model.binary(f"x[{l},{o},{s}]") for l in L for o in O for s in S}
    T = model.continuous("T", 0.0)
    unit = max(*M, 1.0)  # bytes in units of the largest stage
    model.minimise(T)
    for l in L:
        model.add(total(x[l, o, s] for o in O for s in S) == 1.0, name=f"C1[{l}]")
    for s in S:
        model.add(total(t[o][l] * x[l, o, s] for l in L for o in O) + e[s] - T <= 0.0, name=f"C2[{s}]")
        used = total((g[l] + d[s] * h[o][l]) / unit * x[l, o, s] for l in L for o in O)
        model.add(used <= (M[s] - E[s]) / unit, name=f"C3[{s}]")
        for l in L[:-1]:
            after = total(x[l + 1, o, k] for o in O for k in S[: s + 1])
            model.add(after - total(x[l, o, k] for o in O for k in S[: s + 1]) <= 0.0, name=f"C4[{l},{s}]")
        model.add(total(x[l, o, s] for l in L for o in O) >= float(n[s]), name=f"C5[{s}]")
    return model

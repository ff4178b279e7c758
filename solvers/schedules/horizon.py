"""Multi-period choice with switching costs: a state for every period, a change charged by what changes, exactly.

Sets        t in T periods,  s in S states,  a in A attributes of a state
Parameters  c_ts cost of state s in period t (infinite: not possible),  k_sa attribute a of state s,
            w_a >= 0 cost of a change of attribute a,  k_0a the attributes before the first period, if known
Variables   s_t in S
Minimise    sum_t c_t,s_t + sum_t sum_a w_a [k_s_t,a != k_s_t-1,a], with k_0 before the first
With v_t(s) the least cost up to t that ends in s, v_t(s) = c_ts + min over sets K of attributes of
(sum of w_a outside K) + min {v_t-1(s') : s' agrees with s on K}: charging an attribute that did not change is never
less than what K with it gives. O(|T| 2^|A| |S|) in place of O(|T| |S|^2).
"""

import time
from itertools import combinations, pairwise

import numpy as np

from planner.arrays import Floats, Ints
from planner.errors import PlannerError
from planner.solvers.result import SolveResult, Status


def solve_horizon(
    cost_TS: Floats, attribute_SA: Ints, change_A: Floats, *, initial_A: Ints | None = None
) -> SolveResult[tuple[int, ...]]:
    """The state of every period; INFEASIBLE where some period has none. Raises PlannerError for bad data.

    An attribute of `initial_A` that no state has is one that changes in any case.
    """
    started = time.perf_counter()
    _validate(cost_TS, attribute_SA, change_A, initial_A)
    value_TS = np.empty_like(cost_TS)
    groups = _groups(attribute_SA, change_A)
    for period, cost_S in enumerate(cost_TS):
        if period == 0:
            before_S = np.zeros(len(cost_S)) if initial_A is None else _changes(attribute_SA, change_A, initial_A)
        else:
            before_S = _reached(value_TS[period - 1], groups)
        value_TS[period] = before_S + cost_S
    best = int(value_TS[-1].argmin())
    took = time.perf_counter() - started
    if not np.isfinite(value_TS[-1, best]):
        return SolveResult(Status.INFEASIBLE, "finished", None, None, None, took, "horizon")
    path = _path(best, value_TS, attribute_SA, change_A)
    total = horizon_cost(path, cost_TS, attribute_SA, change_A, initial_A=initial_A)
    took = time.perf_counter() - started
    return SolveResult(Status.OPTIMAL, "finished", path, total, min(float(value_TS[-1, best]), total), took, "horizon")


def horizon_cost(
    path: tuple[int, ...], cost_TS: Floats, attribute_SA: Ints, change_A: Floats, *, initial_A: Ints | None = None
) -> float:
    """What a path costs, changes included."""
    total = float(sum(cost_TS[period, state] for period, state in enumerate(path)))
    chain = [*([] if initial_A is None else [initial_A]), *(attribute_SA[state] for state in path)]
    return total + sum(float((change_A * (one_A != other_A)).sum()) for one_A, other_A in pairwise(chain))


def _validate(cost_TS: Floats, attribute_SA: Ints, change_A: Floats, initial_A: Ints | None) -> None:
    if cost_TS.ndim != 2 or not cost_TS.size:
        raise PlannerError("needs a cost for every period and state", where="cost_TS", hint="give a table [T, S]")
    if attribute_SA.shape != (cost_TS.shape[1], len(change_A)):
        raise PlannerError(
            f"attributes {attribute_SA.shape} for {cost_TS.shape[1]} states and {len(change_A)} costs of change",
            where="attribute_SA",
            hint="give one row a state, one column a cost of change",
        )
    if (change_A < 0).any():
        raise PlannerError("a change costs less than nothing", where="change_A", hint="give costs of 0 or more")
    if initial_A is not None and initial_A.shape != change_A.shape:
        raise PlannerError(
            f"{len(initial_A)} attributes before the first period, states have {len(change_A)}",
            where="initial_A",
            hint="give one for each cost of change",
        )


def _groups(attribute_SA: Ints, change_A: Floats) -> list[tuple[Ints, int, float]]:
    """For every set of attributes kept: the group of each state, how many groups, and the cost of changing the rest."""
    count = len(change_A)
    groups = []
    for number in range(count + 1):
        for kept in combinations(range(count), number):
            rest = float(sum(change_A[attribute] for attribute in range(count) if attribute not in kept))
            if kept:
                _, group_S = np.unique(attribute_SA[:, list(kept)], axis=0, return_inverse=True)
            else:
                group_S = np.zeros(len(attribute_SA), np.int64)
            group_S = group_S.reshape(-1)
            groups.append((group_S, int(group_S.max()) + 1, rest))
    return groups


def _reached(value_S: Floats, groups: list[tuple[Ints, int, float]]) -> Floats:
    """The least cost of being about to enter each state."""
    best_S = value_S.copy()  # nothing changes
    for group_S, number, rest in groups:
        least = np.full(number, np.inf)
        np.minimum.at(least, group_S, value_S)
        best_S = np.minimum(best_S, least[group_S] + rest)
    return best_S


def _changes(attribute_SA: Ints, change_A: Floats, from_A: Ints) -> Floats:
    """The cost of going between these attributes and every state."""
    return np.asarray((attribute_SA != from_A) @ change_A)


def _path(last: int, value_TS: Floats, attribute_SA: Ints, change_A: Floats) -> tuple[int, ...]:
    path = [last]
    for period in range(len(value_TS) - 2, -1, -1):
        path.append(int((value_TS[period] + _changes(attribute_SA, change_A, attribute_SA[path[-1]])).argmin()))
    return tuple(reversed(path))

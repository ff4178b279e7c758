"""Orders of passes on the ranks of a pipeline (numba): their makespan, and annealing of the orders."""

import numpy as np
from numba import njit

from planner.solvers.compilation.kept import kept
from planner.solvers.compilation.parts import inlined_part, part
from planner.solvers.compiled.copies import copy_rows, move_item

FAR = 12  # places over which a pass of a group is not moved


@part
def makespan(order_RN, count_R, duration_O, start_O, before_E, end_O, at_R, free_R):
    """Seconds of orders, every pass as early as it can; infinite where ranks wait for each other.

    before_E[start_O[o] : start_O[o + 1]] are the passes that o waits for; the last three are scratch.
    """
    R = len(order_RN)
    left = 0
    for r in range(R):
        at_R[r] = 0
        free_R[r] = 0.0
        left += count_R[r]
    end_O[:] = -1.0
    while left > 0:
        moved = False
        for r in range(R):
            while at_R[r] < count_R[r]:
                o = order_RN[r, at_R[r]]
                ready = free_R[r]
                waits = False
                for e in range(start_O[o], start_O[o + 1]):
                    ended = end_O[before_E[e]]
                    if ended < 0.0:
                        waits = True
                        break
                    ready = max(ready, ended)
                if waits:
                    break
                free_R[r] = ready + duration_O[o]
                end_O[o] = free_R[r]
                at_R[r] += 1
                left -= 1
                moved = True
        if not moved:
            return np.inf
    last = 0.0
    for r in range(R):
        last = max(last, free_R[r])
    return last


@part
def fits(order_N, count, held_O, capacity):
    """Whether a rank never holds more than its capacity: forward passes add, backward ones give back at their end."""
    held = 0.0
    for n in range(count):
        more = held_O[order_N[n]]
        if more > 0.0:
            held += more
            if held > capacity:
                return False
        else:
            held += more
    return True


@inlined_part
def beside(row, count, group_O, moved, other, behind):
    """(from, to) of the pass of group `moved` to just before or `behind` that of `other`; equal where it stays."""
    source, target = -1, -1
    for n in range(count):
        if group_O[row[n]] == moved:
            source = n
        if group_O[row[n]] == other:
            target = n
    if source < 0 or target < 0 or abs(source - target) > FAR:
        return 0, 0
    if behind == 0 and source < target:
        target -= 1
    elif behind == 1 and source > target:
        target += 1
    return source, target


@inlined_part
def along(count, by):
    """(from, to) of a pass drawn from a rank, so many places on; equal where the rank ends before."""
    source = np.random.randint(count)
    target = source + by
    return source, target if 0 <= target < count else source


@kept
@njit
def anneal_passes(
    order_RN, count_R, duration_O, held_O, capacity_R, start_O, before_E, group_O, number, steps, seed, hot
):
    """Improves orders in place; the makespan. group_O: passes that differ in their rank alone have one number.

    Moves: a pass to another place of its rank, or all passes of a group to just before or behind those of another.
    """
    np.random.seed(seed)
    R, _N = order_RN.shape
    end_O, at_R, free_R = np.zeros(len(duration_O)), np.zeros(R, np.int64), np.zeros(R)
    now = makespan(order_RN, count_R, duration_O, start_O, before_E, end_O, at_R, free_R)
    best, best_RN = now, order_RN.copy()
    trial = order_RN.copy()
    first = now
    for step in range(steps):
        heat = hot * first * (0.01 ** (step / steps))
        wide = np.random.random() < 0.4
        low, high = 0, R
        if not wide:
            low = np.random.randint(R)
            high = low + 1
        a = np.random.randint(number)
        b = np.random.randint(number)
        behind = np.random.randint(2)
        reach = 1 + np.random.randint(4)
        side = 1 if np.random.random() < 0.5 else -1
        if wide and np.random.random() < 0.5:
            low = np.random.randint(R)
            high = low + 1 + np.random.randint(R - low)
        changed = False
        ok = True
        for r in range(low, high):
            if wide:
                source, target = beside(trial[r], count_R[r], group_O, a, b, behind)
            else:
                source, target = along(count_R[r], side * reach)
            if source == target:
                continue
            move_item(trial[r], source, target)
            changed = True
            if not fits(trial[r], count_R[r], held_O, capacity_R[r]):
                ok = False
                break
        if changed and ok:
            after = makespan(trial, count_R, duration_O, start_O, before_E, end_O, at_R, free_R)
            if after <= now or np.random.random() < np.exp((now - after) / heat):
                now = after
                copy_rows(trial[low:high], order_RN[low:high])
                if now < best:
                    best = now
                    copy_rows(order_RN, best_RN)
                continue
        if changed:
            copy_rows(order_RN[low:high], trial[low:high])
    copy_rows(best_RN, order_RN)
    return best

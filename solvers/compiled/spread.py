"""Makespan scheduling with item splitting (numba): copies with equal shares, construction and local search.

Shape suffixes: E item, R bin, P slot (bin-major). A bin's time is its load divided by its speed.
"""

import numpy as np
from numba import njit

from planner.solvers.compilation.kept import kept
from planner.solvers.compilation.parts import owning_part, part

EPS = 1e-12


@kept
@njit
def greedy_copies(weight_E, num_slots, most_E):
    """Copies of each item: one each, then one more for whichever has the most weight a copy; O(P log E).

    Least possible largest weight of a copy, since the greedy rule never helps a smaller one first.
    """
    E = len(weight_E)
    copies_E = np.ones(E, np.int64)
    for _ in range(num_slots - E):
        best, best_weight = -1, -1.0
        for e in range(E):
            each = weight_E[e] / copies_E[e]
            if copies_E[e] < most_E[e] and each > best_weight:
                best, best_weight = e, each
        if best < 0:
            break
        copies_E[best] += 1
    return copies_E


@part
def _fit(e, each, first_R, used_R, load_R, speed_R, placed_ER, allowed_ER):
    """The bin that finishes first with one more copy of `e`; -1 where none may take it."""
    best, best_time = -1, np.inf
    for r in range(len(load_R)):
        if first_R[r] + used_R[r] < first_R[r + 1] and not placed_ER[e, r] and allowed_ER[e, r]:
            time = (load_R[r] + each) / speed_R[r]
            if time < best_time:
                best, best_time = r, time
    return best


@part
def _make_room(e, item_P, first_R, used_R, load_R, placed_ER, allowed_ER, each_E):
    """A bin for `e` after moving one copy of another item out of it into a bin with room; -1 where none helps."""
    R = len(load_R)
    for free in range(R):
        if first_R[free] + used_R[free] >= first_R[free + 1]:
            continue
        for r in range(R):
            if r == free or placed_ER[e, r] or not allowed_ER[e, r]:
                continue
            for p in range(first_R[r], first_R[r] + used_R[r]):
                f = item_P[p]
                if placed_ER[f, free] or not allowed_ER[f, free]:
                    continue
                item_P[first_R[free] + used_R[free]] = f
                used_R[free] += 1
                load_R[free] += each_E[f]
                placed_ER[f, free] = True
                used_R[r] -= 1
                item_P[p] = item_P[first_R[r] + used_R[r]]
                load_R[r] -= each_E[f]
                placed_ER[f, r] = False
                return r
    return -1


@kept
@njit
def longest_first(weight_E, copies_E, first_R, speed_R, allowed_ER, order_E):
    """Every copy, in the order of `order_E`, to the bin that then finishes first; no bin holds two copies of one item.

    Returns (item_P with -1 in slots left free, complete): `complete` is False where some copy has no bin.
    """
    E, R = len(weight_E), len(speed_R)
    item_P = np.full(first_R[R], -1, np.int64)
    placed_ER = np.zeros((E, R), np.bool_)
    load_R, used_R = np.zeros(R), np.zeros(R, np.int64)
    each_E = weight_E / copies_E
    complete = True
    for e in order_E:
        for _ in range(copies_E[e]):
            r = _fit(e, each_E[e], first_R, used_R, load_R, speed_R, placed_ER, allowed_ER)
            if r < 0:
                r = _make_room(e, item_P, first_R, used_R, load_R, placed_ER, allowed_ER, each_E)
            if r < 0:
                complete = False
                continue
            item_P[first_R[r] + used_R[r]] = e
            used_R[r] += 1
            load_R[r] += each_E[e]
            placed_ER[e, r] = True
    return item_P, complete


@kept
@njit
def fill_free(item_P, bin_P, weight_E, allowed_ER):
    """Every free slot (-1) of `item_P`, in place, with the item its bin lacks that has most weight a copy; whether all
    could be filled."""
    E, R = allowed_ER.shape
    copies_E, placed_ER = np.zeros(E, np.int64), np.zeros((E, R), np.bool_)
    for p in range(len(item_P)):
        if item_P[p] >= 0:
            copies_E[item_P[p]] += 1
            placed_ER[item_P[p], bin_P[p]] = True
    for p in range(len(item_P)):
        if item_P[p] >= 0:
            continue
        r, best, most = bin_P[p], -1, -1.0
        for e in range(E):
            if allowed_ER[e, r] and not placed_ER[e, r] and weight_E[e] / max(copies_E[e], 1) > most:
                best, most = e, weight_E[e] / max(copies_E[e], 1)
        if best < 0:
            return False
        item_P[p] = best
        copies_E[best] += 1
        placed_ER[best, r] = True
    return True


@part
def _slowest(load_R, speed_R):
    worst = 0
    for r in range(1, len(load_R)):
        if load_R[r] / speed_R[r] > load_R[worst] / speed_R[worst]:
            worst = r
    return worst


@part
def _best_swap(r, item_P, first_R, load_R, speed_R, each_E, placed_ER, allowed_ER):
    """The swap of a copy on bin `r` with one elsewhere after which the slower of the two bins is fastest."""
    best_a, best_b, best_time = -1, -1, load_R[r] / speed_R[r] * (1.0 - EPS)
    for q in range(len(load_R)):
        if q == r or load_R[q] / speed_R[q] >= best_time:
            continue
        for a in range(first_R[r], first_R[r + 1]):
            e = item_P[a]
            if placed_ER[e, q] or not allowed_ER[e, q]:
                continue
            base_r, base_q = load_R[r] - each_E[e], load_R[q] + each_E[e]
            most, least = best_time * speed_R[r] - base_r, base_q - best_time * speed_R[q]
            for b in range(first_R[q], first_R[q + 1]):
                f = item_P[b]
                if each_E[f] >= most or each_E[f] <= least or placed_ER[f, r] or not allowed_ER[f, r]:
                    continue
                best_a, best_b = a, b
                best_time = max((base_r + each_E[f]) / speed_R[r], (base_q - each_E[f]) / speed_R[q])
                most, least = best_time * speed_R[r] - base_r, base_q - best_time * speed_R[q]
    return best_a, best_b


@part
def _swap(a, b, item_P, bin_P, load_R, each_E, placed_ER):
    e, f, r, q = item_P[a], item_P[b], bin_P[a], bin_P[b]
    item_P[a], item_P[b] = f, e
    placed_ER[e, r], placed_ER[e, q] = False, True
    placed_ER[f, q], placed_ER[f, r] = False, True
    load_R[r] += each_E[f] - each_E[e]
    load_R[q] += each_E[e] - each_E[f]


@part
def _times_without(item_P, bin_P, weight_E, copies_E, load_R, speed_R, first_E, second_E, bin_E):
    """For items with copies to spare: their slowest bin once one copy is gone, its time, and the next slowest time."""
    first_E[:] = -1.0
    second_E[:] = -1.0
    for p in range(len(item_P)):
        f, r = item_P[p], bin_P[p]
        if copies_E[f] < 2:
            continue
        time = (load_R[r] + weight_E[f] / (copies_E[f] - 1) - weight_E[f] / copies_E[f]) / speed_R[r]
        if time > first_E[f]:
            second_E[f] = first_E[f]
            first_E[f], bin_E[f] = time, r
        elif time > second_E[f]:
            second_E[f] = time


@owning_part
def _best_recount(r, item_P, first_R, bin_P, weight_E, copies_E, load_R, speed_R, placed_ER, allowed_ER, limit):
    """The slot that best becomes one more copy of an item of bin `r`, at the cost of an item with copies to spare.

    Judged by the slowest bin among `r`, the slot's own and those of the item that loses a copy; the other bins of the
    item that gains one only get faster.
    """
    best_e, best_p, best_time = -1, -1, limit * (1.0 - EPS)
    E, R = placed_ER.shape
    first_E, second_E, bin_E = np.empty(E), np.empty(E), np.zeros(E, np.int64)
    _times_without(item_P, bin_P, weight_E, copies_E, load_R, speed_R, first_E, second_E, bin_E)
    for a in range(first_R[r], first_R[r + 1]):
        e = item_P[a]
        if copies_E[e] >= R:
            continue
        new_e = weight_E[e] / (copies_E[e] + 1)
        own = (load_R[r] - weight_E[e] / copies_E[e] + new_e) / speed_R[r]
        if own >= best_time:
            continue
        for p in range(len(item_P)):
            f, q = item_P[p], bin_P[p]
            if copies_E[f] < 2 or f == e or placed_ER[e, q] or not allowed_ER[e, q]:
                continue
            time = max(own, (load_R[q] + new_e - weight_E[f] / copies_E[f]) / speed_R[q])
            time = max(time, second_E[f] if bin_E[f] == q else first_E[f])
            if time < best_time:
                best_e, best_p, best_time = e, p, time
    return best_e, best_p


@part
def _recount(e, p, item_P, bin_P, weight_E, copies_E, each_E, load_R, placed_ER):
    f, q = item_P[p], bin_P[p]
    for r in range(len(load_R)):
        if placed_ER[e, r]:
            load_R[r] -= each_E[e]
        if placed_ER[f, r]:
            load_R[r] -= each_E[f]
    copies_E[e] += 1
    copies_E[f] -= 1
    each_E[e], each_E[f] = weight_E[e] / copies_E[e], weight_E[f] / copies_E[f]
    placed_ER[f, q], placed_ER[e, q] = False, True
    item_P[p] = e
    for r in range(len(load_R)):
        if placed_ER[e, r]:
            load_R[r] += each_E[e]
        if placed_ER[f, r]:
            load_R[r] += each_E[f]


@part
def descend(
    item_P, bin_P, first_R, weight_E, copies_E, each_E, load_R, speed_R, placed_ER, allowed_ER, goal, steps, recounts
):
    """Swaps, and `recounts` too, out of the slowest bin until it is at `goal`, none helps or `steps` run out.

    All arrays are changed in place. Returns (time of the slowest bin, steps left).
    """
    while True:
        r = _slowest(load_R, speed_R)
        slowest = load_R[r] / speed_R[r]
        if slowest <= goal or steps <= 0:
            return slowest, steps
        steps -= 1
        a, b = _best_swap(r, item_P, first_R, load_R, speed_R, each_E, placed_ER, allowed_ER)
        if a >= 0:
            _swap(a, b, item_P, bin_P, load_R, each_E, placed_ER)
            continue
        if not recounts:
            return slowest, steps
        steps -= 4
        e, p = _best_recount(
            r, item_P, first_R, bin_P, weight_E, copies_E, load_R, speed_R, placed_ER, allowed_ER, slowest
        )
        if e < 0:
            return slowest, steps
        _recount(e, p, item_P, bin_P, weight_E, copies_E, each_E, load_R, placed_ER)


@part
def _kick(item_P, bin_P, first_R, each_E, load_R, speed_R, placed_ER, allowed_ER, swaps):
    """A few random swaps, the first out of the slowest bin."""
    R = len(load_R)
    done, r = 0, _slowest(load_R, speed_R)
    for _ in range(20 * swaps):
        q = np.random.randint(R)
        a = np.random.randint(first_R[r], first_R[r + 1])
        b = np.random.randint(first_R[q], first_R[q + 1])
        e, f = item_P[a], item_P[b]
        if q == r or placed_ER[e, q] or placed_ER[f, r] or not (allowed_ER[e, q] and allowed_ER[f, r]):
            continue
        _swap(a, b, item_P, bin_P, load_R, each_E, placed_ER)
        done += 1
        if done == swaps:
            return
        r = np.random.randint(R)


@part
def _kick_copies(item_P, bin_P, weight_E, copies_E, each_E, load_R, placed_ER, allowed_ER):
    """One slot of an item with copies to spare becomes one more copy of another, both at random."""
    for _ in range(20):
        p = np.random.randint(len(item_P))
        e, f, q = np.random.randint(len(weight_E)), item_P[p], bin_P[p]
        if copies_E[f] > 1 and not placed_ER[e, q] and allowed_ER[e, q]:
            _recount(e, p, item_P, bin_P, weight_E, copies_E, each_E, load_R, placed_ER)
            return


@part
def _keep(item_P, copies_E, each_E, load_R, placed_ER, into_P, into_copies_E, into_each_E, into_R, into_ER):
    """Copies the first five arrays into the last five; loops, which compile faster than slices."""
    for p in range(len(item_P)):
        into_P[p] = item_P[p]
    for r in range(len(load_R)):
        into_R[r] = load_R[r]
    for e in range(len(copies_E)):
        into_copies_E[e], into_each_E[e] = copies_E[e], each_E[e]
        for r in range(len(load_R)):
            into_ER[e, r] = placed_ER[e, r]


@kept
@njit
def improve(item_P, bin_P, first_R, weight_E, speed_R, allowed_ER, goal, steps, seed):
    """`item_P` improved in place by descent from repeated kicks; returns the time of its slowest bin."""
    np.random.seed(seed)
    E, R = len(weight_E), len(speed_R)
    copies_E, placed_ER, load_R = np.zeros(E, np.int64), np.zeros((E, R), np.bool_), np.zeros(R)
    for p in range(len(item_P)):
        copies_E[item_P[p]] += 1
        placed_ER[item_P[p], bin_P[p]] = True
    each_E = weight_E / copies_E
    for p in range(len(item_P)):
        load_R[bin_P[p]] += each_E[item_P[p]]
    recounts = np.bool_(True)  # no literal, for which numba would compile `descend` once more
    best, steps = descend(
        item_P, bin_P, first_R, weight_E, copies_E, each_E, load_R, speed_R, placed_ER, allowed_ER, goal, steps,
        recounts,
    )  # fmt: skip
    kept_P, kept_copies_E, kept_each_E = item_P.copy(), copies_E.copy(), each_E.copy()
    kept_R, kept_ER = load_R.copy(), placed_ER.copy()
    while best > goal and steps > 0:
        recounts = np.random.randint(4) == 0
        if recounts:
            _kick_copies(item_P, bin_P, weight_E, copies_E, each_E, load_R, placed_ER, allowed_ER)
        else:
            _kick(item_P, bin_P, first_R, each_E, load_R, speed_R, placed_ER, allowed_ER, 1 + np.random.randint(3))
        time, steps = descend(
            item_P,
            bin_P,
            first_R,
            weight_E,
            copies_E,
            each_E,
            load_R,
            speed_R,
            placed_ER,
            allowed_ER,
            goal,
            steps - 1,
            recounts,
        )
        if time <= best:
            best = time
            _keep(item_P, copies_E, each_E, load_R, placed_ER, kept_P, kept_copies_E, kept_each_E, kept_R, kept_ER)
        else:
            _keep(kept_P, kept_copies_E, kept_each_E, kept_R, kept_ER, item_P, copies_E, each_E, load_R, placed_ER)
    for p in range(len(item_P)):
        item_P[p] = kept_P[p]
    return best


@kept
@njit
def slots_bound(weight_E, num_slots, top_speed, low):
    """A time, at least `low`, below which the items would need more slots than there are; by bisection."""
    high = max(weight_E.max() / top_speed, low)
    if _slots_needed(weight_E, low * top_speed) <= num_slots:
        return low
    for _ in range(60):
        middle = 0.5 * (low + high)
        if _slots_needed(weight_E, middle * top_speed) <= num_slots:
            high = middle
        else:
            low = middle
    return low


@part
def _slots_needed(weight_E, most):
    needed = 0
    for weight in weight_E:
        needed += max(1, int(np.ceil(weight / most - 1e-9)))
    return needed


@kept
@njit
def width_bound(heaviest, slots_R, speed_R, low):
    """A time, at least `low`, below which bins with few slots cannot carry all weight; by bisection.

    `heaviest` are the sums of the 1, 2, ... heaviest weights.
    """
    total = heaviest[-1] * (1.0 - 1e-12)
    if _carried(heaviest, slots_R, speed_R, low) >= total:
        return low
    high = low
    for r in range(len(slots_R)):
        high = max(high, heaviest[slots_R[r] - 1] / speed_R[r])
    for _ in range(60):
        middle = 0.5 * (low + high)
        if _carried(heaviest, slots_R, speed_R, middle) >= total:
            high = middle
        else:
            low = middle
    return low


@part
def _carried(heaviest, slots_R, speed_R, time):
    carried = 0.0
    for r in range(len(slots_R)):
        carried += min(time * speed_R[r], heaviest[slots_R[r] - 1])
    return carried

"""Simulated annealing of items drawn in sets: swaps and changes of copies, by groups touched and slowest bin.

A bin's relative time is taken to be normal; the sum over bins of exp(L x mean + L^2 x variance / 2) bounds the slowest
one that is to be expected from above: E[max] <= log(sum) / L for every L > 0 (Chernoff). Groups touched are counted
anew for the sets that a change concerns. Shape suffixes: N drawn set, K item of a set, E item, G group, R bin, P slot,
I entry of the lists of sets by item.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from planner.arrays import Bools, Floats, Ints
from planner.solvers.compilation.kept import kept
from planner.solvers.compilation.parts import part


class AffinityState(NamedTuple):
    """A layout and what follows from it; all arrays but the first eight change with it, in place.

    `mask_E` has a bit for every group that holds the item; `cross_RE` is the covariance of a bin's relative time with
    an item's weight, in relative units of that bin.
    """

    bin_P: Ints
    group_R: Ints
    scale_R: Floats  # relative time of one unit of weight
    weight_E: Floats
    covariance_EE: Floats
    sets_NK: Ints
    first_E: Ints  # of an item's entries in `set_I`
    set_I: Ints
    item_P: Ints
    copies_E: Ints
    placed_ER: Bools
    count_EG: Ints
    mask_E: Ints
    mean_R: Floats
    variance_R: Floats
    cross_RE: Floats
    term_R: Floats


@part
def _term(mean, variance, lam):
    return np.exp(min(lam * (mean - 1.0) + 0.5 * lam * lam * variance, 600.0))


@kept
@njit
def fill(s):
    """What follows from `item_P`, but the terms; the arrays come zeroed."""
    for p in range(len(s.item_P)):
        e, r = s.item_P[p], s.bin_P[p]
        s.copies_E[e] += 1
        s.placed_ER[e, r] = True
        s.count_EG[e, s.group_R[r]] += 1
    for e in range(len(s.weight_E)):
        s.mask_E[e] = _mask(e, s.count_EG)
    for p in range(len(s.item_P)):
        e, r = s.item_P[p], s.bin_P[p]
        share = 1.0 / s.copies_E[e]
        s.mean_R[r] += share * s.weight_E[e] * s.scale_R[r]
        for f in range(len(s.weight_E)):
            s.cross_RE[r, f] += share * s.covariance_EE[e, f] * s.scale_R[r] ** 2
    for p in range(len(s.item_P)):
        s.variance_R[s.bin_P[p]] += s.cross_RE[s.bin_P[p], s.item_P[p]] / s.copies_E[s.item_P[p]]


@part
def _mask(e, count_EG):
    mask = 0
    for g in range(count_EG.shape[1]):
        if count_EG[e, g] > 0:
            mask |= 1 << g
    return mask


@part
def _ones(mask):
    count = 0
    while mask:
        mask &= mask - 1
        count += 1
    return count


@part
def _touched(n, sets_NK, mask_E):
    """Groups that set `n` needs: those of items with one group alone, then greedily the group that holds most."""
    forced, K = 0, sets_NK.shape[1]
    for k in range(K):
        mask = mask_E[sets_NK[n, k]]
        if mask & (mask - 1) == 0:
            forced |= mask
    left, somewhere = 0, 0
    for k in range(K):
        mask = mask_E[sets_NK[n, k]]
        if mask & forced == 0:
            left |= 1 << k
            somewhere |= mask
    count = _ones(forced)
    while left:
        best, most, g = 0, 0, 0
        while somewhere >> g:
            covered = 0
            for k in range(K):
                if (left >> k) & 1 and (mask_E[sets_NK[n, k]] >> g) & 1:
                    covered |= 1 << k
            if _ones(covered) > most:
                best, most = covered, _ones(covered)
            g += 1
        left &= ~best
        count += 1
    return count


@part
def _touched_by_two(s, e, f):
    """Groups touched by the sets that hold `e` or `f`."""
    count = 0
    for i in range(s.first_E[e], s.first_E[e + 1]):
        count += _touched(s.set_I[i], s.sets_NK, s.mask_E)
    for i in range(s.first_E[f], s.first_E[f + 1]):
        n, both = s.set_I[i], False
        for k in range(s.sets_NK.shape[1]):
            both = both or s.sets_NK[n, k] == e
        if not both:
            count += _touched(n, s.sets_NK, s.mask_E)
    return count


@part
def _recast(s, e, f, limit):
    """Masks of two items from their counts; put back, and False, where more than `limit` groups a set come of it."""
    old_e, old_f = s.mask_E[e], s.mask_E[f]
    new_e, new_f = _mask(e, s.count_EG), _mask(f, s.count_EG)
    if old_e == new_e and old_f == new_f:
        return limit >= 0.0
    before = _touched_by_two(s, e, f)
    s.mask_E[e], s.mask_E[f] = new_e, new_f
    if _touched_by_two(s, e, f) - before <= limit * len(s.sets_NK):
        return True
    s.mask_E[e], s.mask_E[f] = old_e, old_f
    return False


@part
def _shifted(s, r, e, more_e, f, more_f, lam):
    """(mean, variance, term) of bin `r` when its shares of `e` and `f` change by so much."""
    c, scale = s.covariance_EE, s.scale_R[r]
    own = more_e * more_e * c[e, e] + more_f * more_f * c[f, f] + 2.0 * more_e * more_f * c[e, f]
    mean = s.mean_R[r] + (more_e * s.weight_E[e] + more_f * s.weight_E[f]) * scale
    variance = s.variance_R[r] + 2.0 * (more_e * s.cross_RE[r, e] + more_f * s.cross_RE[r, f]) + own * scale * scale
    return mean, variance, _term(mean, variance, lam)


@part
def _shift(s, r, e, more_e, f, more_f, lam):
    """Changes the shares of `e` and `f` in bin `r`."""
    s.mean_R[r], s.variance_R[r], s.term_R[r] = _shifted(s, r, e, more_e, f, more_f, lam)
    scale = s.scale_R[r] ** 2
    for k in range(len(s.weight_E)):
        s.cross_RE[r, k] += (more_e * s.covariance_EE[e, k] + more_f * s.covariance_EE[f, k]) * scale


@part
def _count(s, e, r, more):
    s.placed_ER[e, r] = more > 0
    s.count_EG[e, s.group_R[r]] += more


@part
def _try_swap(s, a, b, lam, price, limit, most_saved):
    """Exchanges the items of two slots when the price of imbalance and groups together rise by no more than `limit`."""
    r, q, e, f = s.bin_P[a], s.bin_P[b], s.item_P[a], s.item_P[b]
    if r == q or s.placed_ER[e, q] or s.placed_ER[f, r]:
        return
    share_e, share_f = 1.0 / s.copies_E[e], 1.0 / s.copies_E[f]
    term_r = _shifted(s, r, e, -share_e, f, share_f, lam)[2]
    term_q = _shifted(s, q, e, share_e, f, -share_f, lam)[2]
    total = s.term_R.sum()
    dearer = price * np.log((total + term_r + term_q - s.term_R[r] - s.term_R[q]) / total) / lam
    if dearer > limit + most_saved:
        return
    _count(s, e, r, -1)
    _count(s, e, q, 1)
    _count(s, f, q, -1)
    _count(s, f, r, 1)
    if not _recast(s, e, f, limit - dearer):
        _count(s, e, q, -1)
        _count(s, e, r, 1)
        _count(s, f, r, -1)
        _count(s, f, q, 1)
        return
    _shift(s, r, e, -share_e, f, share_f, lam)
    _shift(s, q, e, share_e, f, -share_f, lam)
    s.item_P[a], s.item_P[b] = f, e


@part
def _changes(s, r, e, f, q):
    """(change of bin `q`'s share of `e`, and of `f`) when bin `r` gives up its copy of `e` for one more of `f`."""
    fewer, more = 1.0 / (s.copies_E[e] - 1), 1.0 / (s.copies_E[f] + 1)
    if q == r:
        return -1.0 / s.copies_E[e], more
    change_e = fewer - 1.0 / s.copies_E[e] if s.placed_ER[e, q] else 0.0
    change_f = more - 1.0 / s.copies_E[f] if s.placed_ER[f, q] else 0.0
    return change_e, change_f


@part
def _try_recount(s, a, f, lam, price, limit, most_saved):
    """One slot of an item with copies to spare becomes one more copy of `f`, on the same terms."""
    e, r = s.item_P[a], s.bin_P[a]
    if s.copies_E[e] < 2 or s.placed_ER[f, r]:
        return
    total, after = s.term_R.sum(), 0.0
    for q in range(len(s.term_R)):
        change_e, change_f = _changes(s, r, e, f, q)
        same = change_e == 0.0 and change_f == 0.0
        after += s.term_R[q] if same else _shifted(s, q, e, change_e, f, change_f, lam)[2]
    dearer = price * np.log(after / total) / lam
    if dearer > limit + most_saved:
        return
    _count(s, e, r, -1)
    _count(s, f, r, 1)
    if not _recast(s, e, f, limit - dearer):
        _count(s, f, r, -1)
        _count(s, e, r, 1)
        return
    s.placed_ER[e, r], s.placed_ER[f, r] = True, False
    for q in range(len(s.term_R)):
        change_e, change_f = _changes(s, r, e, f, q)
        if change_e != 0.0 or change_f != 0.0:
            _shift(s, q, e, change_e, f, change_f, lam)
    s.placed_ER[e, r], s.placed_ER[f, r] = False, True
    s.copies_E[e] -= 1
    s.copies_E[f] += 1
    s.item_P[a] = f


@kept
@njit
def anneal(s, lam, price, steps, hot, cold, most_saved, inside, seed):
    """`s` changed in place by `steps` trials, one in five a change of copies, at falling temperatures.

    Temperatures and `price` are in groups touched by a set; `most_saved` is what one change may save of them, used to
    skip trials early. `inside` leaves items in their groups, and changes no copies.
    """
    np.random.seed(seed)
    P, E = len(s.item_P), len(s.weight_E)
    for r in range(len(s.mean_R)):
        s.term_R[r] = _term(s.mean_R[r], s.variance_R[r], lam)
    for step in range(steps):
        limit = -hot * (cold / hot) ** (step / steps) * np.log(1.0 - np.random.random())
        a = np.random.randint(P)
        if inside:
            b = np.random.randint(P)
            if s.group_R[s.bin_P[a]] == s.group_R[s.bin_P[b]]:
                _try_swap(s, a, b, lam, price, limit, most_saved)
        elif np.random.random() < 0.2:
            _try_recount(s, a, np.random.randint(E), lam, price, limit, most_saved)
        else:
            _try_swap(s, a, np.random.randint(P), lam, price, limit, most_saved)

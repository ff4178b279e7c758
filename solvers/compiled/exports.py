"""Transportation with relays (numba): shares of items sent from home bins to free slots of others, at every step.

Every item has a home bin that always holds it. A bin slower than T hands its excess to bins with slack, each piece
being (part of) one item in one free slot. T is found by bisection; for each T a greedy transport decides.
Suffixes: E item, R bin, J free slot of a bin.
"""

import numpy as np
from numba import njit

from planner.solvers.compilation.kept import kept
from planner.solvers.compilation.parts import owning_part, part
from planner.solvers.compiled.copies import copy_row


@part
def _heaviest(first, last, left_E):
    best = first
    for e in range(first, last):
        if left_E[e] > left_E[best]:
            best = e
    return best


@part
def _piece(first, last, left_E, wanted):
    """The lightest item of [first, last) that has `wanted` left, else the heaviest."""
    best, best_left = -1, np.inf
    for e in range(first, last):
        if wanted <= left_E[e] < best_left:
            best, best_left = e, left_E[e]
    return best if best >= 0 else _heaviest(first, last, left_E)


@part
def _hand_over(i, j, wanted, least, first_R, left_E, excess_R, used_R, item_RJ, amount_RJ):
    """Up to `wanted` of one item of bin `i` into a free slot of bin `j`, `least` at least; returns how much."""
    e = _piece(first_R[i], first_R[i + 1], left_E, wanted)
    given = min(wanted, left_E[e])
    if given < least:
        return 0.0
    left_E[e] -= given
    excess_R[i] = max(0.0, excess_R[i] - given)
    item_RJ[j, used_R[j]], amount_RJ[j, used_R[j]] = e, given
    used_R[j] += 1
    return given


@part
def _next_giver(excess_R, chain, count, tiny):
    """The bin with most excess outside the first `count` of `chain`; -1 where none has any."""
    best = -1
    for r in range(len(excess_R)):
        if excess_R[r] > tiny and (best < 0 or excess_R[r] > excess_R[best]):
            outside = True
            for k in range(count):
                if chain[k] == r:
                    outside = False
            if outside:
                best = r
    return best


@part
def _relay(i, wanted, least, relays, slots_R, tiny, first_R, left_E, excess_R, used_R, item_RJ, amount_RJ, chain):
    """Gathers excess of other bins on bin `i`, in its own free slots, until it has `wanted` to hand over.

    A giver that has too little gathers first, in a free slot of its own, and so on: excess comes along a chain of bins,
    `relays` behind the first at most.
    """
    while excess_R[i] < wanted - tiny and used_R[i] < slots_R[i]:
        chain[0], count, total = i, 1, excess_R[i]
        while total < wanted - tiny and count <= relays and used_R[chain[count - 1]] < slots_R[chain[count - 1]]:
            giver = _next_giver(excess_R, chain, count, tiny)
            if giver < 0:
                break
            chain[count] = giver
            count += 1
            total += excess_R[giver]
        if count == 1:
            return
        for k in range(count - 1, 0, -1):
            ahead = 0.0
            for earlier in range(k):
                ahead += excess_R[chain[earlier]]
            giver, taker = chain[k], chain[k - 1]
            given = _hand_over(
                giver, taker, max(least, min(excess_R[giver], wanted - ahead)), least, first_R, left_E, excess_R,
                used_R, item_RJ, amount_RJ,
            )  # fmt: skip
            if given <= tiny:
                return
            excess_R[taker] += given


@part
def transport(
    T, relays, least, weight_E, first_R, load_R, speed_R, slots_R, left_E, excess_R, slack_R, used_R, item_RJ,
    amount_RJ, chain,
):  # fmt: skip
    """Whether every bin can be brought to time `T` greedily; fills the last six arrays.

    The largest excess meets the largest slack, and no piece is smaller than `least`: a bin that is over by less hands
    over that much. Where a bin's last free slot would be left half full, the bin that fills it first takes over excess
    of others, along chains of `relays` bins at most. O(R^2 + pieces x (R + items of a bin)).
    """
    R = len(load_R)
    copy_row(weight_E, left_E)
    item_RJ[:] = -1
    amount_RJ[:] = 0.0
    used_R[:] = 0
    for r in range(R):
        over = load_R[r] - T * speed_R[r]
        excess_R[r], slack_R[r] = max(over, 0.0), max(-over, 0.0) if slots_R[r] > 0 else 0.0
    tiny = 1e-9 * T
    while True:
        i = np.argmax(excess_R)
        if excess_R[i] <= tiny:
            return True
        j = np.argmax(slack_R)
        if slack_R[j] <= tiny or slack_R[j] < least:
            return False
        if relays > 0 and used_R[j] == slots_R[j] - 1 and excess_R[i] < slack_R[j]:
            _relay(
                i, slack_R[j], least, relays, slots_R, tiny, first_R, left_E, excess_R, used_R, item_RJ, amount_RJ,
                chain,
            )  # fmt: skip
        wanted = max(least, min(excess_R[i], slack_R[j]))
        given = _hand_over(i, j, wanted, least, first_R, left_E, excess_R, used_R, item_RJ, amount_RJ)
        if given <= tiny:
            return False
        slack_R[j] = slack_R[j] - given if used_R[j] < slots_R[j] else 0.0


@owning_part
def export(weight_E, first_R, speed_R, slots_R, least, relays, goal, rounds, item_RJ, amount_RJ):
    """The least time to which bisection brings all bins; the pieces handed over are left in the last two arrays.

    No piece is smaller than `least`, no chain longer than `relays`. The first of three tries to end at `goal` is
    without relays, which cost pieces.
    """
    R, E = len(speed_R), len(weight_E)
    load_R = np.zeros(R)
    for r in range(R):
        for e in range(first_R[r], first_R[r + 1]):
            load_R[r] += weight_E[e]
    left_E, excess_R, slack_R, used_R = np.empty(E), np.empty(R), np.empty(R), np.empty(R, np.int64)
    chain = np.empty(R, np.int64)
    low = max(load_R.sum() / speed_R.sum(), goal)
    high = np.max(load_R / speed_R)
    if high <= low:
        item_RJ[:] = -1
        amount_RJ[:] = 0.0
        return high
    best, T = high, low
    used = reached = np.int64(0)  # relays tried, and those of the best time; a literal would compile `transport` again
    for step in range(rounds):
        if transport(
            T, used, least, weight_E, first_R, load_R, speed_R, slots_R, left_E, excess_R, slack_R, used_R, item_RJ,
            amount_RJ, chain,
        ):  # fmt: skip
            reached = used
            best = high = T
            if low == T or high - low < 1e-7 * low:
                return best
        elif used < relays:
            used = relays
            continue
        else:
            low = T
        T = low + (high - low) * (0.0625 if step < 4 else 0.5)
    if best != T:
        transport(
            best, reached, least, weight_E, first_R, load_R, speed_R, slots_R, left_E, excess_R, slack_R, used_R,
            item_RJ, amount_RJ, chain,
        )  # fmt: skip
    return best


@kept
@njit
def lay_out(
    weight_E, first_R, speed_R, slots_R, first_slot_R, first_G, least, relays, tolerance, rounds, item_RJ, amount_RJ,
    item_P, share_P,
):  # fmt: skip
    """`export_in_groups` written as the item and share of every slot: homes, then free slots, -1 where one is empty.

    Returns the time of the slowest bin by the mean time; items without weight keep all of it at home.
    """
    ratio = export_in_groups(
        weight_E, first_R, speed_R, slots_R, first_G, least, relays, tolerance, rounds, item_RJ, amount_RJ
    )  # fmt: skip
    R = len(speed_R)
    for r in range(R):
        slot = first_slot_R[r]
        for e in range(first_R[r], first_R[r + 1]):
            item_P[slot], share_P[slot] = e, 1.0
            slot += 1
        while slot < first_slot_R[r + 1]:
            item_P[slot], share_P[slot] = -1, 0.0
            slot += 1
    home = 0
    for r in range(R):
        for j in range(slots_R[r]):
            e = item_RJ[r, j]
            if e < 0:
                continue
            share = amount_RJ[r, j] / weight_E[e]
            slot = first_slot_R[r] + first_R[r + 1] - first_R[r] + j
            item_P[slot], share_P[slot] = e, share
            home = np.searchsorted(first_R, e, side="right") - 1
            share_P[first_slot_R[home] + e - first_R[home]] -= share
    return ratio


@kept
@njit
def lay_out_all(
    weight_NE, first_R, speed_R, slots_R, first_slot_R, first_G, least, relays, tolerance, rounds, item_NP, share_NP,
    ratio_N,
):  # fmt: skip
    """`lay_out` for every row of `weight_NE`; fills the last three arrays."""
    R, width = len(speed_R), max(1, slots_R.max())
    item_RJ, amount_RJ = np.full((R, width), -1, np.int64), np.zeros((R, width))
    for n in range(len(weight_NE)):
        ratio_N[n] = lay_out(
            weight_NE[n], first_R, speed_R, slots_R, first_slot_R, first_G, least, relays, tolerance, rounds, item_RJ,
            amount_RJ, item_NP[n], share_NP[n],
        )  # fmt: skip


@kept
@njit
def export_in_groups(
    weight_E, first_R, speed_R, slots_R, first_G, least, relays, tolerance, rounds, item_RJ, amount_RJ
):  # fmt: skip
    """`export` inside each group of bins [first_G[g], first_G[g + 1]) alone; the last two arrays as there.

    Groups end `tolerance` above the slowest group's mean time, which no piece can lower. Returns the time of the
    slowest bin by the mean time of all bins.
    """
    slowest_mean, slowest = 0.0, 0.0
    for g in range(len(first_G) - 1):
        low, high = first_G[g], first_G[g + 1]
        mean = weight_E[first_R[low] : first_R[high]].sum() / speed_R[low:high].sum()
        slowest_mean = max(slowest_mean, mean)
    goal = slowest_mean * (1.0 + tolerance)
    for g in range(len(first_G) - 1):
        low, high = first_G[g], first_G[g + 1]
        start = first_R[low]
        time = export(
            weight_E[start : first_R[high]], first_R[low : high + 1] - start, speed_R[low:high], slots_R[low:high],
            least, relays, goal, rounds, item_RJ[low:high], amount_RJ[low:high],
        )  # fmt: skip
        slowest = max(slowest, time)
        for r in range(low, high):
            for j in range(slots_R[r]):
                if item_RJ[r, j] >= 0:
                    item_RJ[r, j] += start
    return slowest / (weight_E.sum() / speed_R.sum())


@kept
@njit
def export_rows(
    weight_NE, first_R, speed_R, slots_R, first_G, least, relays, tolerance, rounds, item_NRJ, amount_NRJ, ratio_N
):  # fmt: skip
    """`export_in_groups` for every row; fills the last three arrays."""
    for n in range(len(weight_NE)):
        ratio_N[n] = export_in_groups(
            weight_NE[n], first_R, speed_R, slots_R, first_G, least, relays, tolerance, rounds, item_NRJ[n],
            amount_NRJ[n],
        )  # fmt: skip

"""Ranges of queries that leave busy servers (numba): the cheapest place of a range, greedy fills, and repairs.

Arrays: load_S operations by server, doc_D3 rows (server, tokens, unused), taken ranges by document [D, W, 2] sorted.
"""

import numpy as np
from numba import njit

from planner.solvers.compilation.kept import kept
from planner.solvers.compilation.parts import inlined_part, part
from planner.solvers.compiled.copies import copy_row, copy_rows


@part
def ops(first, last):
    """Operations of queries [first, last): each query q attends to q + 1 tokens."""
    return last * (last + 1) // 2 - first * (first + 1) // 2


@part
def first_of(last, wanted, block, low, over):
    """The first query, on a block and not below `low`, from which [first, last) has `wanted` operations.

    over: at least so many, else at most so many; -1 where that cannot be.
    """
    inside = float(last) * (last + 1) - 2.0 * wanted
    guess = int((np.sqrt(max(inside, 0.0) * 4.0 + 1.0) - 1.0) / 2.0) // block * block
    first = max(guess, 0)
    while first > 0 and ops(first, last) < wanted:
        first -= block
    while first + block < last and ops(first + block, last) >= wanted:
        first += block
    first = max(first, 0)
    if not over and ops(first, last) > wanted:
        first += block
    if first < low:
        if over:
            return -1
        first = (low + block - 1) // block * block
    return first if first < last else -1


@part
def cheapest(tokens, ranges_W2, count, wanted, most, block, query, kv):
    """(bytes, first, last, operations) of the cheapest range of a document beside those taken.

    It has `wanted` operations or a little more, never above `most`; where no gap has so many, all of the largest gap.
    """
    best = (np.inf, 0, 0, 0)
    width = np.sqrt(kv * wanted / (query + kv / 2.0))
    ideal = wanted / width + (width - 1.0) / 2.0
    for gap in range(count + 1):
        low = ranges_W2[gap - 1, 1] if gap > 0 else 0
        high = ranges_W2[gap, 0] if gap < count else tokens
        if high <= low:
            continue
        room = ops(low, high)
        if room <= wanted:
            if room <= most and room > 0:
                bytes_ = query * (high - low) + kv * high
                if room > best[3] and best[3] < wanted:
                    best = (bytes_, low, high, room)
            continue
        base = int(ideal) // block * block
        lasts = (base, base + block, high, int(np.sqrt(2.0 * wanted + float(low) * (low + 1))) // block * block + block)
        for last in lasts:
            last = min(max(last, low + 1), high)
            if last != tokens and last % block:
                last = last // block * block
            if last <= low:
                continue
            first = first_of(last, wanted, block, low, True)
            if first < 0 or ops(first, last) > most:
                first = first_of(last, min(wanted, most), block, low, False)
                if first < 0:
                    continue
            moved = ops(first, last)
            if moved <= 0 or moved > most or moved < 0.9 * min(wanted, most):
                continue
            bytes_ = query * (last - first) + kv * last
            if best[3] < 0.9 * wanted or bytes_ < best[0]:
                best = (bytes_, first, last, moved)
    return best


@part
def insert(ranges_W2, count, first, last):
    """Puts a range among the sorted ones."""
    at = count
    while at > 0 and ranges_W2[at - 1, 0] > first:
        copy_row(ranges_W2[at - 1], ranges_W2[at])
        at -= 1
    ranges_W2[at, 0] = first
    ranges_W2[at, 1] = last


@part
def remove(ranges_W2, count, first):
    """Takes a range out of the sorted ones."""
    at = 0
    while ranges_W2[at, 0] != first:
        at += 1
    for k in range(at, count - 1):
        copy_row(ranges_W2[k + 1], ranges_W2[k])


@part
def fill(load_S, capacity, doc_D2, start_S, end_S, ranges_DW2, count_D, shards_N4, number, settings, power, noise):
    """Moves ranges until no server is above capacity; the number of shards, -1 where it cannot.

    Of all pairs of a busy server and one with room, the range with least bytes over a power of its operations.
    settings: block, query bytes, kv bytes, documents of a server that are looked at.
    """
    block, query, kv, looked = settings
    S = len(load_S)
    while True:
        best, best_i, best_j, best_d = np.inf, -1, -1, -1
        best_first, best_last, best_ops = 0, 0, 0
        busy = False
        for i in range(S):
            over = load_S[i] - capacity
            if over <= 0:
                continue
            busy = True
            for j in range(S):
                room = capacity - load_S[j]
                if room <= 0:
                    continue
                wanted = min(over, room)
                for d in range(start_S[i], min(end_S[i], start_S[i] + looked)):
                    if count_D[d] >= ranges_DW2.shape[1] - 1:
                        continue
                    tokens = doc_D2[d, 1]
                    if ops(0, tokens) < 0.02 * wanted and d > start_S[i]:
                        break
                    bytes_, first, last, moved = cheapest(
                        tokens, ranges_DW2[d], count_D[d], wanted, room, block, query, kv
                    )
                    if moved <= 0:
                        continue
                    score = bytes_ / float(min(moved, over)) ** power * (1.0 + noise * np.random.random())
                    if score < best:
                        best, best_i, best_j, best_d = score, i, j, d
                        best_first, best_last, best_ops = first, last, moved
        if not busy:
            return number
        if best_i < 0 or number >= len(shards_N4):
            return -1
        insert(ranges_DW2[best_d], count_D[best_d], best_first, best_last)
        count_D[best_d] += 1
        load_S[best_i] -= best_ops
        load_S[best_j] += best_ops
        shards_N4[number, 0] = best_d
        shards_N4[number, 1] = best_first
        shards_N4[number, 2] = best_last
        shards_N4[number, 3] = best_j
        number += 1


@part
def total_bytes(shards_N4, number, query, kv):
    """Bytes of all shards; keys and values of a document go to a server once, as far as its last range there."""
    total = 0
    for n in range(number):
        total += query * (shards_N4[n, 2] - shards_N4[n, 1])
        longest = True
        for k in range(number):
            if shards_N4[k, 0] == shards_N4[n, 0] and shards_N4[k, 3] == shards_N4[n, 3]:
                if shards_N4[k, 2] > shards_N4[n, 2] or (shards_N4[k, 2] == shards_N4[n, 2] and k < n):
                    longest = False
        if longest:
            total += kv * shards_N4[n, 2]
    return total


@inlined_part
def take_back(load_S, doc_D2, ranges_DW2, count_D, shards_N4, kept_N4, number):
    """Takes ranges back that servers sent away, and writes the others to `kept_N4`; returns how many those are.

    All of one server or of two, of two receivers, or four of ten.
    """
    kept = 0
    first, second = shards_N4[np.random.randint(number)], shards_N4[np.random.randint(number)]
    kind = np.random.randint(4)
    for n in range(number):
        d, begin, end, receiver = shards_N4[n]
        sender = doc_D2[d, 0]
        if kind == 0:
            out = sender == doc_D2[first[0], 0]
        elif kind == 1:
            out = sender == doc_D2[first[0], 0] or sender == doc_D2[second[0], 0]
        elif kind == 2:
            out = receiver == first[3] or receiver == second[3]
        else:
            out = np.random.random() < 0.4
        if out:
            remove(ranges_DW2[d], count_D[d], begin)
            count_D[d] -= 1
            load_S[sender] += ops(begin, end)
            load_S[receiver] -= ops(begin, end)
        else:
            copy_row(shards_N4[n], kept_N4[kept])
            kept += 1
    return kept


@kept
@njit
def search(load_S, capacity, doc_D2, start_S, end_S, settings, rounds, work, seed, best_N4):
    """(bytes, shards) of the best of many fills, each repaired again and again; infinite where none was complete.

    A repair takes all ranges of one or two servers back, or those of one receiver, and fills anew. rounds: fills;
    work: repairs of each.
    """
    np.random.seed(seed)
    _block, query, kv, _looked = settings
    _S, D, W = len(load_S), len(doc_D2), 24
    N, none = len(best_N4), np.int64(0)  # a literal would compile `fill` once more
    best, best_number = np.inf, 0
    for turn in range(rounds):
        own_S = load_S.copy()
        ranges, count_D = np.zeros((D, W, 2), np.int64), np.zeros(D, np.int64)
        shards = np.zeros((N, 4), np.int64)
        power = 0.5 + 0.5 * np.random.random() if turn else 1.0
        noise = 0.3 * np.random.random() if turn else 0.0
        number = fill(own_S, capacity, doc_D2, start_S, end_S, ranges, count_D, shards, none, settings, power, noise)
        if number < 0:
            continue
        now = total_bytes(shards, number, query, kv)
        if now < best:
            best, best_number = now, number
            copy_rows(shards, best_N4)
        if number == 0:
            return best, best_number
        for step in range(work):
            trial_S, trial_ranges, trial_count = own_S.copy(), ranges.copy(), count_D.copy()
            trial = shards.copy()
            kept = take_back(trial_S, doc_D2, trial_ranges, trial_count, shards, trial, number)
            power = 0.4 + 0.6 * np.random.random()
            done = fill(
                trial_S,
                capacity,
                doc_D2,
                start_S,
                end_S,
                trial_ranges,
                trial_count,
                trial,
                kept,
                settings,
                power,
                0.4 * np.random.random(),
            )
            if done < 0:
                continue
            bytes_ = total_bytes(trial, done, query, kv)
            if bytes_ <= now * (1.0 + 0.002 * (1.0 - step / work)):
                own_S, ranges, count_D, shards, number, now = trial_S, trial_ranges, trial_count, trial, done, bytes_
                if now < best:
                    best, best_number = now, number
                    copy_rows(shards, best_N4)
    return best, best_number

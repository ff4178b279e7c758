"""Flow-shop heuristics (numba): dispatching, replay of sequences, annealing along the critical path.

A task type is one pass (forward or backward) of one stage; its k-th task is the k-th job of its pipeline, since equal
jobs may be taken in order. Shape suffixes: T task type, M machine, P position in a machine's sequence, O task (types
one after the other, jobs within).
"""

import numpy as np
from numba import njit

from planner.solvers.compilation.kept import kept
from planner.solvers.compilation.parts import part
from planner.solvers.compiled.copies import copy_rows, move_item

NONE = -1
TOLERANCE = 1e-9
FIRSTS = 3  # distinct types of a critical block that may move to either end of it


@kept
@njit
def dispatch(shop, weight_T, in_flight_T, noise, seed):
    """Sequences [M, P] of a machine that never waits: the ready type of most weight goes first; and whether all ran.

    A forward type starts while fewer than `in_flight_T` jobs lie between it and its backward type, and while it fits.
    """
    machine_T, duration_T, count_T, before_T, partner_T, resident_T, capacity_M, width = shop
    np.random.seed(seed)
    T, M = len(machine_T), len(capacity_M)
    started_T, ended_TJ = np.zeros(T, np.int64), np.full((T, count_T.max()), np.inf)
    free_M, resident_M, length_M = np.zeros(M), np.zeros(M), np.zeros(M, np.int64)
    sequence_MP = np.full((M, width), NONE, np.int64)
    now, left = 0.0, count_T.sum()
    while left > 0:
        for m in range(M):
            if free_M[m] > now:
                continue
            best, best_weight = NONE, -np.inf
            for t in range(T):
                k = started_T[t]
                if machine_T[t] != m or k >= count_T[t]:
                    continue
                if before_T[t] >= 0 and ended_TJ[before_T[t], k] > now + TOLERANCE:
                    continue
                if resident_T[t] > 0.0 and resident_M[m] + resident_T[t] > capacity_M[m] + TOLERANCE:
                    continue
                if partner_T[t] > t and k - started_T[partner_T[t]] >= in_flight_T[t]:
                    continue
                weight = weight_T[t] + noise * np.random.random()
                if weight > best_weight:
                    best, best_weight = t, weight
            if best >= 0:
                free_M[m] = now + duration_T[best]
                ended_TJ[best, started_T[best]] = free_M[m]
                started_T[best] += 1
                resident_M[m] += resident_T[best]
                sequence_MP[m, length_M[m]] = best
                length_M[m] += 1
                left -= 1
        later = np.inf
        for m in range(M):
            if now < free_M[m] < later:
                later = free_M[m]
        if later == np.inf:
            break
        now = later
    return sequence_MP, left == 0


@kept
@njit
def replay(shop, sequence_MP, length_M, first_T, start_O, job_MP):
    """The makespan of the sequences, every task as early as it can; infinite where they wait for each other.

    Fills the start of every task and the job of every position. O(tasks).
    """
    machine_T, duration_T, _, before_T, _, _, _, _ = shop
    T, M = len(machine_T), len(length_M)
    next_M, free_M, done_T = np.zeros(M, np.int64), np.zeros(M), np.zeros(T, np.int64)
    after_T = np.full(T, NONE, np.int64)
    for t in range(T):
        if before_T[t] >= 0:
            after_T[before_T[t]] = t
    waiting_M, queued_M, waiting = np.arange(M), np.ones(M, np.bool_), M
    left = length_M.sum()
    while waiting > 0:
        waiting -= 1
        m = waiting_M[waiting]
        queued_M[m] = False
        while next_M[m] < length_M[m]:
            t = sequence_MP[m, next_M[m]]
            k, start = done_T[t], free_M[m]
            if before_T[t] >= 0:
                if done_T[before_T[t]] <= k:
                    break
                start = max(start, start_O[first_T[before_T[t]] + k] + duration_T[before_T[t]])
            start_O[first_T[t] + k] = start
            free_M[m] = start + duration_T[t]
            done_T[t] = k + 1
            job_MP[m, next_M[m]] = k
            next_M[m] += 1
            left -= 1
            if after_T[t] >= 0:
                other = machine_T[after_T[t]]
                if other != m and not queued_M[other]:
                    queued_M[other] = True
                    waiting_M[waiting] = other
                    waiting += 1
    return free_M.max() if left == 0 else np.inf


@part
def _fits(shop, sequence_P, length, machine, count_T):
    """Whether a machine's sequence keeps its capacity, and each backward pass comes after its forward pass."""
    _, _, _, _, partner_T, resident_T, capacity_M, _ = shop
    resident = 0.0
    count_T[:] = 0
    for p in range(length):
        t = sequence_P[p]
        resident += resident_T[t]
        count_T[t] += 1
        if resident > capacity_M[machine] + TOLERANCE:
            return False
        if partner_T[t] < t and count_T[t] > count_T[partner_T[t]]:
            return False
    return True


@kept
@njit
def _add_moves(sequence_P, first, last, machine, moves, count):
    """Moves out of one critical block: the nearest tasks of other types to its front and to its end, and one swap."""
    for step in (1, -1):
        border, end = (first, last) if step == 1 else (last, first)
        types = 0
        for p in range(border + step, end + step, step):
            new = sequence_P[p] != sequence_P[border]
            for q in range(border + step, p, step):
                if sequence_P[q] == sequence_P[p]:
                    new = False
                    break
            if new:
                moves[count, 0], moves[count, 1], moves[count, 2] = machine, p, border
                count += 1
                types += 1
                if types == FIRSTS:
                    break
    p = first + np.random.randint(last - first)
    if sequence_P[p] != sequence_P[p + 1]:
        moves[count, 0], moves[count, 1], moves[count, 2] = machine, p + 1, p
        count += 1
    return count


@part
def _critical_moves(shop, sequence_MP, length_M, first_T, start_O, job_MP, type_O, makespan, position_O, moves):
    """Fills `moves` (machine, from, to) of one critical path drawn at random; returns how many."""
    machine_T, duration_T, _, before_T, _, _, _, _ = shop
    M = len(length_M)
    task, ends = NONE, 0
    for m in range(M):
        for p in range(length_M[m]):
            position_O[first_T[sequence_MP[m, p]] + job_MP[m, p]] = p
        if length_M[m] == 0:
            continue
        t = sequence_MP[m, length_M[m] - 1]
        o = first_T[t] + job_MP[m, length_M[m] - 1]
        if start_O[o] + duration_T[t] >= makespan - TOLERANCE:
            ends += 1
            if np.random.random() < 1.0 / ends:
                task = o
    count, last = 0, position_O[task]
    while True:
        t = type_O[task]
        m, p, start, k = machine_T[t], position_O[task], start_O[task], task - first_T[t]
        by_machine, by_job = NONE, NONE
        if start > TOLERANCE and p > 0:
            o = first_T[sequence_MP[m, p - 1]] + job_MP[m, p - 1]
            if start_O[o] + duration_T[type_O[o]] >= start - TOLERANCE:
                by_machine = o
        if start > TOLERANCE and before_T[t] >= 0:
            o = first_T[before_T[t]] + k
            if start_O[o] + duration_T[type_O[o]] >= start - TOLERANCE:
                by_job = o
        if by_machine >= 0 and (by_job < 0 or np.random.random() < 0.5):
            task = by_machine
            continue
        if last > p:
            count = _add_moves(sequence_MP[m], p, last, m, moves, count)
        if by_job < 0:
            return count
        task = by_job
        last = position_O[task]


@kept
@njit
def anneal(shop, sequence_MP, length_M, bound, iterations, hot, cold, seed):
    """The best sequences found by simulated annealing over critical moves, and their makespan; stops at `bound`.

    Temperatures in units of time, cooling from `hot` to `cold` by equal factors. O(iterations x tasks).
    """
    machine_T, _, count_T, _, _, _, _, _ = shop
    np.random.seed(seed)
    T, tasks = len(machine_T), count_T.sum()
    first_T, type_O = np.zeros(T, np.int64), np.zeros(tasks, np.int64)
    for t in range(T):
        first_T[t] = count_T[:t].sum()
        type_O[first_T[t] : first_T[t] + count_T[t]] = t
    start_O, new_start_O, position_O = np.zeros(tasks), np.zeros(tasks), np.zeros(tasks, np.int64)
    job_MP, new_job_MP = np.zeros(sequence_MP.shape, np.int64), np.zeros(sequence_MP.shape, np.int64)
    moves = np.zeros((7 * tasks, 3), np.int64)
    seen_T = np.zeros(T, np.int64)
    sequence_MP = sequence_MP.copy()
    now = replay(shop, sequence_MP, length_M, first_T, start_O, job_MP)
    best, best_MP = now, sequence_MP.copy()
    temperature, factor = hot, (cold / hot) ** (1.0 / iterations)
    stale, num_moves = True, 0
    for _ in range(iterations):
        if best <= bound + TOLERANCE:
            break
        temperature *= factor
        if stale:
            num_moves = _critical_moves(
                shop, sequence_MP, length_M, first_T, start_O, job_MP, type_O, now, position_O, moves
            )
            stale = False
        if num_moves == 0:
            stale = True
            continue
        m, source, target = moves[np.random.randint(num_moves)]
        move_item(sequence_MP[m], source, target)
        new = np.inf
        if _fits(shop, sequence_MP[m], length_M[m], m, seen_T):
            new = replay(shop, sequence_MP, length_M, first_T, new_start_O, new_job_MP)
        if new <= now or np.random.random() < np.exp((now - new) / temperature):
            now, stale = new, True
            start_O, new_start_O = new_start_O, start_O
            job_MP, new_job_MP = new_job_MP, job_MP
            if now < best - TOLERANCE:
                best = now
                copy_rows(sequence_MP, best_MP)
        else:
            move_item(sequence_MP[m], target, source)
            stale = np.random.random() < 0.1
    return best_MP, best

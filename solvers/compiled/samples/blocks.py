"""Sequences on aligned blocks of ranks (numba): degrees searched, each choice placed widest and longest first."""

import numpy as np
from numba import njit

from planner.solvers.compilation.kept import kept
from planner.solvers.compilation.parts import inlined_part, part
from planner.solvers.compiled.copies import copy_row


@part
def place(seconds_NC, width_C, ranks, choice_N, block_N, load_R):
    """(most loaded rank, mean square of loads): each sequence on the least loaded block of its width, widest first.

    Sequences stand longest first. All ranks of a block are equally loaded before its width's turn.
    """
    N, C = seconds_NC.shape
    load_R[:] = 0.0
    blocks = 1
    for c in range(C - 1, -1, -1):
        own = ranks // width_C[c]
        if own > blocks:
            each = own // blocks
            for b in range(blocks - 1, -1, -1):  # from behind, so that none is overwritten before it is read
                for k in range(each):
                    load_R[b * each + k] = load_R[b]
        blocks = own
        for n in range(N):
            if choice_N[n] != c:
                continue
            least = 0
            for b in range(1, blocks):
                if load_R[b] < load_R[least]:
                    least = b
            block_N[n] = least
            load_R[least] += seconds_NC[n, c]
    top, square = 0.0, 0.0
    for b in range(blocks):
        top = max(top, load_R[b])
        square += load_R[b] * load_R[b]
    return top, square / blocks


@kept
@njit
def anneal_degrees(seconds_NC, width_C, ranks, choice_N, block_N, target, steps, seed, hot, cold):
    """Improves the degrees in place; the most loaded rank. Judged by it and a tenth of the root mean square."""
    np.random.seed(seed)
    N, C = seconds_NC.shape
    load_R = np.zeros(ranks)
    trial_block = block_N.copy()
    top, square = place(seconds_NC, width_C, ranks, choice_N, block_N, load_R)
    value = top / target + 0.3 * np.sqrt(square) / target
    best, best_choice, best_block = top, choice_N.copy(), block_N.copy()
    for step in range(steps):
        heat = hot * ((cold / hot) ** (step / steps))
        n = np.random.randint(N)
        k = np.random.randint(N) if np.random.random() < 0.4 else n
        was_n, was_k = choice_N[n], choice_N[k]
        c = was_n + (1 if np.random.random() < 0.5 else -1)
        if c < 0 or c >= C or seconds_NC[n, c] == np.inf:
            continue
        choice_N[n] = c
        if k != n:
            c = was_k + (1 if np.random.random() < 0.5 else -1)
            if c < 0 or c >= C or seconds_NC[k, c] == np.inf:
                choice_N[n] = was_n
                continue
            choice_N[k] = c
        top, square = place(seconds_NC, width_C, ranks, choice_N, trial_block, load_R)
        trial = top / target + 0.3 * np.sqrt(square) / target
        if trial <= value or np.random.random() < np.exp((value - trial) / heat):
            value = trial
            copy_row(trial_block, block_N)
            if top < best - 1e-12:
                best = top
                copy_row(choice_N, best_choice)
                copy_row(block_N, best_block)
        else:
            choice_N[n], choice_N[k] = was_n, was_k
    copy_row(best_choice, choice_N)
    copy_row(best_block, block_N)
    return best


@inlined_part
def propose(seconds_NC, width_C, ranks, choice_N, block_N, load_R, move_23):
    """Draws a move into rows of (sequence, degree, block); returns how many of them, none where it cannot be made."""
    N, C = seconds_NC.shape
    n = np.random.randint(N)
    if np.random.random() < 0.3:  # one of the most loaded rank
        top = np.argmax(load_R)
        for _ in range(20):
            width = width_C[choice_N[n]]
            if block_N[n] * width <= top < (block_N[n] + 1) * width:
                break
            n = np.random.randint(N)
    kind = np.random.random()
    move_23[0, 0] = n
    if kind < 0.4:
        move_23[0, 1] = choice_N[n]
        move_23[0, 2] = np.random.randint(ranks // width_C[choice_N[n]])
        return 1
    if kind < 0.6:
        c = np.random.randint(C)
        if seconds_NC[n, c] == np.inf:
            return 0
        move_23[0, 1] = c
        move_23[0, 2] = np.random.randint(ranks // width_C[c])
        return 1
    k = np.random.randint(N)
    if k == n:
        return 0
    move_23[1, 0] = k  # each keeps its degree and goes where the other was
    own, other = width_C[choice_N[n]], width_C[choice_N[k]]
    move_23[0, 1], move_23[0, 2] = choice_N[n], block_N[k] * other // own
    move_23[1, 1], move_23[1, 2] = choice_N[k], block_N[n] * own // other
    return 2


@inlined_part
def add_move(seconds_NC, width_C, choice_N, block_N, move_23, count, more_R):
    """Adds the seconds that a move brings to ranks or takes from them; returns the first of these and their end."""
    low, high = len(more_R), 0
    for m in range(count):
        n = move_23[m, 0]
        for c, block, sign in ((choice_N[n], block_N[n], -1.0), (move_23[m, 1], move_23[m, 2], 1.0)):
            width = width_C[c]
            for r in range(block * width, (block + 1) * width):
                more_R[r] += sign * seconds_NC[n, c]
            low = min(low, block * width)
            high = max(high, (block + 1) * width)
    return low, high


@inlined_part
def growth(load_R, more_R, low, high, target):
    """By how much the sum of the eighth powers of loads over `target` grows."""
    change = 0.0
    for r in range(low, high):
        if more_R[r] != 0.0:
            was, now = load_R[r] / target, (load_R[r] + more_R[r]) / target
            was, now = was * was, now * now
            was, now = was * was, now * now
            change += now * now - was * was
    return change


@kept
@njit
def anneal_blocks(seconds_NC, width_C, ranks, choice_N, block_N, target, steps, seed, hot, cold):
    """Improves degrees and blocks in place; the most loaded rank. seconds_NC: infinite where a sequence does not fit.

    A move puts a sequence on another block, of its own degree or another, or exchanges it with one of a block beside;
    it is judged by the eighth powers of the ranks' loads over `target`.
    """
    np.random.seed(seed)
    load_R, more_R = np.zeros(ranks), np.zeros(ranks)
    for n in range(len(choice_N)):
        width = width_C[choice_N[n]]
        for r in range(block_N[n] * width, (block_N[n] + 1) * width):
            load_R[r] += seconds_NC[n, choice_N[n]]
    best, best_choice, best_block = load_R.max(), choice_N.copy(), block_N.copy()
    move_23 = np.zeros((2, 3), np.int64)
    for step in range(steps):
        heat = hot * ((cold / hot) ** (step / steps))
        count = propose(seconds_NC, width_C, ranks, choice_N, block_N, load_R, move_23)
        low, high = add_move(seconds_NC, width_C, choice_N, block_N, move_23, count, more_R)
        change = growth(load_R, more_R, low, high, target)
        if count > 0 and (change <= 0.0 or np.random.random() < np.exp(-change / heat)):
            for r in range(low, high):
                load_R[r] += more_R[r]
            for m in range(count):
                choice_N[move_23[m, 0]] = move_23[m, 1]
                block_N[move_23[m, 0]] = move_23[m, 2]
            if load_R.max() < best - 1e-12:
                best = load_R.max()
                copy_row(choice_N, best_choice)
                copy_row(block_N, best_block)
        for r in range(low, high):
            more_R[r] = 0.0
    copy_row(best_choice, choice_N)
    copy_row(best_block, block_N)
    return best

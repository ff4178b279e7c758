"""numba loops of `planner.estimate.closed_loop`, which describes the model; times in seconds, heaps in two arrays."""

import numpy as np
from numba import njit

from planner.solvers.compiled.heaps import drop, push

MOST_REQUESTS = 6000  # simulated of one run; those of later rounds count for the others
LEAST_ROUNDS = 3  # of all clients
LEAST_REQUESTS = 8
FULL = 0.9  # of a step's prompt tokens for which waiting prompts start
LEAST_ROOM = 0.1  # of a step's prompt tokens that decodes leave to prompts at least


@njit(cache=True)
def _send(request, begins, free, frontend, delay, sent_at, ready):
    """The next request on its way; returns when the front end is free."""
    sent_at[request] = begins
    free = max(free, begins) + frontend
    ready[request] = free + delay[request]
    if request > 0:
        ready[request] = max(ready[request], ready[request - 1])
    return free


@njit(cache=True)
def _waiting_tokens(head, sent, now, ready, isl, enough):
    """Prompt tokens that wait, counted until they are enough."""
    tokens = 0.0
    while head < sent and ready[head] <= now and tokens < enough:
        tokens += isl[head]
        head += 1
    return tokens


@njit(cache=True)
def _join(keys, values, oldest, decoding, key, request, in_turn):
    """One more sequence that decodes: in a heap, or in a ring where those that came first end first."""
    if in_turn:
        place = (oldest + decoding) % len(keys)
        keys[place], values[place] = key, request
    else:
        push(keys, values, 0, decoding, key, request)


@njit(cache=True)
def _leave(keys, values, oldest, decoding, in_turn):
    """One sequence less; returns where the next to end stands."""
    if in_turn:
        return (oldest + 1) % len(keys)
    drop(keys, values, 0, decoding)
    return 0


@njit(cache=True)
def _colocated(
    clients, isl, osl, delay, most, base, slope, start, token, step_tokens, frontend, poll, output, hold, apart,
    stagger, least, in_turn, ttft, tpot
):  # fmt: skip
    count, oldest = len(isl), 0
    sent_at, ready, first = np.zeros(count), np.zeros(count), np.zeros(count)
    keys, values, decoding = np.empty(most + 1), np.empty(most + 1, np.int64), 0
    head, done, now, steps, before, since = 0, 0, 0.0, 0, 0.0, -1
    sent, started, starting, free = 0, 0, min(clients, count), 0.0
    while done < count:
        while started < starting and stagger * started / clients <= now:
            free = _send(sent, stagger * started / clients, free, frontend, delay, sent_at, ready)
            sent, started = sent + 1, started + 1
        waits = head < sent and ready[head] <= now and decoding < most
        if waits and decoding > 0 and before == 0.0 and steps % poll != 0:
            waits = False
        left = 0
        if waits and hold > 0 and decoding > 0 and before == 0.0:
            since = steps if since < 0 else since
            left = hold - (steps - since)
            if left > 0 and _waiting_tokens(head, sent, now, ready, isl, FULL * step_tokens) < FULL * step_tokens:
                waits = False
        if waits:
            since = -1
            room = step_tokens if apart else max(step_tokens - decoding, LEAST_ROOM * step_tokens)
            seconds, begin = start, head
            while head < sent and ready[head] <= now and decoding + head - begin < most and room > 0.0:
                rest = isl[head] - before
                if rest <= room:
                    seconds += token * rest
                    room -= rest
                    before = 0.0
                    head += 1
                else:
                    seconds += token * room
                    before += room
                    room = 0.0
            now += max(base + seconds if apart else base + slope * decoding + seconds, least)
            steps += 0 if apart else 1
            for request in range(begin, head):
                first[request] = now
                ttft[request] = now - sent_at[request] + output * (base + slope * decoding)
                _join(keys, values, oldest, decoding, steps + max(osl[request] - 1.0, 0.0), request, in_turn)
                decoding += 1
        elif decoding > 0:
            step = base + slope * decoding
            ahead = max(int(np.ceil(keys[oldest] - steps)), 1)
            if left > 0:
                ahead = min(ahead, left)
            if head < sent and decoding < most:
                until = max(int(np.ceil((ready[head] - now) / step)), 1)
                until += (poll - (steps + until) % poll) % poll
                ahead = min(ahead, until)
            if started < starting:
                ahead = min(ahead, max(int(np.ceil((stagger * started / clients - now) / step)), 1))
            now += ahead * step
            steps += ahead
        elif head < sent:
            now = max(now, ready[head])
        else:
            now = stagger * started / clients
        while decoding > 0 and keys[oldest] <= steps:
            request = values[oldest]
            oldest = _leave(keys, values, oldest, decoding, in_turn)
            decoding -= 1
            done += 1
            tpot[request] = (now - first[request]) / max(osl[request] - 1.0, 1.0)
            if sent + starting - started < count:
                free = _send(sent, now, free, frontend, delay, sent_at, ready)
                sent += 1
    return now


@njit(cache=True)
def _prefill(
    request, sent_at, isl, delay, servers, free, frontend, start, token, step_tokens, moved, least, ttft, keys, values,
    size
):  # fmt: skip
    """Sends a request through the front end and the first free prefill server; returns when the front end is free.

    Prompts that wait share steps: each bears its part of the start of a full one.
    """
    free = max(free, sent_at[request]) + frontend
    server = np.argmin(servers)
    arrives = free + delay[request]
    shared = min(isl[request] / step_tokens, 1.0) if servers[server] > arrives else 1.0
    servers[server] = max(arrives, servers[server]) + max(start * shared + token * isl[request], least * shared)
    arrives = servers[server] + moved
    ttft[request] = arrives - sent_at[request]
    push(keys, values, 0, size, arrives, request)
    return free, size + 1


@njit(cache=True)
def _disaggregated(
    clients, isl, osl, delay, instances, ranks, most, servers, base, slope, start, token, step_tokens, moved, frontend,
    stagger, least, ttft, tpot
):  # fmt: skip
    count = len(isl)
    sent_at, first, following = np.zeros(count), np.zeros(count), np.full(count, -1)
    heads, tails, present = np.full(instances, -1), np.full(instances, -1), np.zeros(instances, np.int64)
    moving, movers, on_way = np.empty(count), np.empty(count, np.int64), 0
    keys, values, decoding = np.empty(count), np.empty(count, np.int64), 0
    free, sent, done, now, tokens = 0.0, 0, 0, 0.0, 0.0
    slots = max(int(most * ranks / instances), 1)
    started, starting = 0, min(clients, count)
    while done < count:
        step = base + slope * max(decoding / ranks, 1.0)
        finishes = now + (keys[0] - tokens) * step if decoding > 0 else np.inf
        starts = stagger * started / clients if started < starting else np.inf
        arrives = moving[0] if on_way > 0 else np.inf
        if min(starts, arrives) < finishes and decoding > 0:
            tokens += max(min(starts, arrives) - now, 0.0) / step
        if starts <= arrives and starts < finishes:
            now = max(starts, now)
            sent_at[sent] = starts
            free, on_way = _prefill(
                sent, sent_at, isl, delay, servers, free, frontend, start, token, step_tokens, moved, least, ttft,
                moving, movers, on_way,
            )  # fmt: skip
            sent, started = sent + 1, started + 1
            continue
        if arrives < finishes:
            now = max(arrives, now)
            request = movers[0]
            drop(moving, movers, 0, on_way)
            on_way -= 1
            home = request % instances
            if heads[home] < 0:
                heads[home] = request
            else:
                following[tails[home]] = request
            tails[home] = request
        else:
            now, tokens, request = finishes, keys[0], values[0]
            drop(keys, values, 0, decoding)
            decoding -= 1
            home = request % instances
            present[home] -= 1
            done += 1
            tpot[request] = (now - first[request]) / max(osl[request] - 1.0, 1.0)
            if sent + starting - started < count:
                sent_at[sent] = now
                free, on_way = _prefill(
                    sent, sent_at, isl, delay, servers, free, frontend, start, token, step_tokens, moved, least, ttft,
                    moving, movers, on_way,
                )  # fmt: skip
                sent += 1
        while heads[home] >= 0 and present[home] < slots:
            request = heads[home]
            heads[home] = following[request]
            present[home] += 1
            first[request] = now
            ttft[request] = max(ttft[request], now - sent_at[request])
            push(keys, values, 0, decoding, tokens + max(osl[request] - 1.0, 1.0), request)
            decoding += 1
    return now


@njit(cache=True)
def _mean(values, clients, asked):
    """Of all requests asked for: the first of each client once, the others as the mean of those simulated."""
    if len(values) >= asked or len(values) <= clients:
        return np.mean(values)
    share = clients / asked
    return share * np.mean(values[:clients]) + (1.0 - share) * np.mean(values[clients:])


@njit(cache=True)
def simulate_all(columns, draws_isl, draws_osl, draws_delay, means):
    for run in range(columns.shape[1]):
        (clients, each, isl_top, osl_top, spread, apart, instances, ranks, servers, most, base, slope, start, token,
         moved, step_tokens, frontend, arrival, poll, output, hold, apart_steps, staggered,
         least) = columns[:, run]  # fmt: skip
        here = int(np.ceil(clients / ranks)) if apart == 0.0 else int(clients)
        asked = int(max(each * here, LEAST_REQUESTS))
        count = min(asked, max(MOST_REQUESTS, LEAST_ROUNDS * here))
        isl, osl, delay = np.empty(count), np.empty(count), np.empty(count)
        drawn = len(draws_isl)
        for request in range(count):
            turn = request if request < drawn else request % drawn
            isl[request] = isl_top * (1.0 - spread * draws_isl[turn])
            osl[request] = np.floor(osl_top * (1.0 - spread * draws_osl[turn]))
            delay[request] = arrival * draws_delay[turn]
        ttft, tpot = np.zeros(count), np.zeros(count)
        batch = min(clients / ranks, most)
        stagger = staggered * (osl_top * (base + slope * batch) + batch * token * isl_top)
        if apart == 0.0:
            elapsed = _colocated(
                here, isl, osl, delay, int(most), base, slope, start, token, step_tokens, frontend, int(poll), output,
                int(hold), apart_steps > 0.0, stagger, least, spread == 0.0, ttft, tpot,
            )  # fmt: skip
        else:
            elapsed = _disaggregated(
                here, isl, osl, delay, int(instances), ranks, most, np.zeros(max(int(servers), 1)), base, slope, start,
                token, step_tokens, moved, frontend, stagger, least, ttft, tpot,
            )  # fmt: skip
        means[0, run] = _mean(ttft, here, asked)
        means[1, run] = _mean(tpot, here, asked)
        means[2, run] = count / max(elapsed, 1e-12)

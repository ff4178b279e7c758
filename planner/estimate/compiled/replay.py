"""The inner loops of `planner.estimate.replay`; see there for what they play. Times in seconds, heaps in two arrays."""

import numpy as np
from numba import njit

MOST_REQUESTS = 6000  # of one run; with more, the opening burst has long stopped to count
LEAST_REQUESTS = 8
LEAST_ROOM = 0.1  # of a step's prompt tokens that decodes leave to prompts at least


@njit(cache=True)
def _push(keys, values, size, key, value):
    at = size
    while at > 0 and keys[(at - 1) >> 1] > key:
        keys[at], values[at] = keys[(at - 1) >> 1], values[(at - 1) >> 1]
        at = (at - 1) >> 1
    keys[at], values[at] = key, value
    return size + 1


@njit(cache=True)
def _pop(keys, values, size):
    size -= 1
    key, value, at = keys[size], values[size], 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and keys[child + 1] < keys[child]:
            child += 1
        if key <= keys[child]:
            break
        keys[at], values[at] = keys[child], values[child]
        at = child
    keys[at], values[at] = key, value
    return size


@njit(cache=True)
def _colocated(
    clients, isl, osl, delay, most, base, slope, start, token, step_tokens, frontend, poll, output, ttft, tpot
):
    count = len(isl)
    sent_at, ready, first = np.zeros(count), np.zeros(count), np.zeros(count)
    keys, values, decoding = np.empty(most + 1), np.empty(most + 1, np.int64), 0
    free, sent, head, done, now, steps, before = 0.0, 0, 0, 0, 0.0, 0, 0.0
    while sent < min(clients, count):
        free += frontend
        ready[sent] = max(free + delay[sent], ready[sent - 1]) if sent else free + delay[0]
        sent += 1
    while done < count:
        waits = head < sent and ready[head] <= now and decoding < most
        if waits and decoding > 0 and before == 0.0 and steps % poll != 0:
            waits = False
        if waits:
            room, seconds, begin = max(step_tokens - decoding, LEAST_ROOM * step_tokens), start, head
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
            now += base + slope * decoding + seconds
            steps += 1
            for request in range(begin, head):
                first[request] = now
                ttft[request] = now - sent_at[request] + output * (base + slope * decoding)
                decoding = _push(keys, values, decoding, steps + max(osl[request] - 1.0, 0.0), request)
        elif decoding > 0:
            step = base + slope * decoding
            ahead = max(int(np.ceil(keys[0] - steps)), 1)
            if head < sent and decoding < most:
                until = max(int(np.ceil((ready[head] - now) / step)), 1)
                until += (poll - (steps + until) % poll) % poll
                ahead = min(ahead, until)
            now += ahead * step
            steps += ahead
        else:
            now = max(now, ready[head])
        while decoding > 0 and keys[0] <= steps:
            request = values[0]
            decoding = _pop(keys, values, decoding)
            done += 1
            tpot[request] = (now - first[request]) / max(osl[request] - 1.0, 1.0)
            if sent < count:
                sent_at[sent] = now
                free = max(free, now) + frontend
                ready[sent] = max(free + delay[sent], ready[sent - 1])
                sent += 1


@njit(cache=True)
def _prefill(request, sent_at, isl, delay, servers, free, frontend, start, token, moved, ttft, keys, values, size):
    """Sends a request through the front end and the first free prefill server; returns when the front end is free."""
    free = max(free, sent_at[request]) + frontend
    server = np.argmin(servers)
    servers[server] = max(free + delay[request], servers[server]) + start + token * isl[request]
    arrives = servers[server] + moved
    ttft[request] = arrives - sent_at[request]
    return free, _push(keys, values, size, arrives, request)


@njit(cache=True)
def _disaggregated(
    clients, isl, osl, delay, ranks, most, servers, base, slope, start, token, moved, frontend, ttft, tpot
):
    count = len(isl)
    sent_at, first, line = np.zeros(count), np.zeros(count), np.empty(count, np.int64)
    moving, movers, on_way = np.empty(count), np.empty(count, np.int64), 0
    keys, values, decoding = np.empty(count), np.empty(count, np.int64), 0
    free, sent, done, now, tokens, head, tail = 0.0, 0, 0, 0.0, 0.0, 0, 0
    while sent < min(clients, count):
        free, on_way = _prefill(
            sent, sent_at, isl, delay, servers, free, frontend, start, token, moved, ttft, moving, movers, on_way
        )
        sent += 1
    while done < count:
        step = base + slope * max(decoding / ranks, 1.0)
        finishes = now + (keys[0] - tokens) * step if decoding > 0 else np.inf
        if on_way > 0 and moving[0] < finishes:
            if decoding > 0:
                tokens += (moving[0] - now) / step
            now = moving[0]
            line[tail] = movers[0]
            tail += 1
            on_way = _pop(moving, movers, on_way)
        else:
            now, tokens, request = finishes, keys[0], values[0]
            decoding = _pop(keys, values, decoding)
            done += 1
            tpot[request] = (now - first[request]) / max(osl[request] - 1.0, 1.0)
            if sent < count:
                sent_at[sent] = now
                free, on_way = _prefill(
                    sent, sent_at, isl, delay, servers, free, frontend, start, token, moved, ttft,
                    moving, movers, on_way,
                )  # fmt: skip
                sent += 1
        while head < tail and decoding < most * ranks:
            request = line[head]
            head += 1
            first[request] = now
            ttft[request] = max(ttft[request], now - sent_at[request])
            decoding = _push(keys, values, decoding, tokens + max(osl[request] - 1.0, 1.0), request)


@njit(cache=True)
def play_all(columns, draws_isl, draws_osl, draws_delay, means):
    for run in range(columns.shape[1]):
        (clients, each, isl_top, osl_top, spread, apart, ranks, servers, most, base, slope, start, token, moved,
         step_tokens, frontend, arrival, poll, output) = columns[:, run]  # fmt: skip
        here = int(np.ceil(clients / ranks)) if apart == 0.0 else int(clients)
        count = int(max(each * here, LEAST_REQUESTS))
        if count > MOST_REQUESTS:
            count = max(MOST_REQUESTS, 2 * here)
        index = np.arange(count) % len(draws_isl)
        isl = isl_top * (1.0 - spread * draws_isl[index])
        osl = np.floor(osl_top * (1.0 - spread * draws_osl[index]))
        delay = arrival * draws_delay[index]
        ttft, tpot = np.zeros(count), np.zeros(count)
        if apart == 0.0:
            _colocated(
                here, isl, osl, delay, int(most), base, slope, start, token, step_tokens, frontend, int(poll), output,
                ttft, tpot,
            )  # fmt: skip
        else:
            _disaggregated(
                here, isl, osl, delay, ranks, most, np.zeros(max(int(servers), 1)), base, slope, start, token, moved,
                frontend, ttft, tpot,
            )  # fmt: skip
        means[0, run] = np.mean(ttft)
        means[1, run] = np.mean(tpot)

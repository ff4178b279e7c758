"""numba loop of prefill ranks and decoding instances; `planner.estimate.closed_loop` describes the model."""

import numpy as np

from planner.estimate.compiled.quantiles import count_gaps
from planner.estimate.compiled.steps import LEAST_FACTOR, step_s
from planner.solvers.compilation.parts import owning_part, part
from planner.solvers.compiled.heaps import drop, push


@part
def _prefill(
    request, sent_at, isl, delay, servers, free, frontend, start, token, step_tokens, moved, least, ttft, keys, values,
    size
):  # fmt: skip
    """Sends a request through the front end and the first free prefill server; returns when the front end is free.

    Prompts that wait share steps: each bears its part of the start of a full one.
    """
    free = max(free, sent_at[request]) + frontend[request]
    server = np.argmin(servers)
    arrives = free + delay[request]
    shared = min(isl[request] / step_tokens, 1.0) if servers[server] > arrives else 1.0
    servers[server] = max(arrives, servers[server]) + max(start * shared + token * isl[request], least * shared)
    arrives = servers[server] + moved
    ttft[request] = arrives - sent_at[request]
    push(keys, values, 0, size, arrives, request)
    return free, size + 1


@owning_part
def disaggregated(
    starts, isl, osl, delay, instances, ranks, most, servers, base, slope, start, token, step_tokens, moved, frontend,
    least, graph_batch, eager, jitter, noise, watch, gaps, ttft, tpot
):  # fmt: skip
    count = len(isl)
    sent_at, first, following = np.zeros(count), np.zeros(count), np.full(count, -1)
    heads, tails, present = np.full(instances, -1), np.full(instances, -1), np.zeros(instances, np.int64)
    moving, movers, on_way = np.empty(count), np.empty(count, np.int64), 0
    keys, values, decoding = np.empty(count), np.empty(count, np.int64), 0
    free, sent, done, now, tokens = 0.0, 0, 0, 0.0, 0.0
    slots = max(int(most * ranks / instances), 1)
    started, starting = 0, len(starts)
    while done < count:
        step = step_s(max(decoding / ranks, 1.0), base, slope, graph_batch, eager)
        watched = watch[0] <= sent <= watch[1]
        finishes = now + (keys[0] - tokens) * step if decoding > 0 else np.inf
        begins = starts[started] if started < starting else np.inf
        arrives = moving[0] if on_way > 0 else np.inf
        until = min(begins, arrives, finishes)
        if watched and decoding > 0:
            count_gaps(gaps, step, decoding * max(until - now, 0.0) / step)
        if min(begins, arrives) < finishes and decoding > 0:
            tokens += max(min(begins, arrives) - now, 0.0) / step
        if begins <= arrives and begins < finishes:
            now = max(begins, now)
            sent_at[sent] = begins
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
            if jitter > 0.0:
                luck = jitter * noise[request % len(noise)] / np.sqrt(max(osl[request] - 1.0, 1.0))
                tpot[request] *= max(1.0 + luck, LEAST_FACTOR)
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

"""numba loop of prefill ranks and decoding instances; `planner.estimate.closed_loop` describes the model."""

import numpy as np

from planner.estimate.compiled.quantiles import count_gaps
from planner.estimate.compiled.sending import send
from planner.estimate.compiled.steps import LEAST_FACTOR, step_s
from planner.solvers.compilation.parts import owning_part, part
from planner.solvers.compiled.heaps import drop, push


@part
def _append(request, queue, heads, tails, following):
    """Puts a request at the end of a queue."""
    following[request] = -1
    if heads[queue] < 0:
        heads[queue] = request
    else:
        following[tails[queue]] = request
    tails[queue] = request


@part
def _fill(first, members, step_tokens, left, heads, following, beside):
    """Fills the next step of prefill ranks; returns the tokens of the fullest, and a prompt that it completes or -1.

    A prompt that was cut goes on with what is `left` of it. Those completed are linked by `beside`.
    """
    fullest, completed = 0.0, -1
    for rank in range(first, first + members):
        room = step_tokens
        while heads[rank] >= 0 and room > 0.0:
            request = heads[rank]
            taken = min(left[request], room)
            left[request] -= taken
            room -= taken
            if left[request] <= 0.0:
                heads[rank] = following[request]
                beside[request], completed = completed, request
        fullest = max(fullest, step_tokens - room)
    return fullest, completed


@part
def _prefill(
    now, head, sent, ready, members, start, token, step_tokens, moved, least, sent_at, place, waiting, left, firsts,
    lasts, following, ends, completed, beside, ttft, moving, movers, on_way,
):  # fmt: skip
    """What prefill does at this moment: prompts go to the rank that has fewest, steps end, and others begin.

    Returns the next prompt to come, and the requests on their way to decoding.
    """
    while head < sent and ready[head] <= now:
        place[head] = np.argmin(waiting)
        waiting[place[head]] += 1
        _append(head, place[head], firsts, lasts, following)
        head += 1
    for group in range(len(ends)):
        first = group * members
        if ends[group] <= now:
            request, ends[group] = completed[group], np.inf
            while request >= 0:
                ttft[request] = now + moved - sent_at[request]
                push(moving, movers, 0, on_way, now + moved, request)
                waiting[place[request]] -= 1
                on_way, request = on_way + 1, beside[request]
        if ends[group] == np.inf and np.max(waiting[first : first + members]) > 0:
            fullest, completed[group] = _fill(first, members, step_tokens, left, firsts, following, beside)
            ends[group] = now + max(start + token * fullest, least)
    return head, on_way


@owning_part
def disaggregated(
    starts, isl, osl, delay, instances, ranks, most, servers, members, base, slope, start, token, step_tokens, moved,
    frontend, least, graph_batch, eager, jitter, noise, watch, gaps, ttft, tpot
):  # fmt: skip
    count, groups = len(isl), servers // members
    sent_at, ready, first = np.zeros(count), np.zeros(count), np.zeros(count)
    following, beside, place, left = np.full(count, -1), np.full(count, -1), np.full(count, -1), isl.copy()
    firsts, lasts, waiting = np.full(servers, -1), np.full(servers, -1), np.zeros(servers, np.int64)
    ends, completed = np.full(groups, np.inf), np.full(groups, -1)
    heads, tails, present = np.full(instances, -1), np.full(instances, -1), np.zeros(instances, np.int64)
    moving, movers, on_way = np.empty(count), np.empty(count, np.int64), 0
    keys, values, decoding = np.empty(count), np.empty(count, np.int64), 0
    free, sent, head, done, now, tokens = 0.0, 0, 0, 0, 0.0, 0.0
    slots = max(int(most * ranks / instances), 1)
    started, starting = 0, len(starts)
    while done < count:
        step = step_s(max(decoding / ranks, 1.0), base, slope, graph_batch, eager)
        watched = watch[0] <= sent <= watch[1]
        finishes = now + (keys[0] - tokens) * step if decoding > 0 else np.inf
        begins = starts[started] if started < starting else np.inf
        comes = ready[head] if head < sent else np.inf
        arrives = moving[0] if on_way > 0 else np.inf
        next_s = max(min(begins, comes, np.min(ends), arrives), now)
        if watched and decoding > 0:
            count_gaps(gaps, step, decoding * max(min(next_s, finishes) - now, 0.0) / step)
        if next_s < finishes and decoding > 0:
            tokens += (next_s - now) / step
        if next_s >= finishes:
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
                free = send(sent, now, free, frontend, delay, sent_at, ready)
                sent += 1
        elif begins <= next_s:
            now = next_s
            free = send(sent, begins, free, frontend, delay, sent_at, ready)
            sent, started = sent + 1, started + 1
            continue
        elif arrives <= next_s:
            now, request = next_s, movers[0]
            drop(moving, movers, 0, on_way)
            on_way -= 1
            home = request % instances
            _append(request, home, heads, tails, following)
        else:
            now = next_s
            head, on_way = _prefill(
                now, head, sent, ready, members, start, token, step_tokens, moved, least, sent_at, place, waiting, left,
                firsts, lasts, following, ends, completed, beside, ttft, moving, movers, on_way,
            )  # fmt: skip
            continue
        while heads[home] >= 0 and present[home] < slots:
            request = heads[home]
            heads[home] = following[request]
            present[home] += 1
            first[request] = now
            ttft[request] = max(ttft[request], now - sent_at[request])
            push(keys, values, 0, decoding, tokens + max(osl[request] - 1.0, 1.0), request)
            decoding += 1
    return now

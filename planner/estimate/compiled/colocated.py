"""numba loop of one attention rank that prefills and decodes; `planner.estimate.closed_loop` describes the model."""

import numpy as np

from planner.estimate.compiled.quantiles import count_gaps
from planner.estimate.compiled.sending import send
from planner.estimate.compiled.steps import LEAST_FACTOR, step_s
from planner.solvers.compilation.parts import owning_part, part
from planner.solvers.compiled.heaps import drop, push

FULL = 0.9  # of a step's prompt tokens for which waiting prompts start
LEAST_ROOM = 0.1  # of a step's prompt tokens that decodes leave to prompts at least


@part
def _waiting_tokens(head, sent, now, ready, isl, enough):
    """Prompt tokens that wait, counted until they are enough."""
    tokens = 0.0
    while head < sent and ready[head] <= now and tokens < enough:
        tokens += isl[head]
        head += 1
    return tokens


@part
def _join(keys, values, oldest, decoding, key, request, in_turn):
    """One more sequence that decodes: in a heap, or in a ring where those that came first end first."""
    if in_turn:
        place = (oldest + decoding) % len(keys)
        keys[place], values[place] = key, request
    else:
        push(keys, values, 0, decoding, key, request)


@part
def _leave(keys, values, oldest, decoding, in_turn):
    """One sequence less; returns where the next to end stands."""
    if in_turn:
        return (oldest + 1) % len(keys)
    drop(keys, values, 0, decoding)
    return 0


@part
def _without(members, count, member):
    """How many are left of a list without a member, if it is one."""
    place = 0
    while place < count and members[place] != member:
        place += 1
    if place < count:
        count -= 1
        members[place] = members[count]
    return count


@owning_part
def _drop_newest(keys, values, decoding, joined):
    """Takes the sequence that joined last from a heap; returns it, and the step of its last token."""
    newest = 0
    for place in range(decoding):
        if joined[values[place]] > joined[values[newest]]:
            newest = place
    request, key = values[newest], keys[newest]
    other_keys, others, size = keys[:decoding].copy(), values[:decoding].copy(), 0
    for place in range(decoding):
        if place != newest:
            push(keys, values, 0, size, other_keys[place], others[place])
            size += 1
    return request, key


@owning_part
def colocated(
    starts, isl, osl, delay, most, base, slope, start, token, step_tokens, frontend, poll, output, hold, apart,
    least, in_turn, cache, graph_batch, eager, jitter, noise, watch, gaps, ttft, tpot
):  # fmt: skip
    count, oldest = len(isl), 0
    sent_at, ready, first, last = np.zeros(count), np.zeros(count), np.zeros(count), np.zeros(count)
    made, joined, again, waiting, current = np.zeros(count), np.zeros(count), np.empty(most + 1, np.int64), 0, -1
    fresh, num_fresh, joins = np.empty(most + 1, np.int64), 0, 0
    keys, values, decoding = np.empty(most + 1), np.empty(most + 1, np.int64), 0
    head, done, now, steps, before, since, held, behind = 0, 0, 0.0, 0, 0.0, -1, 0.0, 0.0
    sent, started, starting, free, drawn = 0, 0, len(starts), 0.0, 0
    while done < count:
        while started < starting and starts[started] <= now:
            free = send(sent, starts[started], free, frontend, delay, sent_at, ready)
            sent, started = sent + 1, started + 1
        watched = watch[0] <= sent <= watch[1]
        waits = (current >= 0 or waiting > 0 or (head < sent and ready[head] <= now)) and decoding < most
        blocked = False
        if waits and decoding > 0 and current < 0:
            following = again[waiting - 1] if waiting > 0 else head
            blocked = held + isl[following] + made[following] + (0 if apart else decoding) > cache
            waits = not blocked
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
            seconds, begin = start, num_fresh
            while room > 0.0 and decoding + num_fresh - begin < most:
                if current < 0:
                    if waiting > 0:
                        request = again[waiting - 1]
                    elif head < sent and ready[head] <= now:
                        request = head
                    else:
                        break
                    whole = isl[request] + made[request]
                    if held + whole + (0 if apart else decoding) > cache and decoding + num_fresh - begin > 0:
                        break
                    if waiting > 0:
                        waiting -= 1
                    else:
                        head += 1
                    current = request
                    held += whole
                rest = isl[current] + made[current] - before
                if rest <= room:
                    seconds += token * rest
                    room -= rest
                    before = 0.0
                    fresh[num_fresh] = current
                    num_fresh += 1
                    current = -1
                else:
                    seconds += token * room
                    before += room
                    room = 0.0
            if apart:
                lasts = max(base + seconds, least)
                behind += lasts
            else:
                lasts = max(step_s(decoding, base, slope, graph_batch, eager) + seconds, least)
                steps += 1
                held += decoding
                if watched:
                    count_gaps(gaps, lasts, decoding)
            if jitter > 0.0:
                lasts *= max(1.0 + jitter * noise[drawn % len(noise)], LEAST_FACTOR)
                drawn += 1
            now += lasts
            for place in range(begin, num_fresh):
                request = fresh[place]
                if made[request] == 0.0:
                    first[request] = now
                    ttft[request] = now - sent_at[request] + output * (base + slope * decoding)
                elif watched:
                    count_gaps(gaps, now - last[request], 1.0)
                made[request] += 1.0
                last[request] = now
                joined[request] = joins
                joins += 1
                key = steps + max(osl[request] - made[request], 0.0)
                _join(keys, values, oldest, decoding, key, request, in_turn)
                decoding += 1
            num_fresh = num_fresh if apart else 0
        elif decoding > 0:
            while held + decoding > cache and decoding > 1:
                request, key = _drop_newest(keys, values, decoding, joined)
                decoding -= 1
                made[request] = osl[request] - (key - steps)
                last[request] = now
                held -= isl[request] + made[request] - 1.0
                again[waiting] = request
                waiting += 1
                num_fresh = _without(fresh, num_fresh, request)
                blocked = True
            step = step_s(decoding, base, slope, graph_batch, eager)
            ahead = max(int(np.ceil(keys[oldest] - steps)), 1)
            if cache < np.inf:
                ahead = max(min(ahead, int((cache - held) / decoding)), 1)
            if left > 0:
                ahead = min(ahead, left)
            if head < sent and decoding < most and not blocked:
                until = max(int(np.ceil((ready[head] - now) / step)), 1)
                until += (poll - (steps + until) % poll) % poll
                ahead = min(ahead, until)
            if started < starting:
                ahead = min(ahead, max(int(np.ceil((starts[started] - now) / step)), 1))
            if watched:
                count_gaps(gaps, behind + step, decoding - num_fresh)
                for place in range(num_fresh):
                    count_gaps(gaps, now + step - last[fresh[place]], 1.0)
                count_gaps(gaps, step, decoding * (ahead - 1.0))
            num_fresh, behind = 0, 0.0
            lasts = ahead * step
            if jitter > 0.0:
                lasts *= max(1.0 + jitter * noise[drawn % len(noise)] / np.sqrt(ahead), LEAST_FACTOR)
                drawn += 1
            now += lasts
            steps += ahead
            held += ahead * decoding
        elif head < sent:
            now = max(now, ready[head])
        else:
            now = starts[started]
        while decoding > 0 and keys[oldest] <= steps:
            request = values[oldest]
            oldest = _leave(keys, values, oldest, decoding, in_turn)
            decoding -= 1
            done += 1
            held -= isl[request] + max(osl[request], 1.0) - 1.0
            num_fresh = _without(fresh, num_fresh, request)
            tpot[request] = (now - first[request]) / max(osl[request] - 1.0, 1.0)
            if sent + starting - started < count:
                free = send(sent, now, free, frontend, delay, sent_at, ready)
                sent += 1
    return now

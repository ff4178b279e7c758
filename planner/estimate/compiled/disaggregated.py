"""numba loop of prefill ranks and decoding instances; `planner.estimate.closed_loop` describes the model.

`run` is the record of a run (`ClosedLoops`), `s` of the state of both pools (`POOLS`).
"""

from typing import NamedTuple

import numpy as np

from planner.arrays import Floats, Ints
from planner.estimate.compiled.quantiles import count_gaps
from planner.estimate.compiled.sending import SENDING, answer, next_ready_s, send_starting
from planner.estimate.compiled.steps import luck, step_s
from planner.solvers.compilation.parts import inlined_part, owning_part
from planner.solvers.compiled.heaps import drop, push

POOLS = np.dtype([
    *SENDING,
    ("moving", "i8"),  # requests between the pools
    ("decoding", "i8"),  # sequences
    ("tokens", "f8"),  # that a sequence decoded which was there from the first moment on
    ("slots", "i8"),  # sequences that an instance decodes at most
])  # fmt: skip


class Queues(NamedTuple):
    """Queues of requests, one of each prefill rank or decoding instance."""

    heads: Ints  # the first request, or -1
    tails: Ints
    present: Ints  # requests that wait at a rank or are in its step; sequences that an instance decodes
    following: Ints  # the request behind each [count], which is in one queue at most; shared by both pools


class Prompts(NamedTuple):
    """Steps that groups of prefill ranks make together [groups], and where requests are in them [count]."""

    ends: Floats  # when the running step does, or infinite
    completed: Ints  # a request whose prompt it completes, or -1
    rank: Ints  # of each request
    left: Floats  # prompt tokens that are not prefilled
    beside: Ints  # another request whose prompt the same step completes, or -1


class Heap(NamedTuple):
    """Requests [count] by when they arrive at decoding, or by the tokens at which they end."""

    keys: Floats
    values: Ints


@inlined_part
def _append(queues, queue, request):
    """Puts a request at the end of a queue."""
    queues.following[request] = -1
    if queues.heads[queue] < 0:
        queues.heads[queue] = request
    else:
        queues.following[queues.tails[queue]] = request
    queues.tails[queue] = request


@inlined_part
def _fill(run, first, members, ranks, prompts):
    """Fills the next step of prefill ranks; returns the tokens of the fullest, and a prompt that it completes or -1.

    A prompt that was cut goes on with what is `left` of it. Those completed are linked by `beside`.
    """
    fullest, completed = 0.0, -1
    for rank in range(first, first + members):
        room, filled = run.step_tokens, 0.0
        while ranks.heads[rank] >= 0 and room > 0.0:
            request = ranks.heads[rank]
            if run.whole_prompts > 0.0:
                if prompts.left[request] > room and filled > 0.0:
                    break
                room = max(room, prompts.left[request])
            taken = min(prompts.left[request], room)
            prompts.left[request] -= taken
            room, filled = room - taken, filled + taken
            if prompts.left[request] <= 0.0:
                ranks.heads[rank] = ranks.following[request]
                prompts.beside[request], completed = completed, request
        fullest = max(fullest, filled)
    return fullest, completed


@inlined_part
def _hand_over(run, s, requests, ranks, prompts, moving, completed):
    """Prompts that a step completed have their first token, and their caches go to decoding."""
    while completed >= 0:
        arrives = s.now + run.moved_s
        requests.ttft[completed] = arrives - requests.sent[completed]
        push(moving.keys, moving.values, 0, s.moving, arrives, completed)
        ranks.present[prompts.rank[completed]] -= 1
        s.moving, completed = s.moving + 1, prompts.beside[completed]


@inlined_part
def _prefill(run, s, requests, ranks, prompts, moving):
    """What prefill does at this moment: prompts go to the rank that has fewest, steps end, and others begin."""
    while s.head < s.sent and next_ready_s(s, requests) <= s.now:
        rank, request = np.argmin(ranks.present), requests.queue[s.head]
        prompts.rank[request] = rank
        ranks.present[rank] += 1
        _append(ranks, rank, request)
        s.head += 1
    members = len(ranks.heads) // len(prompts.ends)
    for group in range(len(prompts.ends)):
        first = group * members
        if prompts.ends[group] <= s.now:
            prompts.ends[group] = np.inf
            _hand_over(run, s, requests, ranks, prompts, moving, prompts.completed[group])
        if prompts.ends[group] == np.inf and np.max(ranks.present[first : first + members]) > 0:
            fullest, prompts.completed[group] = _fill(run, first, members, ranks, prompts)
            prompts.ends[group] = s.now + max(run.start_s + run.token_s * fullest, run.least_s)


@inlined_part
def _arrive(s, instances, moving):
    """The next cache to arrive does; returns the instance at which its request waits, each having its own in turn."""
    request = moving.values[0]
    drop(moving.keys, moving.values, 0, s.moving)
    s.moving -= 1
    home = request % len(instances.heads)
    _append(instances, home, request)
    return home


@inlined_part
def _end(run, s, requests, instances, decoding, noise):
    """The next sequence to end does; returns the instance that it leaves."""
    request, s.tokens = decoding.values[0], decoding.keys[0]
    drop(decoding.keys, decoding.values, 0, s.decoding)
    s.decoding -= 1
    home = request % len(instances.heads)
    instances.present[home] -= 1
    answer(s, requests, request)
    if run.jitter > 0.0:
        requests.tpot[request] *= luck(run, noise, request, max(requests.osl[request] - 1.0, 1.0))
    return home


@inlined_part
def _decode(s, requests, instances, home, decoding):
    """Requests that wait at an instance begin to decode, as long as it has slots."""
    while instances.heads[home] >= 0 and instances.present[home] < s.slots:
        request = instances.heads[home]
        instances.heads[home] = instances.following[request]
        instances.present[home] += 1
        requests.first[request] = s.now
        requests.ttft[request] = max(requests.ttft[request], s.now - requests.sent[request])
        ends = s.tokens + max(requests.osl[request] - 1.0, 1.0)
        push(decoding.keys, decoding.values, 0, s.decoding, ends, request)
        s.decoding += 1


@inlined_part
def _run(run, s, requests, ranks, prompts, moving, instances, decoding, watch, gaps, noise):
    """One event after the other, until the last answer."""
    while s.done < len(requests.isl):
        step = step_s(run, max(s.decoding / run.decode_ranks, 1.0))
        ends = s.now + (decoding.keys[0] - s.tokens) * step if s.decoding > 0 else np.inf
        begins = requests.starts[s.started] if s.started < len(requests.starts) else np.inf
        comes = next_ready_s(s, requests) if s.head < s.sent else np.inf
        arrives = moving.keys[0] if s.moving > 0 else np.inf
        next_s = max(min(begins, comes, np.min(prompts.ends), arrives), s.now)
        if watch[0] <= s.sent <= watch[1] and s.decoding > 0:
            count_gaps(gaps, step, s.decoding * max(min(next_s, ends) - s.now, 0.0) / step)
        if next_s < ends and s.decoding > 0:
            s.tokens += (next_s - s.now) / step
        s.now = min(next_s, ends)
        if next_s >= ends:
            home = _end(run, s, requests, instances, decoding, noise)
            _decode(s, requests, instances, home, decoding)
        elif begins <= next_s:
            send_starting(s, requests)
        elif arrives <= next_s:
            home = _arrive(s, instances, moving)
            _decode(s, requests, instances, home, decoding)
        else:
            _prefill(run, s, requests, ranks, prompts, moving)


@owning_part
def _queues(number, following):
    """So many empty queues."""
    return Queues(np.full(number, -1), np.full(number, -1), np.zeros(number, np.int64), following)


@owning_part
def disaggregated(run, requests, watch, gaps, noise):
    """Seconds until the last answer; `watch` are the first and the last request sent while gaps are counted."""
    count, following = len(requests.isl), np.full(len(requests.isl), -1)
    ranks = _queues(max(int(run.prefill_ranks), 1), following)
    instances = _queues(int(run.decode_instances), following)
    groups = len(ranks.heads) // int(run.prefill_members)
    prompts = Prompts(
        np.full(groups, np.inf), np.full(groups, -1), np.full(count, -1), requests.isl.copy(), np.full(count, -1)
    )
    moving = Heap(np.empty(count), np.empty(count, np.int64))
    decoding = Heap(np.empty(count), np.empty(count, np.int64))
    state = np.zeros(1, POOLS)
    s = state[0]
    s.slots = max(int(run.most_decoding * run.decode_ranks / len(instances.heads)), 1)
    _run(run, s, requests, ranks, prompts, moving, instances, decoding, watch, gaps, noise)
    return state[0].now  # read through the array, which must outlive `s`

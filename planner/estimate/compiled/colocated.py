"""numba loop of one attention rank that prefills and decodes; `planner.estimate.closed_loop` describes the model.

`run` is the record of a run (`ClosedLoops`), `s` of the state of its rank (`RANK`).
"""

import numpy as np

from planner.estimate.compiled.blocks import growth, in_blocks, steps_within, turn_of
from planner.estimate.compiled.quantiles import count_gaps
from planner.estimate.compiled.rank import RANK, Batch, drop_newest, forget, join, leave
from planner.estimate.compiled.sending import answer, next_ready_s, send_starting
from planner.estimate.compiled.steps import luck, step_s
from planner.simulate.fleet.instances import BLOCK_TOKENS
from planner.solvers.compilation.parts import inlined_part, owning_part

FULL = 0.9  # of a step's prompt tokens for which waiting prompts start
LEAST_ROOM = 0.1  # of a step's prompt tokens that decodes leave to prompts at least


@inlined_part
def _waiting_tokens(s, requests, enough):
    """Prompt tokens that wait, counted until they are enough."""
    tokens, head = 0.0, s.head
    while head < s.sent and requests.ready[requests.queue[head]] <= s.now and tokens < enough:
        tokens += requests.isl[requests.queue[head]]
        head += 1
    return tokens


@inlined_part
def _arrived(s, requests):
    """Whether a request that was not prefilled yet is at the scheduler."""
    return s.head < s.sent and next_ready_s(s, requests) <= s.now


@inlined_part
def _whole(requests, batch, request):
    """Tokens that a prefill writes: the prompt, and what was made of the answer before it was preempted."""
    return requests.isl[request] + batch.made[request]


@inlined_part
def _growth(run, s, batch, steps):
    """Tokens of the blocks that so many steps take; 0 where the cache never runs full, of which nobody asks."""
    return growth(batch.turns, s.decoding, s.steps, steps) if run.cache_tokens < np.inf else 0


@inlined_part
def _fits(run, s, batch, tokens):
    """Whether the cache has room for them, and for the tokens that their step decodes."""
    beside = 0 if s.apart else _growth(run, s, batch, 1)
    return s.held + in_blocks(tokens) + beside <= run.cache_tokens


@inlined_part
def _joins(run, s, requests, batch):
    """Whether the next step takes prompts; where decoding goes on, says in the state for how long it must."""
    s.blocked, s.left = False, 0
    if s.decoding >= s.most or not (s.current >= 0 or s.preempted > 0 or _arrived(s, requests)):
        return False
    if s.decoding == 0:
        s.since = -1
        return True
    if s.current < 0:
        following = batch.again[s.preempted - 1] if s.preempted > 0 else requests.queue[s.head]
        s.blocked = not _fits(run, s, batch, _whole(requests, batch, following))
    joins = not s.blocked and (s.before > 0.0 or s.steps % s.poll == 0)
    if joins and s.hold > 0 and s.before == 0.0:
        s.since = s.steps if s.since < 0 else s.since
        s.left = s.hold - (s.steps - s.since)
        enough = FULL * run.step_tokens
        joins = s.left <= 0 or _waiting_tokens(s, requests, enough) >= enough
    if joins:
        s.since = -1
    return joins


@inlined_part
def _take(run, s, requests, batch):
    """Puts prompts into the next step, as many tokens as it holds; returns their seconds."""
    room = run.step_tokens if s.apart else max(run.step_tokens - s.decoding, LEAST_ROOM * run.step_tokens)
    seconds, others, begin = run.start_s, s.decoding - s.fresh, s.fresh
    while room > 0.0 and others + s.fresh < s.most:
        if s.current < 0:
            if s.preempted == 0 and not _arrived(s, requests):
                break
            request = batch.again[s.preempted - 1] if s.preempted > 0 else requests.queue[s.head]
            whole = _whole(requests, batch, request)
            if not _fits(run, s, batch, whole) and others + s.fresh > 0:
                break
            if run.whole_prompts > 0.0:
                if whole > room and s.fresh > begin:
                    break
                room = max(room, whole)
            if s.preempted > 0:
                s.preempted -= 1
            else:
                s.head += 1
            s.current = request
            s.held += in_blocks(whole)
        rest = _whole(requests, batch, s.current) - s.before
        seconds += run.token_s * min(rest, room)
        if rest <= room:
            batch.fresh[s.fresh] = s.current
            s.fresh, s.current, s.before = s.fresh + 1, -1, 0.0
        else:
            s.before += room
        room -= min(rest, room)
    return seconds


@inlined_part
def _pass(run, s, noise, seconds, steps):
    """So many equal steps in a row go by."""
    if run.jitter > 0.0:
        seconds *= luck(run, noise, s.drawn, steps)
        s.drawn += 1
    s.now += seconds


@inlined_part
def _first_token(run, s, requests, batch, gaps, request):
    """A request was prefilled, for the first time or again, and decodes from now on."""
    if batch.made[request] == 0.0:
        requests.first[request] = s.now
        output_s = run.output_steps * (run.base_s + run.slope_s * s.decoding)
        requests.ttft[request] = s.now - requests.sent[request] + output_s
    elif s.watched:
        count_gaps(gaps, s.now - batch.last[request], 1.0)
    batch.turns[turn_of(s.steps, _whole(requests, batch, request))] += 1
    batch.made[request] += 1.0
    batch.last[request] = s.now
    batch.joined[request] = s.joined
    s.joined += 1
    join(s, batch, s.steps + max(requests.osl[request] - batch.made[request], 0.0), request)


@inlined_part
def _prefill(run, s, requests, batch, gaps, noise):
    """A step that takes prompts, and decodes beside them where steps are shared."""
    begin = s.fresh
    seconds = _take(run, s, requests, batch)
    if s.apart:
        lasts = max(run.base_s + seconds, run.least_s)
        s.behind += lasts
    else:
        lasts = max(step_s(run, s.decoding) + seconds, run.least_s)
        s.held += _growth(run, s, batch, 1)
        s.steps += 1
        if s.watched:
            count_gaps(gaps, lasts, s.decoding)
    _pass(run, s, noise, lasts, 1)
    for place in range(begin, s.fresh):
        _first_token(run, s, requests, batch, gaps, batch.fresh[place])
    if not s.apart:
        s.fresh = 0


@inlined_part
def _give_up(s, batch, tokens):
    """The cache of a sequence that holds so many tokens is free again."""
    batch.turns[turn_of(s.steps, tokens)] -= 1
    s.held -= in_blocks(tokens)


@inlined_part
def _preempt(s, requests, batch):
    """The sequence that joined last gives its place up, and waits in front of all others."""
    request, key = drop_newest(s, batch)
    batch.made[request] = requests.osl[request] - (key - s.steps)
    batch.last[request] = s.now
    _give_up(s, batch, _whole(requests, batch, request) - 1.0)
    batch.again[s.preempted] = request
    s.preempted += 1
    forget(s, batch, request)
    s.blocked = True


@inlined_part
def _equal_steps(run, s, requests, batch, step):
    """Steps of so many seconds that decode the same sequences, until one ends or something may come."""
    steps = max(int(np.ceil(batch.keys[s.oldest] - s.steps)), 1)
    if run.cache_tokens < np.inf:
        steps = steps_within(batch.turns, s.decoding, s.steps, run.cache_tokens - s.held, steps)
    if s.left > 0:
        steps = min(steps, s.left)
    if s.head < s.sent and s.decoding < s.most and not s.blocked:
        until = max(int(np.ceil((next_ready_s(s, requests) - s.now) / step)), 1)
        until += (s.poll - (s.steps + until) % s.poll) % s.poll
        steps = min(steps, until)
    if s.started < len(requests.starts):
        steps = min(steps, max(int(np.ceil((requests.starts[s.started] - s.now) / step)), 1))
    return steps


@inlined_part
def _decode(run, s, requests, batch, gaps, noise):
    """Steps that decode alone, as many as are equal."""
    while s.held + _growth(run, s, batch, 1) > run.cache_tokens and s.decoding > 1:
        _preempt(s, requests, batch)
    step = step_s(run, s.decoding)
    steps = _equal_steps(run, s, requests, batch, step)
    if s.watched:
        count_gaps(gaps, s.behind + step, s.decoding - s.fresh)
        for place in range(s.fresh):
            count_gaps(gaps, s.now + step - batch.last[batch.fresh[place]], 1.0)
        count_gaps(gaps, step, s.decoding * (steps - 1.0))
    s.fresh, s.behind = 0, 0.0
    _pass(run, s, noise, steps * step, steps)
    s.held += _growth(run, s, batch, steps)
    s.steps += steps


@inlined_part
def _end(s, requests, batch):
    """Sequences whose last token came leave, and their clients send what is left to send."""
    while s.decoding > 0 and batch.keys[s.oldest] <= s.steps:
        request = batch.values[s.oldest]
        leave(s, batch)
        _give_up(s, batch, requests.isl[request] + max(requests.osl[request], 1.0) - 1.0)
        forget(s, batch, request)
        answer(s, requests, request)


@inlined_part
def _run(run, s, requests, batch, watch, gaps, noise):
    """All steps of the rank, until the last answer."""
    while s.done < len(requests.isl):
        while s.started < len(requests.starts) and requests.starts[s.started] <= s.now:
            send_starting(s, requests)
        s.watched = watch[0] <= s.sent <= watch[1]
        if _joins(run, s, requests, batch):
            _prefill(run, s, requests, batch, gaps, noise)
        elif s.decoding > 0:
            _decode(run, s, requests, batch, gaps, noise)
        elif s.head < s.sent:
            s.now = max(s.now, next_ready_s(s, requests))
        else:
            s.now = requests.starts[s.started]
        _end(s, requests, batch)


@owning_part
def colocated(run, requests, watch, gaps, noise):
    """Seconds until the last answer; `watch` are the first and the last request sent while gaps are counted."""
    state = np.zeros(1, RANK)
    s = state[0]
    s.most, s.poll, s.hold = int(run.most_decoding), int(run.poll_steps), int(run.hold_steps)
    s.apart = run.prefill_first > 0.0
    s.in_turn = run.osl_spread == 0.0 and run.cache_tokens == np.inf
    s.current, s.since = -1, -1
    count, most = len(requests.isl), s.most + 1
    batch = Batch(
        np.empty(most), np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.int64), np.zeros(count),
        np.zeros(count), np.zeros(count, np.int64), np.zeros(BLOCK_TOKENS, np.int64),
    )  # fmt: skip
    _run(run, s, requests, batch, watch, gaps, noise)
    return state[0].now  # read through the array, which must outlive `s`

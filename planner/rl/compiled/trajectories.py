"""Simulates multi-turn trajectories on unequal workers (numba): tool calls, priorities, migration.

`planner.rl.rollouts.rollout` states what is simulated. The state is a tuple of arrays whose columns are named here;
suffixes: W workers, N trajectories, T turns of all trajectories, Q entries of queues, E pending events.
"""

from collections import namedtuple

import numpy as np
from numba import njit

from planner.solvers.compilation.kept import kept
from planner.solvers.compilation.parts import owning_part, part
from planner.solvers.compiled.heaps import drop, push

NONE = -1
DECODING = -2  # in NEXT of trajectories that run when a rollout is cut
STEP_S, SEQUENCE_S, TOKEN_S, PREFILL_S = range(4)  # of a curve
MAX_RUNNING, KV_TOKENS = range(2)
SEGMENT_S, CONTEXT, STEPS, EVENT_S, BUSY_S, PREFILL_TOKENS = range(6)  # of a worker: decoding since SEGMENT_S
RUNNING, RESERVED, RESIDENT, PLANNED, HEAD, QUEUE = range(6)
# of a trajectory; turns FIRST to LAST
FIRST, LAST, NOW, NEED, CONTEXT_TOKENS, TO_PREFILL, AT, NEXT, HOLDS, MADE = range(10)
OUTPUT, OBSERVATION = range(2)  # of a turn
TOOL_S, PREDICTED = range(2)
KEEP_KV, LONGEST_FIRST = range(2)  # of the options
THRESHOLD, MOVE_S, MOVE_TOKEN_S = range(3)
LEFT, DONE, MOVED = range(3)  # of the counters
WORKER, STARTED_S, ENDED_S = range(3)  # of the record of a turn

State = namedtuple(
    "State",
    "curve_W limit_W time_W count_W trajectory turn_tokens turn_s queue queue_end queue_head done_s key "
    "finish running event_s event counters flags moves record_T",
)


@part
def _post(s, time_s, event):
    push(s.event_s, s.event, 0, s.counters[LEFT], time_s, event)
    s.counters[LEFT] += 1


@part
def _cost_s(s, w, steps):
    """Seconds of `steps` decode steps from the start of the segment of worker `w`."""
    size = s.count_W[w, RUNNING]
    linear = s.curve_W[w, STEP_S] + s.curve_W[w, SEQUENCE_S] * size
    context = steps * s.time_W[w, CONTEXT] + size * steps * (steps - 1) / 2
    return steps * linear + s.curve_W[w, TOKEN_S] * context


@part
def _steps_until(s, w, time_s):
    """The fewest steps after which the segment of worker `w` has reached `time_s`."""
    start = s.time_W[w, SEGMENT_S]
    if time_s <= start:
        return 0
    size = s.count_W[w, RUNNING]
    bend = s.curve_W[w, TOKEN_S] * size / 2
    slope = s.curve_W[w, STEP_S] + s.curve_W[w, SEQUENCE_S] * size + s.curve_W[w, TOKEN_S] * s.time_W[w, CONTEXT] - bend
    far = time_s - start
    steps = int(np.ceil(2 * far / (slope + np.sqrt(slope * slope + 4 * bend * far))))
    while steps > 0 and start + _cost_s(s, w, steps - 1) >= time_s:
        steps -= 1
    while start + _cost_s(s, w, steps) < time_s:
        steps += 1
    return steps


@part
def _room(s, w, i):
    """Whether worker `w` has a slot and, where none is reserved yet, KV for trajectory `i`."""
    if s.count_W[w, RUNNING] >= s.limit_W[w, MAX_RUNNING]:
        return False
    reserved = s.count_W[w, RESERVED]
    return s.trajectory[i, HOLDS] == 1 or reserved == 0 or reserved + s.trajectory[i, NEED] <= s.limit_W[w, KV_TOKENS]


@part
def _admit(s, w, i, now):
    """Trajectory `i` decodes on worker `w` from its next step on; its tokens to prefill are counted first."""
    row = s.trajectory[i]
    s.record_T[row[NOW], WORKER] = w
    s.record_T[row[NOW], STARTED_S] = now
    if row[HOLDS] == 0:
        row[HOLDS] = 1
        s.count_W[w, RESERVED] += row[NEED]
    if row[AT] == NONE:
        row[AT] = w
        s.count_W[w, RESIDENT] += 1
    base = w * (len(s.finish) // len(s.count_W))
    ends = s.time_W[w, STEPS] + s.turn_tokens[row[NOW], OUTPUT] - row[MADE]
    push(s.finish, s.running, base, s.count_W[w, RUNNING], ends, i)
    s.count_W[w, RUNNING] += 1
    s.time_W[w, CONTEXT] += row[CONTEXT_TOKENS]
    s.time_W[w, PREFILL_TOKENS] += row[TO_PREFILL]
    row[TO_PREFILL] = 0


@part
def _goes_before(s, first, other):
    if s.trajectory[first, HOLDS] != s.trajectory[other, HOLDS]:
        return s.trajectory[first, HOLDS] > s.trajectory[other, HOLDS]
    return s.key[first] < s.key[other] or (s.key[first] == s.key[other] and first < other)


@part
def _wait(s, w, i):
    """Puts trajectory `i` into the waiting list of worker `w`.

    Those that hold KV come first: behind one that waits for KV they would wait for what they hold themselves. Then the
    smallest key, ties to the smaller index.
    """
    before, after = NONE, s.count_W[w, HEAD]
    while after != NONE and _goes_before(s, after, i):
        before, after = after, s.trajectory[after, NEXT]
    s.trajectory[i, NEXT] = after
    if before == NONE:
        s.count_W[w, HEAD] = i
    else:
        s.trajectory[before, NEXT] = i


@part
def _admit_all(s, w, now):
    """Those that wait at the worker, then the head of its queue, for as long as there is room; none is skipped."""
    while s.count_W[w, HEAD] != NONE:
        i = s.count_W[w, HEAD]
        if not _room(s, w, i):
            return
        s.count_W[w, HEAD] = s.trajectory[i, NEXT]
        _admit(s, w, i, now)
    q = s.count_W[w, QUEUE]
    while s.queue_head[q] < s.queue_end[q] and _room(s, w, s.queue[s.queue_head[q]]):
        i = s.queue[s.queue_head[q]]
        s.queue_head[q] += 1
        _admit(s, w, i, now)


@part
def _start_segment(s, w, now):
    """Prefills what was admitted, then decodes until the next turn ends."""
    prefill_s = s.time_W[w, PREFILL_TOKENS] * s.curve_W[w, PREFILL_S]
    s.time_W[w, PREFILL_TOKENS] = 0
    s.time_W[w, SEGMENT_S] = now + prefill_s
    s.time_W[w, BUSY_S] += prefill_s
    s.time_W[w, EVENT_S] = np.inf
    if s.count_W[w, RUNNING] > 0:
        base = w * (len(s.finish) // len(s.count_W))
        _plan(s, w, int(s.finish[base] - s.time_W[w, STEPS]))


@part
def _plan(s, w, steps):
    s.count_W[w, PLANNED] = steps
    s.time_W[w, EVENT_S] = s.time_W[w, SEGMENT_S] + _cost_s(s, w, steps)
    _post(s, s.time_W[w, EVENT_S], w)


@part
def _advance(s, w, steps):
    """Books `steps` decode steps of the running segment."""
    s.time_W[w, BUSY_S] += _cost_s(s, w, steps)
    s.time_W[w, CONTEXT] += s.count_W[w, RUNNING] * steps
    s.time_W[w, STEPS] += steps


@part
def _leave(s, w, i):
    """Trajectory `i` and its KV leave worker `w`."""
    row = s.trajectory[i]
    if row[HOLDS] == 1:
        s.count_W[w, RESERVED] -= row[NEED]
        row[HOLDS] = 0
    s.count_W[w, RESIDENT] -= 1
    row[AT] = NONE


@part
def _target(s, w, i):
    """The worker with the shortest step for one more, if that beats the present one by the threshold; else `w`."""
    if np.isinf(s.moves[THRESHOLD]):
        return w
    here_s = s.curve_W[w, STEP_S] + s.curve_W[w, SEQUENCE_S] * s.count_W[w, RESIDENT]
    best, best_s = w, np.inf
    for v in range(len(s.count_W)):
        reserved = s.count_W[v, RESERVED]
        fits = s.trajectory[i, NEED] <= s.limit_W[v, KV_TOKENS] - reserved
        there_s = s.curve_W[v, STEP_S] + s.curve_W[v, SEQUENCE_S] * (s.count_W[v, RESIDENT] + 1)
        if v != w and fits and there_s < best_s:
            best, best_s = v, there_s
    return best if here_s > s.moves[THRESHOLD] * best_s else w


@part
def _end_turn(s, w, i, now):
    """The turn of `i` ends: it is done, or calls its tool and comes back later, here or elsewhere."""
    row = s.trajectory[i]
    s.record_T[row[NOW], ENDED_S] = now
    s.count_W[w, RUNNING] -= 1
    row[CONTEXT_TOKENS] += s.turn_tokens[row[NOW], OUTPUT] - row[MADE]
    s.time_W[w, CONTEXT] -= row[CONTEXT_TOKENS]
    row[MADE] = 0
    if row[NOW] == row[LAST]:
        _leave(s, w, i)
        s.done_s[i] = now
        s.counters[DONE] += 1
        return
    ready_s = now + s.turn_s[row[NOW], TOOL_S]
    v = _target(s, w, i)
    if s.flags[KEEP_KV] == 0:
        s.count_W[w, RESERVED] -= row[NEED]
        row[HOLDS] = 0
    if v != w:
        s.counters[MOVED] += 1
        if s.flags[KEEP_KV] == 1:
            ready_s = max(ready_s, now + s.moves[MOVE_S] + s.moves[MOVE_TOKEN_S] * row[CONTEXT_TOKENS])
        _leave(s, w, i)
        row[AT] = v
        s.count_W[v, RESIDENT] += 1
        if s.flags[KEEP_KV] == 1:
            row[HOLDS] = 1
            s.count_W[v, RESERVED] += row[NEED]
    row[CONTEXT_TOKENS] += s.turn_tokens[row[NOW], OBSERVATION]
    row[TO_PREFILL] = s.turn_tokens[row[NOW], OBSERVATION] if s.flags[KEEP_KV] == 1 else row[CONTEXT_TOKENS]
    row[NOW] += 1
    s.key[i] = ready_s
    _post(s, ready_s, len(s.count_W) + i)


@part
def _work(s, w, now):
    """The event of a worker: turns that end now leave, others enter, decoding goes on."""
    _advance(s, w, s.count_W[w, PLANNED])
    base = w * (len(s.finish) // len(s.count_W))
    while s.count_W[w, RUNNING] > 0 and s.finish[base] == s.time_W[w, STEPS]:
        i = s.running[base]
        drop(s.finish, s.running, base, s.count_W[w, RUNNING])
        _end_turn(s, w, i, now)
    _admit_all(s, w, now)
    _start_segment(s, w, now)


@part
def _come(s, i, now):
    """Trajectory `i` comes to its worker: it enters at the end of the running step, at once where none runs."""
    w = s.trajectory[i, AT]
    s.key[i] = -s.turn_s[s.trajectory[i, NOW], PREDICTED] if s.flags[LONGEST_FIRST] == 1 else now
    _wait(s, w, i)
    if s.count_W[w, RUNNING] == 0:
        start_s = max(now, s.time_W[w, SEGMENT_S])
        _admit_all(s, w, start_s)
        _start_segment(s, w, start_s)
    elif _room(s, w, s.count_W[w, HEAD]):
        steps = _steps_until(s, w, now)
        if steps < s.count_W[w, PLANNED]:
            _plan(s, w, steps)


@owning_part
def _deal(s):
    """The first deal of every queue: round robin over its workers until none of them admits its head."""
    workers = np.empty(len(s.count_W), np.int64)
    for q in range(len(s.queue_end)):
        num = 0
        for w in range(len(s.count_W)):
            if s.count_W[w, QUEUE] == q:
                workers[num] = w
                num += 1
        refused = position = 0
        while refused < num and s.queue_head[q] < s.queue_end[q]:
            i = s.queue[s.queue_head[q]]
            if _room(s, workers[position], i):
                _admit(s, workers[position], i, s.time_W[workers[position], SEGMENT_S])
                s.queue_head[q] += 1
                refused = 0
            else:
                refused += 1
            position = (position + 1) % num


@kept
@njit
def run_trajectories(s, stop_after, until_s, arrival_s):
    """Simulates until `stop_after` trajectories are done, or all, or up to `until_s`; returns when that is.

    Finite entries of `arrival_s` [N] come to worker AT of their trajectory at that time and are in no queue.
    """
    workers = len(s.count_W)
    for i in range(len(arrival_s)):
        if np.isfinite(arrival_s[i]):
            s.count_W[s.trajectory[i, AT], RESIDENT] += 1
            _post(s, arrival_s[i], workers + i)
    _deal(s)
    for w in range(workers):
        _start_segment(s, w, s.time_W[w, SEGMENT_S])
    now = 0.0
    while s.counters[LEFT] > 0 and s.counters[DONE] < stop_after:
        if s.event_s[0] > until_s:
            now = until_s
            break
        now, event = s.event_s[0], s.event[0]
        drop(s.event_s, s.event, 0, s.counters[LEFT])
        s.counters[LEFT] -= 1
        if event >= workers:
            _come(s, event - workers, now)
        elif now == s.time_W[event, EVENT_S]:
            _work(s, event, now)
    _cut(s, now)
    return now


@part
def _cut(s, now):
    """What running trajectories made until `now`: whole steps, in MADE and CONTEXT_TOKENS; key: end of the last."""
    for w in range(len(s.count_W)):
        i = s.count_W[w, HEAD]
        while i != NONE:
            s.key[i] = now
            i = s.trajectory[i, NEXT]
        if s.count_W[w, RUNNING] == 0:
            continue
        steps = min(_steps_until(s, w, now), s.count_W[w, PLANNED])
        if steps > 0 and s.time_W[w, SEGMENT_S] + _cost_s(s, w, steps) > now:
            steps -= 1
        last_s = s.time_W[w, SEGMENT_S] + _cost_s(s, w, steps)
        _advance(s, w, steps)
        base = w * (len(s.finish) // len(s.count_W))
        for place in range(s.count_W[w, RUNNING]):
            i = s.running[base + place]
            output = s.turn_tokens[s.trajectory[i, NOW], OUTPUT]
            made = output - int(s.finish[base + place] - s.time_W[w, STEPS])
            s.trajectory[i, CONTEXT_TOKENS] += made - s.trajectory[i, MADE]
            s.trajectory[i, MADE] = made
            s.key[i] = last_s
            s.trajectory[i, NEXT] = DECODING

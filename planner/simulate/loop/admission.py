"""Scheduler of an engine: continuous batching, chunked prefill, admission of waiting requests, preemption.

`i` is the row of the running batch that gets its next step, `engine` that of the instance whose it is: the same, but
for the further batches of a pipeline.
"""

import numpy as np

from planner.simulate.loop.adapters import acquire
from planner.simulate.loop.fields import (
    ARRIVED,
    ASYNCHRONOUS,
    BLOCK_TOKENS,
    CACHED,
    CHAIN,
    CHUNK,
    CHUNKED,
    CONTEXT,
    CUT,
    DECODE,
    DECODING,
    DONE,
    DUE,
    ENDING,
    ENDS,
    ENGINE,
    ENTRY,
    FEEDBACK,
    FINISH,
    FORMS,
    FREE,
    GENERATED,
    HANDED,
    HIT_TOKENS,
    HOLDING,
    HOME,
    HOST_FREE,
    INPUT,
    ITERATION,
    KEY,
    LEFT,
    LISTED,
    LONGEST_STRETCH,
    MIXED,
    MOST_SEQUENCES,
    MOVING,
    NONE,
    NUM_ENDING,
    OUTPUT,
    PARTIAL,
    PASS,
    PENALTY,
    PLACE,
    POLICY,
    PREEMPTED,
    PREEMPTION_COUNT,
    PREFILL_PAIRS,
    PREFILLING,
    QUANTUM,
    QUEUE,
    QUEUED,
    QUEUED_BLOCKS,
    QUEUEING,
    RANK,
    RESERVED,
    RESERVES,
    ROLE,
    SEQUENCES,
    SIBLING,
    SINGLE,
    STAGES,
    STALLED,
    START,
    STARTED,
    STATE,
    STATED_HITS,
    STEP_TOKENS,
    STEPS,
    STORE_RATE,
    SWAP_RATE,
    SWAPPED,
    SWAPS,
    TOKEN_BUDGET,
    TRANSFERS,
    WAITING,
    WATERMARK,
)
from planner.simulate.loop.heaps import drop_batch, goes_before, pop, push, push_batch, set_end
from planner.simulate.loop.links import transferred_s
from planner.simulate.loop.memory import (
    blocks_before,
    blocks_of,
    blocks_of_context,
    cached_blocks,
    give_up,
    growth,
    held_blocks,
    hold,
    most_cached,
    name_blocks,
    needed_blocks,
    own_blocks,
    room,
    stored_tokens,
    take,
)
from planner.simulate.loop.program import compiled
from planner.simulate.loop.speculation import take_drafts
from planner.simulate.loop.state import RunState
from planner.simulate.loop.steps import decode_steps, mixed_step_s
from planner.simulate.loop.stretches import batch_row, wake


@compiled
def enqueue(s: RunState, engine: int, r: int) -> None:
    """Puts a request into the queue of an instance."""
    s.instance[engine, QUEUE] = push(s, s.instance[engine, QUEUE], r)
    s.instance[engine, QUEUED] += 1
    s.instance[engine, QUEUED_BLOCKS] += blocks_of(s, s.request[r, INPUT] + s.request[r, GENERATED])


@compiled
def dequeue(s: RunState, engine: int) -> int:
    """Takes the first request out of the queue."""
    r = s.instance[engine, QUEUE]
    s.instance[engine, QUEUE] = pop(s, r)
    s.instance[engine, QUEUED] -= 1
    s.instance[engine, QUEUED_BLOCKS] -= blocks_of(s, s.request[r, INPUT] + s.request[r, GENERATED])
    return int(r)


@compiled
def start_decoding(s: RunState, i: int, r: int) -> None:
    """Adds a request, its cache in place, to the decoding batch.

    A sequence takes a block at the decode iterations that equal its residue, modulo the tokens of a block.
    """
    left = s.request[r, OUTPUT] - s.request[r, GENERATED]
    s.request[r, FINISH] = s.instance[i, ITERATION] + left
    s.request[r, STATE] = DECODING
    s.request[r, HOME] = i
    s.request_s[r, DUE] = -1.0
    s.instance[i, CONTEXT] += s.request[r, INPUT] + s.request[r, GENERATED]
    s.residue[i, residue_of(s, r)] += 1
    push_batch(s, i, r)


@compiled
def residue_of(s: RunState, r: int) -> int:
    """The iteration, negated and modulo the tokens of a block, at which a decoding request takes a block."""
    return int((s.request[r, INPUT] + s.request[r, OUTPUT] - s.request[r, FINISH] - 1) % s.residue.shape[1])


@compiled
def stop_decoding(s: RunState, i: int, r: int) -> None:
    """Takes a request out of the decoding batch, with the tokens that it has by now."""
    left = s.request[r, FINISH] - s.instance[i, ITERATION]
    s.request[r, GENERATED] = s.request[r, OUTPUT] - left
    s.instance[i, CONTEXT] -= s.request[r, INPUT] + s.request[r, GENERATED]
    s.residue[i, residue_of(s, r)] -= 1
    drop_batch(s, i, s.request[r, PLACE])


@compiled
def partial_at_rest(s: RunState, engine: int) -> int:
    """The request whose prefill is cut, unless a part of it is in flight; NONE if there is none."""
    r = s.instance[engine, PARTIAL]
    if s.instance[engine, STAGES] > 1 and r != NONE:
        for number in range(s.instance[engine, STAGES]):
            row = batch_row(s, engine, number)
            cut = s.instance[row, STEPS] > 0 and s.instance[row, CUT] == 1
            if cut and s.listed[row, s.instance[row, LISTED] - 1] == r:
                return NONE
    return int(r)


@compiled
def last_running(s: RunState, i: int) -> int:
    """The running request that the queue's order puts last, but for those in flight; NONE if nothing runs."""
    last = partial_at_rest(s, s.instance[i, ENGINE])
    for place in range(s.instance[i, SEQUENCES]):
        r = s.batch[i, place]
        if last == NONE or goes_before(s, last, r):
            last = r
    for place in range(s.instance[i, NUM_ENDING]):
        r = s.ending[i, place]
        if s.request[r, STATE] == ENDING and (last == NONE or goes_before(s, last, r)):
            last = r
    return int(last)


@compiled
def preempt(s: RunState, i: int, r: int, now_s: float) -> None:
    """Takes a running request back into the queue: to host memory where that has room, else to be computed again.

    One that is in its last step has its answer when that ends, and gives up its blocks before.
    """
    engine = s.instance[i, ENGINE]
    s.request[r, PREEMPTED] += 1
    s.instance[engine, PREEMPTION_COUNT] += 1
    if s.request[r, STATE] == ENDING:
        s.request[r, STATE] = WAITING
        s.instance[i, HOLDING] -= 1
        give_up(s, engine, r, s.request[r, INPUT] + s.request[r, OUTPUT] - 1)
        return
    if r == s.instance[engine, PARTIAL]:
        s.instance[engine, PARTIAL] = NONE
        s.request[r, STATE] = WAITING
        tokens = s.request[r, DONE]
    else:
        stop_decoding(s, i, r)
        if s.request_s[r, DUE] >= 0.0:
            s.request_s[r, LEFT] = max(s.request_s[r, DUE] - now_s, 0.0)
        tokens = s.request[r, INPUT] + s.request[r, GENERATED] - 1
        blocks = blocks_of(s, tokens)
        s.request[r, STATE] = WAITING
        s.request[r, HOME] = engine
        if s.instance[engine, SWAPS] == 1 and s.instance[engine, HOST_FREE] >= blocks:
            s.request[r, STATE] = SWAPPED
            s.instance[engine, HOST_FREE] -= blocks
            s.instance_s[engine, PENALTY] += blocks / s.instance_s[engine, SWAP_RATE]
    give_up(s, engine, r, tokens)
    enqueue(s, engine, r)


@compiled
def make_room(s: RunState, i: int, now_s: float) -> bool:
    """Preempts until the next decode step has its blocks; whether any was."""
    engine, preempted = s.instance[i, ENGINE], False
    while s.instance[i, SEQUENCES] > 0 and growth(s, i, s.instance[i, ITERATION]) > room(s, engine):
        preempt(s, i, last_running(s, i), now_s)
        preempted = True
    return preempted


@compiled
def add_chunk(s: RunState, i: int, r: int, tokens: int) -> None:
    """Adds the next tokens of a prompt to the step."""
    engine, before, total = s.instance[i, ENGINE], s.request[r, DONE], s.instance[i, STEP_TOKENS]
    pairs = s.instance_s[i, PREFILL_PAIRS] + tokens * (before + (tokens + 1) / 2)
    s.instance_s[i, PREFILL_PAIRS] = pairs
    s.instance[i, STEP_TOKENS] = total + tokens
    s.request[r, DONE] = before + tokens
    s.request[r, CHUNK] = tokens
    take(s, engine, held_blocks(s, engine, r, before + tokens) - held_blocks(s, engine, r, before))
    name_blocks(s, engine, r)
    s.listed[i, s.instance[i, LISTED]] = r
    s.instance[i, LISTED] += 1
    cut = s.request[r, DONE] < s.request[r, INPUT] + s.request[r, GENERATED]
    s.instance[i, CUT] = 1 if cut else 0
    s.instance[engine, PARTIAL] = r if cut else NONE


@compiled
def chunk_of(s: RunState, i: int, whole: int, budget: int) -> int:
    """Tokens of a prompt that the step takes; 0 if it must wait."""
    if whole <= budget or s.instance[i, CHUNKED] == 1:
        return min(whole, budget)
    return whole if s.instance[i, LISTED] == 0 and budget > 0 else 0


@compiled
def admit_prompt(s: RunState, i: int, r: int, budget: int, margin: int, now_s: float) -> bool:
    """Admits a waiting prompt if budget and memory allow."""
    engine = s.instance[i, ENGINE]
    whole = s.request[r, INPUT] + s.request[r, GENERATED]
    hits = cached_blocks(s, engine, r)
    own = own_blocks(s, engine, r, hits)
    if own > 0:
        hits = blocks_before(s, r, s.request[r, CHAIN])
    cached = own * s.run[BLOCK_TOKENS]
    for index in range(s.prefix_of[r], s.prefix_of[r] + hits):
        cached += s.prefix_size[s.prefix[index], 0]
    stored = stored_tokens(s, r, hits) if own == 0 else 0
    stated = s.request[r, STATED_HITS] if s.instance[engine, ROLE] != DECODE else 0
    cached = min(max(min(cached + stored, most_cached(s, r)), stated), whole - 1)
    tokens = chunk_of(s, i, whole - cached, budget)
    if tokens == 0 or needed_blocks(s, engine, r, hits, whole) > room(s, engine) - margin or not acquire(s, engine, r):
        return False
    dequeue(s, engine)
    hold(s, engine, r, hits, own, cached)
    s.request[r, STATE] = PREFILLING
    s.request[r, DONE] = cached
    s.instance[engine, HIT_TOKENS] += cached
    s.instance_s[engine, PENALTY] += stored / s.run_s[STORE_RATE]
    if s.request_s[r, STARTED] < 0.0:
        s.request_s[r, STARTED] = now_s
        s.request[r, CACHED] = cached
    add_chunk(s, i, r, tokens)
    return True


@compiled
def admit_cache(s: RunState, engine: int, r: int, margin: int, now_s: float) -> bool:
    """Admits a request whose cache is elsewhere, if memory allows; it comes over the links between the instances."""
    tokens = s.request[r, INPUT] + s.request[r, GENERATED] - 1
    if blocks_of_context(s, engine, r, tokens + 1) > room(s, engine) - margin or not acquire(s, engine, r):
        return False
    dequeue(s, engine)
    take(s, engine, blocks_of_context(s, engine, r, tokens))
    s.request[r, STATE] = MOVING
    s.instance[engine, RESERVED] += 1
    s.request_s[r, RANK] = s.request_s[r, KEY]
    s.request_s[r, KEY] = transferred_s(s, s.request[r, ENTRY], engine, tokens, now_s)
    s.run[TRANSFERS] = push(s, s.run[TRANSFERS], r)
    return True


@compiled
def admit_swapped(s: RunState, i: int, r: int, margin: int) -> bool:
    """Admits a request from host memory, if there is room for it and the block that it may need next."""
    engine, tokens = s.instance[i, ENGINE], s.request[r, INPUT] + s.request[r, GENERATED] - 1
    if blocks_of_context(s, engine, r, tokens + 1) > room(s, engine) - margin or not acquire(s, engine, r):
        return False
    dequeue(s, engine)
    take(s, engine, blocks_of_context(s, engine, r, tokens))
    s.instance[engine, HOST_FREE] += blocks_of(s, tokens)
    s.instance_s[engine, PENALTY] += blocks_of(s, tokens) / s.instance_s[engine, SWAP_RATE]
    start_decoding(s, i, r)
    return True


@compiled
def running(s: RunState, i: int) -> int:
    """Sequences that count against the most that an instance runs, a prompt that is cut once."""
    total = s.instance[i, RESERVED] + s.instance[i, HOLDING] + (1 if s.instance[i, PARTIAL] != NONE else 0)
    for number in range(s.instance[i, STAGES]):
        row = batch_row(s, i, number)
        total += s.instance[row, SEQUENCES] + s.instance[row, LISTED] - s.instance[row, CUT]
    return int(total)


@compiled
def full(s: RunState, i: int) -> bool:
    """Whether an instance, or a batch that takes turns with others and has its share, runs as many as it may.

    Caches that come from elsewhere count against the instance alone (SGLang 0.5.23, srt/managers/scheduler.py, lines
    1237 and 4034; `_get_new_prebuilt_batch` of srt/disaggregation/decode.py).
    """
    engine = s.instance[i, ENGINE]
    most, stages = s.instance[engine, MOST_SEQUENCES], s.instance[engine, STAGES]
    handed = s.request[s.instance[engine, QUEUE], STATE] == HANDED
    if stages > 1 and s.instance[engine, POLICY] != MIXED and not handed:
        own = s.instance[i, SEQUENCES] + s.instance[i, LISTED]
        return bool(own >= max(most // stages, 1) or running(s, engine) >= most)
    return bool(running(s, engine) >= most)


@compiled
def margin_of(s: RunState, i: int) -> int:
    """Blocks that admission leaves: those of the decode step that prompts ride on, and the watermark unless empty."""
    margin = growth(s, i, s.instance[i, ITERATION]) if s.instance[i, POLICY] == MIXED else 0
    engine = s.instance[i, ENGINE]
    if running(s, engine) > 0:
        margin += s.instance[engine, WATERMARK]
    return int(margin)


@compiled
def admit(s: RunState, i: int, budget: int, now_s: float) -> None:
    """Admits from the queue, in its order, until one does not fit."""
    engine = s.instance[i, ENGINE]
    while s.instance[engine, QUEUE] != NONE and not full(s, i):
        r = s.instance[engine, QUEUE]
        margin = margin_of(s, i)
        left = budget - s.instance[i, STEP_TOKENS]
        if s.request[r, STATE] == WAITING:
            admitted = left > 0 and s.instance[engine, PARTIAL] == NONE and admit_prompt(s, i, r, left, margin, now_s)
        elif s.request[r, STATE] == HANDED:
            admitted = admit_cache(s, engine, r, margin, now_s)
        else:
            admitted = admit_swapped(s, i, r, margin)
        if not admitted:
            return


@compiled
def go_on(s: RunState, i: int, budget: int, now_s: float) -> bool:
    """Adds the next chunk of a cut prompt to the step, and preempts as long as there is no room; whether any was.

    Blocks are taken chunk by chunk, as in vLLM (0.33.0, `allocate_slots` in v1/core/kv_cache_manager.py), where the
    whole prompt must have room when it is admitted alone.
    """
    engine, preempted = s.instance[i, ENGINE], False
    while s.instance[engine, PARTIAL] != NONE and budget > 0:
        r, growing = s.instance[engine, PARTIAL], 0
        if s.instance[i, POLICY] == MIXED:
            growing = growth(s, i, s.instance[i, ITERATION])
        done = s.request[r, DONE]
        tokens = min(s.request[r, INPUT] + s.request[r, GENERATED] - done, budget)
        if held_blocks(s, engine, r, done + tokens) - held_blocks(s, engine, r, done) <= room(s, engine) - growing:
            add_chunk(s, i, r, tokens)
            return preempted
        last = last_running(s, i)
        if last == NONE:
            return preempted
        preempt(s, i, last, now_s)
        preempted = True
    return preempted


@compiled
def fill(s: RunState, i: int, budget: int, now_s: float) -> None:
    """Makes the prefill of the step: what is left of a cut prompt, then what the queue brings."""
    go_on(s, i, budget, now_s)
    admit(s, i, budget, now_s)


@compiled
def join_arrived(s: RunState, i: int) -> None:
    """Requests whose caches have arrived join the decoding batch."""
    engine = s.instance[i, ENGINE]
    r = s.instance[engine, ARRIVED]
    while r != NONE:
        after = s.request[r, SIBLING]
        s.instance[engine, RESERVED] -= 1
        start_decoding(s, i, r)
        r = after
    s.instance[engine, ARRIVED] = NONE


@compiled
def demote(s: RunState, i: int, now_s: float) -> None:
    """Moves decoding requests that have used up their quantum to the next level, which has twice the quantum."""
    for place in range(s.instance[i, SEQUENCES]):
        r = s.batch[i, place]
        if s.request_s[r, DUE] < 0.0:
            s.request_s[r, DUE] = now_s + s.request_s[r, LEFT]
        elif now_s >= s.request_s[r, DUE]:
            s.request_s[r, KEY] += 1.0
            s.request_s[r, DUE] = now_s + s.run_s[QUANTUM] * 2.0 ** s.request_s[r, KEY]


@compiled
def blocked(s: RunState, i: int, r: int) -> bool:
    """Whether a waiting request finds no place, or no room for its cache."""
    if full(s, i):
        return True
    engine = s.instance[i, ENGINE]
    tokens, free = s.request[r, INPUT] + s.request[r, GENERATED], room(s, engine) - margin_of(s, i)
    if s.request[r, STATE] == WAITING:
        return bool(needed_blocks(s, engine, r, cached_blocks(s, engine, r), tokens) > free)
    return bool(blocks_of_context(s, engine, r, tokens) > free)


@compiled
def make_way(s: RunState, i: int, now_s: float) -> None:
    """Preempts requests of lower levels for one of a higher level that is blocked."""
    engine = s.instance[i, ENGINE]
    while s.instance[engine, QUEUE] != NONE:
        r, last = s.instance[engine, QUEUE], last_running(s, i)
        if last == NONE or s.request_s[r, KEY] >= s.request_s[last, KEY] or not blocked(s, i, r):
            return
        preempt(s, i, last, now_s)


@compiled
def next_in_line(s: RunState, i: int) -> bool:
    """Whether the first of the feedback queue may get its turn at the next step: by its level, or as room is left."""
    engine = s.instance[i, ENGINE]
    if s.run[QUEUEING] != FEEDBACK or s.instance[engine, QUEUE] == NONE:
        return False
    r = s.instance[engine, QUEUE]
    return bool(s.request_s[r, KEY] < s.request_s[last_running(s, i), KEY] or not blocked(s, i, r))


@compiled
def quantum_end(s: RunState, i: int) -> float:
    """When the first of the decoding requests has used up its quantum; at once if one has only now begun."""
    end_s = np.inf
    if s.run[QUEUEING] == FEEDBACK:
        for place in range(s.instance[i, SEQUENCES]):
            end_s = min(end_s, s.request_s[s.batch[i, place], DUE])
    return end_s


@compiled
def awaits_end(s: RunState, i: int) -> bool:
    """Whether requests wait while others that are in their last step still hold their places and blocks."""
    return bool(s.instance[i, NUM_ENDING] > 0 and s.instance[i, QUEUE] != NONE)


@compiled
def looked_ahead(s: RunState, i: int) -> int:
    """Decode steps until the batch changes by itself: one finishes, or blocks run out."""
    steps = s.request[s.batch[i, 0], FINISH] - s.instance[i, ITERATION]
    steps = min(steps, LONGEST_STRETCH)
    free = s.instance[i, FREE]
    if s.instance[i, SINGLE] == 1:
        return 1
    if s.instance[i, RESERVES] == 1 or free >= s.instance[i, SEQUENCES] * (steps // s.residue.shape[1] + 1):
        return int(steps)
    for ahead in range(1, steps):
        free -= growth(s, i, s.instance[i, ITERATION] + ahead)
        if free < 0:
            return ahead
    return int(steps)


@compiled
def schedule(s: RunState, i: int, now_s: float) -> None:
    """Starts the next stretch of an instance that is between steps, if it has anything to do."""
    join_arrived(s, i)
    s.instance[i, LISTED] = s.instance[i, CUT] = s.instance[i, STEP_TOKENS] = 0
    s.instance_s[i, PREFILL_PAIRS] = 0.0
    preempted = False
    if s.run[QUEUEING] == FEEDBACK:
        demote(s, i, now_s)
        make_way(s, i, now_s)
    if s.instance[i, POLICY] == MIXED:
        preempted = make_room(s, i, now_s)
        if go_on(s, i, s.instance[i, TOKEN_BUDGET] - s.instance[i, SEQUENCES], now_s):
            preempted = True
        empty = s.instance[i, SEQUENCES] + s.instance[i, LISTED] == 0 and s.instance[i, ASYNCHRONOUS] == 0
        if not preempted or empty:
            admit(s, i, s.instance[i, TOKEN_BUDGET] - s.instance[i, SEQUENCES], now_s)
    else:
        fill(s, i, s.instance[i, TOKEN_BUDGET], now_s)
        if s.instance[i, LISTED] == 0:
            preempted = make_room(s, i, now_s)
        if preempted and s.instance[i, SEQUENCES] == 0:
            fill(s, i, s.instance[i, TOKEN_BUDGET], now_s)
    stalled = s.instance[i, POLICY] != MIXED and s.instance[i, LISTED] > 0
    s.instance[i, STALLED] = 1 if stalled else 0
    start_stretch(s, i, 0 if stalled else s.instance[i, SEQUENCES], preempted, now_s)


@compiled
def start_stretch(s: RunState, i: int, sequences: int, preempted: bool, now_s: float) -> None:
    """Sets start, end and length of the stretch; the blocks of its first step are taken now, of others as it ends.

    Of a step in a pipeline the seconds of work are set alone; when it ends depends on those before it.
    """
    engine = s.instance[i, ENGINE]
    staged = s.instance[engine, STAGES] > 1
    start_s = 0.0 if staged else now_s
    if s.instance[i, ASYNCHRONOUS] == 1:
        start_s = max(now_s, s.instance_s[i, ENDS])
    s.instance_s[i, START] = start_s
    if sequences > 0:
        take(s, engine, growth(s, i, s.instance[i, ITERATION]))
    take_drafts(s, i, sequences)
    penalty_s = s.instance_s[engine, PENALTY]
    steps, last_s, end_s = 1, start_s, start_s
    if s.instance[i, LISTED] > 0:
        attended = s.instance_s[i, PREFILL_PAIRS] / s.instance[i, STEP_TOKENS]
        end_s = start_s + mixed_step_s(s, i, sequences, s.instance[i, STEP_TOKENS], attended)
    elif sequences > 0:
        again = preempted or penalty_s > 0.0 or next_in_line(s, i) or awaits_end(s, i)
        steps, last_s, end_s = decode_steps(s, i, 1 if again else looked_ahead(s, i), quantum_end(s, i))
    else:
        steps, end_s, penalty_s = 0, np.inf, 0.0
    s.instance[i, STEPS] = steps
    if staged:
        s.instance_s[i, PASS] = end_s
        return
    if steps > 0:
        s.instance_s[i, PENALTY] = 0.0
    if s.instance[i, ASYNCHRONOUS] == 0:
        s.instance_s[i, ENDS] = end_s + penalty_s
        set_end(s, i, end_s + penalty_s)
    elif steps > 0:
        s.instance_s[i, ENDS] = end_s + penalty_s
        s.instance_s[i, FORMS] = last_s
        wake(s, i)
    else:
        s.instance_s[i, FORMS] = start_s
        set_end(s, i, start_s if start_s > now_s else np.inf)

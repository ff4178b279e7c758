"""Admission of waiting requests as budget and memory allow, and prompts in chunks.

`i` is the row of the running batch that gets its next step, `engine` that of the instance whose it is: the same, but
for the further batches of a pipeline.
"""

from planner.simulate.loop.adapters import acquire
from planner.simulate.loop.fields import (
    ARRIVED,
    BLOCK_TOKENS,
    CACHED,
    CHAIN,
    CHUNK,
    CHUNKED,
    CUT,
    DECODE,
    DONE,
    ENCODED,
    ENGINE,
    ENTRY,
    FETCH_FROM,
    FETCHED,
    GENERATED,
    HANDED,
    HIT_TOKENS,
    HOLDING,
    HOST_FREE,
    INPUT,
    ITERATION,
    KEY,
    LISTED,
    MIXED,
    MOST_SEQUENCES,
    MOVING,
    NONE,
    PARTIAL,
    PENALTY,
    POLICY,
    PREFILL_PAIRS,
    PREFILLING,
    QUEUE,
    RANK,
    RESERVED,
    ROLE,
    SEQUENCES,
    SIBLING,
    STAGES,
    STARTED,
    STATE,
    STATED_HITS,
    STEP_TOKENS,
    SWAP_RATE,
    TRANSFERS,
    WAITING,
    WATERMARK,
    WORKLOAD,
)
from planner.simulate.loop.heaps import push
from planner.simulate.loop.links import transferred_s
from planner.simulate.loop.memory import (
    blocks_before,
    blocks_of,
    blocks_of_context,
    cached_blocks,
    growth,
    held_blocks,
    hold,
    most_cached,
    name_blocks,
    needed_blocks,
    own_blocks,
    room,
    take,
)
from planner.simulate.loop.program import compiled
from planner.simulate.loop.scheduler.preemption import last_running, preempt
from planner.simulate.loop.scheduler.queues import dequeue, start_decoding
from planner.simulate.loop.state import RunState
from planner.simulate.loop.stretches import batch_row


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
    stated = s.request[r, STATED_HITS] if s.instance[engine, ROLE] != DECODE else 0
    if NONE < s.request[r, FETCH_FROM] <= hits:
        cached = max(cached, s.request[r, FETCHED])
    cached = min(max(min(cached, most_cached(s, r)), stated), whole - 1)
    tokens = chunk_of(s, i, whole - cached, budget)
    if tokens == 0 or needed_blocks(s, engine, r, hits, whole) > room(s, engine) - margin or not acquire(s, engine, r):
        return False
    dequeue(s, engine)
    hold(s, engine, r, hits, own, cached)
    s.request[r, STATE] = PREFILLING
    s.request[r, DONE] = cached
    s.instance[engine, HIT_TOKENS] += cached
    s.request[r, FETCHED] = 0
    if s.request_s[r, STARTED] < 0.0:
        s.request_s[r, STARTED] = now_s
        s.request[r, CACHED] = cached
    if s.request_s[r, ENCODED] > 0.0:
        run = s.encode_s[engine, s.request[r, WORKLOAD]]
        new = 1.0 - cached / whole
        s.instance_s[engine, PENALTY] += new * (run[0] + run[1] * s.request_s[r, ENCODED])
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

"""Arrivals: clients send requests, which front ends tokenise, and which are routed, queued, held back or rejected.

A request that is prefilled comes to a router once more, that of the instances that decode.
"""

import numpy as np

from planner.simulate.loop.fields import (
    ARRIVAL,
    BY_PRIORITY,
    CAPACITY,
    COMPLETE,
    DECODE,
    ENTRY,
    FEEDBACK,
    FETCH_FROM,
    FETCHING,
    FINISHED,
    FRONT,
    FRONT_BESIDE,
    FRONT_FREE,
    FRONT_READY,
    FRONT_REQUEST,
    FRONT_TOKEN,
    GENERATED,
    HANDED,
    HANDOVER,
    HOME,
    INPUT,
    KEY,
    LAST,
    LEFT,
    LOAD_TOKENS,
    MEMBERS,
    MODEL,
    MOST_SEQUENCES,
    NEXT_ARRIVAL,
    NEXT_CLIENT,
    NONE,
    NUM_CLOSED,
    NUM_COMPLETE,
    NUM_OPEN,
    NUM_REJECTED,
    OUTPUT,
    PENDING,
    PREDICTED,
    PREFILL,
    PRIORITY,
    QUANTUM,
    QUEUE,
    QUEUEING,
    REJECTED,
    REQUEST_OVERHEAD,
    RESERVED,
    ROLE,
    SEQUENCES,
    SERVES,
    SHORTEST,
    STATE,
    STEPS,
    SUCCESSOR,
    THINK,
    TIER,
    TO_COME,
    TOKENISED,
    UNROUTED,
    WAITING,
)
from planner.simulate.loop.heaps import pop, push
from planner.simulate.loop.memory import blocks_of, cached_blocks
from planner.simulate.loop.program import compiled
from planner.simulate.loop.routing import route, takes
from planner.simulate.loop.scheduler.queues import enqueue
from planner.simulate.loop.state import RunState
from planner.simulate.loop.steps import mixed_step_s, of_rank_tokens
from planner.simulate.loop.stretches import interrupt
from planner.simulate.loop.tiers.nested import fetched_s


@compiled
def order_key(s: RunState, i: int, r: int, now_s: float) -> float:
    """What the queue sorts a request by; in the feedback queue its level, the first whose quantum its prefill fits."""
    if s.run[QUEUEING] == BY_PRIORITY:
        return float(s.request[r, PRIORITY])
    if s.run[QUEUEING] == SHORTEST:
        return float(s.request[r, PREDICTED])
    if s.run[QUEUEING] == FEEDBACK:
        level, quantum_s, tokens = 0.0, s.run_s[QUANTUM], s.request[r, INPUT]
        prefill_s = mixed_step_s(s, i, 0 * tokens, tokens, (tokens + 1) / 2)
        prefill_s += of_rank_tokens(s, s.joint_s, i, tokens / s.instance[i, MEMBERS])
        while s.request[r, STATE] != HANDED and quantum_s < prefill_s:
            level, quantum_s = level + 1.0, 2.0 * quantum_s
        s.request_s[r, LEFT] = quantum_s
        return level
    return now_s


@compiled
def join(s: RunState, i: int, r: int, now_s: float) -> None:
    """Sends a request to an instance; one that is not in front waits behind others that cannot start either."""
    s.request[r, HOME] = i
    s.request_s[r, KEY] = order_key(s, i, r, now_s)
    s.outstanding[i] += 1
    s.instance[i, LOAD_TOKENS] += s.request[r, INPUT] + s.request[r, PREDICTED]
    enqueue(s, i, r)
    if s.instance[i, QUEUE] == r:
        full = s.instance[i, SEQUENCES] + s.instance[i, RESERVED] >= s.instance[i, MOST_SEQUENCES]
        if s.instance[i, STEPS] == 0 or not full or s.run[QUEUEING] == FEEDBACK:
            interrupt(s, i, now_s)


@compiled
def leave(s: RunState, i: int, r: int) -> None:
    """A request is gone from an instance."""
    s.outstanding[i] -= 1
    s.instance[i, LOAD_TOKENS] -= s.request[r, INPUT] + s.request[r, PREDICTED]


@compiled
def fits(s: RunState, i: int, r: int) -> bool:
    """Whether a request fits into an empty instance, from its first to its last token."""
    tokens = s.request[r, INPUT] + s.request[r, GENERATED if s.instance[i, ROLE] == PREFILL else OUTPUT]
    serves = s.request[r, LAST if s.instance[i, ROLE] == DECODE else MODEL]
    return bool(blocks_of(s, tokens) <= s.instance[i, CAPACITY] and s.instance[i, SERVES] == serves)


@compiled
def send(s: RunState, r: int, arrival_s: float) -> None:
    """A client sends a request at a time that is now known."""
    s.request_s[r, ARRIVAL] = arrival_s
    s.request_s[r, KEY] = arrival_s + s.run_s[REQUEST_OVERHEAD]
    s.run[PENDING] = push(s, s.run[PENDING], r)


@compiled
def answer(s: RunState, r: int, now_s: float) -> None:
    """A request is over; what its session or its client sends next is on its way."""
    after = s.request[r, SUCCESSOR]
    if after != NONE:
        send(s, after, now_s + s.request_s[after, THINK])
    elif r < s.run[NUM_CLOSED] and s.run[NEXT_CLIENT] < s.run[NUM_CLOSED]:
        after = s.run[NEXT_CLIENT]
        s.run[NEXT_CLIENT] += 1
        send(s, after, now_s + s.request_s[after, THINK])


@compiled
def complete(s: RunState, r: int, now_s: float) -> None:
    """A request has its last token, and holds nothing any more."""
    s.request[r, STATE] = COMPLETE
    s.request[r, GENERATED] = s.request[r, OUTPUT]
    s.request_s[r, FINISHED] = now_s
    s.run[NUM_COMPLETE] += 1
    answer(s, r, now_s)


@compiled
def reject(s: RunState, r: int, now_s: float) -> None:
    """A request that could never fit is over as well."""
    s.request[r, STATE] = REJECTED
    s.run[NUM_REJECTED] += 1
    answer(s, r, now_s)


@compiled
def next_arrival_s(s: RunState) -> float:
    """When the next request comes to the router, by what is known now; `inf` if none will."""
    moment = np.inf
    if s.run[PENDING] != NONE:
        moment = s.request_s[s.run[PENDING], KEY]
    if s.run[NEXT_ARRIVAL] < s.run[NUM_OPEN]:
        moment = min(moment, s.request_s[s.run[NEXT_ARRIVAL], ARRIVAL] + s.run_s[REQUEST_OVERHEAD])
    return float(moment)


@compiled
def next_arrived(s: RunState, now_s: float) -> int:
    """Takes the next of the requests that have come to the router by now; NONE if there is none left."""
    r = next_sent(s, now_s)
    while r != NONE and tokenises(s, r, now_s):
        r = next_sent(s, now_s)
    return r


@compiled
def tokenises(s: RunState, r: int, now_s: float) -> bool:
    """Whether a prompt goes through a front end first: that which is free soonest, and gives prompts in their order.

    Prompts that come while no engine is open, or once more because theirs has failed, are taken as they are.
    """
    tokens, first = s.request[r, INPUT], NONE
    turn_s, beside_s = s.run_s[FRONT_REQUEST] + s.run_s[FRONT_TOKEN] * tokens, s.run_s[FRONT_BESIDE] * tokens
    if s.request[r, STATE] != TO_COME or turn_s + beside_s == 0.0:
        return False
    for i in range(len(s.instance)):
        if takes(s, i, r, False):
            front = s.instance[i, FRONT]
            if first == NONE or s.instance_s[front, FRONT_FREE] < s.instance_s[first, FRONT_FREE]:
                first = front
    if first == NONE:
        return False
    free_s = max(now_s, s.instance_s[first, FRONT_FREE]) + turn_s
    ready_s = max(free_s + beside_s, s.instance_s[first, FRONT_READY])
    s.instance_s[first, FRONT_FREE], s.instance_s[first, FRONT_READY] = free_s, ready_s
    s.request[r, STATE] = TOKENISED
    s.request_s[r, KEY] = ready_s
    s.run[PENDING] = push(s, s.run[PENDING], r)
    return True


@compiled
def next_sent(s: RunState, now_s: float) -> int:
    """Takes the next of the requests that have come by now, to front ends or from them; NONE if there is none left."""
    r = s.run[NEXT_ARRIVAL]
    if r < s.run[NUM_OPEN] and s.request_s[r, ARRIVAL] + s.run_s[REQUEST_OVERHEAD] <= now_s:
        s.run[NEXT_ARRIVAL] += 1
        return int(r)
    r = s.run[PENDING]
    if r != NONE and s.request_s[r, KEY] <= now_s:
        s.run[PENDING] = pop(s, r)
        return int(r)
    return NONE


@compiled
def hold_back(s: RunState, r: int, now_s: float) -> None:
    """Keeps a request that no open instance takes until one opens."""
    if s.request[r, STATE] != HANDED:
        s.request[r, STATE] = WAITING
        s.request[r, HOME] = NONE
    s.request_s[r, KEY] = now_s
    s.run[UNROUTED] = push(s, s.run[UNROUTED], r)


@compiled
def arrive(s: RunState, r: int, now_s: float) -> None:
    """A request comes to the router; one that no instance could ever hold is rejected.

    What memory tiers have of its prompt, and the instance has not, is fetched before it joins that instance's queue.
    """
    i = s.request[r, HOME]
    if s.request[r, STATE] != FETCHING or not takes(s, i, r, False):
        i = route(s, r, now_s)
    if i == NONE:
        hold_back(s, r, now_s)
        return
    possible = fits(s, i, r)
    if possible and s.instance[i, ROLE] == PREFILL:
        last = len(s.instance) - 1
        while last >= 0 and (s.instance[last, ROLE] == PREFILL or not fits(s, last, r)):
            last -= 1
        possible = last >= 0
    if not possible:
        reject(s, r, now_s)
        return
    if s.run[TIER] != NONE and s.request[r, FETCH_FROM] == NONE:
        done_s = fetched_s(s, r, cached_blocks(s, i, r), now_s)
        if done_s > now_s:
            s.request[r, STATE], s.request[r, HOME] = FETCHING, i
            s.request_s[r, KEY] = done_s
            s.run[PENDING] = push(s, s.run[PENDING], r)
            return
    s.request[r, STATE] = WAITING
    s.request[r, ENTRY] = i
    join(s, i, r, now_s)


@compiled
def hand_over(s: RunState, r: int, now_s: float) -> None:
    """A request is prefilled; it goes on to a decode instance when it has been handed over.

    Until then it is with the instance that prefilled it; where that fails, it is sent again when this is seen.
    """
    s.request[r, STATE] = HANDED
    if s.run_s[HANDOVER] == 0.0:
        pass_on(s, r, now_s)
        return
    s.request[r, HOME] = s.request[r, ENTRY]
    s.request_s[r, KEY] = now_s + s.run_s[HANDOVER]
    s.run[PENDING] = push(s, s.run[PENDING], r)


@compiled
def pass_on(s: RunState, r: int, now_s: float) -> None:
    """A prefilled request goes on to a decode instance; its blocks stay until its cache has moved."""
    i = route(s, r, now_s)
    if i == NONE:
        hold_back(s, r, now_s)
    else:
        join(s, i, r, now_s)


@compiled
def come(s: RunState, r: int, now_s: float) -> None:
    """A request comes to its next router: to be prefilled, or to be decoded."""
    if s.request[r, STATE] == HANDED:
        pass_on(s, r, now_s)
    else:
        arrive(s, r, now_s)

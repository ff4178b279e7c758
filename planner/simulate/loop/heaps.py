"""Queues of the loop: a pairing heap of requests, the decoding batch, and the heap of instances by their next event."""

from planner.simulate.loop.fields import CHILD, END, EVENT, FINISH, KEY, NONE, PLACE, SEQUENCES, SIBLING
from planner.simulate.loop.program import State, compiled


@compiled
def goes_before(s: State, one: int, other: int) -> bool:
    """Whether a request precedes another in a queue: by key, then in the order given."""
    first, second = s.request_s[one, KEY], s.request_s[other, KEY]
    return bool(first < second or (first == second and one < other))


@compiled
def meld(s: State, one: int, other: int) -> int:
    """The root of two queues made one (pairing heap: Fredman et al., Algorithmica 1, 1986)."""
    if one == NONE:
        return other
    if other == NONE:
        return one
    if goes_before(s, other, one):
        one, other = other, one
    s.request[other, SIBLING] = s.request[one, CHILD]
    s.request[one, CHILD] = other
    return one


@compiled
def push(s: State, root: int, request: int) -> int:
    """The root of the queue with one more request."""
    s.request[request, CHILD] = NONE
    s.request[request, SIBLING] = NONE
    return meld(s, root, request)


@compiled
def pop(s: State, root: int) -> int:
    """The root of the queue without its first request."""
    paired = NONE
    left = s.request[root, CHILD]
    while left != NONE:
        right = s.request[left, SIBLING]
        if right == NONE:
            after = NONE
        else:
            after = s.request[right, SIBLING]
            s.request[right, SIBLING] = NONE
        s.request[left, SIBLING] = NONE
        both = meld(s, left, right)
        s.request[both, SIBLING] = paired
        paired = both
        left = after
    if paired == NONE:
        return NONE
    whole = paired
    paired = s.request[whole, SIBLING]
    s.request[whole, SIBLING] = NONE
    while paired != NONE:
        after = s.request[paired, SIBLING]
        s.request[paired, SIBLING] = NONE
        whole = meld(s, whole, paired)
        paired = after
    return whole


@compiled
def ends_before(s: State, one: int, other: int) -> bool:
    """Whether a decoding request finishes before another of its batch, ties in the order given."""
    first, second = s.request[one, FINISH], s.request[other, FINISH]
    return bool(first < second or (first == second and one < other))


@compiled
def settle_batch(s: State, i: int, place: int) -> None:
    """Moves the request at a place of the batch to where it belongs."""
    batch = s.batch[i]
    request = batch[place]
    while place > 0 and ends_before(s, request, batch[(place - 1) // 2]):
        above = (place - 1) // 2
        batch[place] = batch[above]
        s.request[batch[place], PLACE] = place
        place = above
    count = s.instance[i, SEQUENCES]
    while True:
        below = 2 * place + 1
        if below + 1 < count and ends_before(s, batch[below + 1], batch[below]):
            below += 1
        if below >= count or not ends_before(s, batch[below], request):
            break
        batch[place] = batch[below]
        s.request[batch[place], PLACE] = place
        place = below
    batch[place] = request
    s.request[request, PLACE] = place


@compiled
def push_batch(s: State, i: int, request: int) -> None:
    """Adds a request to the decoding batch."""
    place = s.instance[i, SEQUENCES]
    s.instance[i, SEQUENCES] = place + 1
    s.batch[i, place] = request
    settle_batch(s, i, place)


@compiled
def drop_batch(s: State, i: int, place: int) -> None:
    """Removes the request at a place from the decoding batch."""
    last = s.instance[i, SEQUENCES] - 1
    s.instance[i, SEQUENCES] = last
    if place < last:
        s.batch[i, place] = s.batch[i, last]
        settle_batch(s, i, place)


@compiled
def happens_before(s: State, one: int, other: int) -> bool:
    """Whether the stretch of an instance ends before that of another, ties by number."""
    first, second = s.instance_s[one, END], s.instance_s[other, END]
    return bool(first < second or (first == second and one < other))


@compiled
def set_end(s: State, i: int, end_s: float) -> None:
    """Moves the end of an instance's stretch; `inf` while it is idle."""
    s.instance_s[i, END] = end_s
    events = s.events
    place = s.instance[i, EVENT]
    while place > 0 and happens_before(s, i, events[(place - 1) // 2]):
        above = (place - 1) // 2
        events[place] = events[above]
        s.instance[events[place], EVENT] = place
        place = above
    count = len(events)
    while True:
        below = 2 * place + 1
        if below + 1 < count and happens_before(s, events[below + 1], events[below]):
            below += 1
        if below >= count or not happens_before(s, events[below], i):
            break
        events[place] = events[below]
        s.instance[events[place], EVENT] = place
        place = below
    events[place] = i
    s.instance[i, EVENT] = place

"""Priority queues of the event loop: a pairing heap of requests, and indexed binary heaps.

Binary heaps are the decoding batch, by the iteration that finishes a request, and the instances by their next event.
"""

from planner.arrays import Floats, Ints
from planner.simulate.loop.fields import CHILD, FINISH, KEY, NONE, PLACE, SEQUENCES, SIBLING
from planner.simulate.loop.program import compiled
from planner.simulate.loop.state import RunState


@compiled
def precedes(keys: Ints | Floats, column: int, item: int, other: int) -> bool:
    """Whether an item comes before another: by its key [item, column], ties by number."""
    first, second = keys[item, column], keys[other, column]
    return bool(first < second or (first == second and item < other))


@compiled
def goes_before(s: RunState, r: int, other: int) -> bool:
    """Whether a request precedes another in a queue: by key, then in the order given."""
    return precedes(s.request_s, KEY, r, other)


@compiled
def meld(s: RunState, r: int, other: int) -> int:
    """The root of two queues made one (pairing heap: Fredman et al., Algorithmica 1, 1986)."""
    if r == NONE:
        return other
    if other == NONE:
        return r
    if goes_before(s, other, r):
        r, other = other, r
    s.request[other, SIBLING] = s.request[r, CHILD]
    s.request[r, CHILD] = other
    return r


@compiled
def push(s: RunState, root: int, request: int) -> int:
    """The root of the queue with one more request."""
    s.request[request, CHILD] = NONE
    s.request[request, SIBLING] = NONE
    return meld(s, root, request)


@compiled
def pop(s: RunState, root: int) -> int:
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
def sift(heap: Ints, count: int, place: int, keys: Ints | Floats, key: int, places: Ints, column: int) -> None:
    """Moves the item at a place of a binary heap to where it belongs; `places` [item, column] says where items are."""
    item = heap[place]
    while place > 0 and precedes(keys, key, item, heap[(place - 1) // 2]):
        above = (place - 1) // 2
        heap[place] = heap[above]
        places[heap[place], column] = place
        place = above
    while True:
        below = 2 * place + 1
        if below + 1 < count and precedes(keys, key, heap[below + 1], heap[below]):
            below += 1
        if below >= count or not precedes(keys, key, heap[below], item):
            break
        heap[place] = heap[below]
        places[heap[place], column] = place
        place = below
    heap[place] = item
    places[item, column] = place


@compiled
def push_batch(s: RunState, i: int, request: int) -> None:
    """Adds a request to the decoding batch."""
    place = s.instance[i, SEQUENCES]
    s.instance[i, SEQUENCES] = place + 1
    s.batch[i, place] = request
    sift(s.batch[i], place + 1, place, s.request, FINISH, s.request, PLACE)


@compiled
def drop_batch(s: RunState, i: int, place: int) -> None:
    """Removes the request at a place from the decoding batch."""
    last = s.instance[i, SEQUENCES] - 1
    s.instance[i, SEQUENCES] = last
    if place < last:
        s.batch[i, place] = s.batch[i, last]
        sift(s.batch[i], last, place, s.request, FINISH, s.request, PLACE)


@compiled
def set_end(s: RunState, i: int, end_s: float) -> None:
    """Moves the end of an instance's stretch; `inf` while it is idle."""
    s.end_s[i, 0] = end_s
    sift(s.events, len(s.events), s.event[i, 0], s.end_s, 0, s.event, 0)

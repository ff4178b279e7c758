"""Priority queues of the event loop: pairing heaps of requests, binary ones of batches, a tournament tree of instances.

A decoding batch is a heap by the iteration that finishes a request. The tree (Knuth, The Art of Computer Programming 3,
section 5.4.1) has the instance whose stretch ends first: those that step together end together and begin again at
once, which moves an item through a whole heap, and in the tree is one comparison a level.
"""

from planner.simulate.loop.fields import CHILD, FINISH, KEY, NONE, PLACE, SEQUENCES, SIBLING
from planner.simulate.loop.program import compiled
from planner.simulate.loop.state import RunState


@compiled
def goes_before(s: RunState, r: int, other: int) -> bool:
    """Whether a request precedes another in a queue: by key, then in the order given."""
    first, second = s.request_s[r, KEY], s.request_s[other, KEY]
    return bool(first < second or (first == second and r < other))


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
def finishes_before(s: RunState, r: int, other: int) -> bool:
    """Whether a request of a decoding batch finishes before another, ties by number."""
    first, second = s.request[r, FINISH], s.request[other, FINISH]
    return bool(first < second or (first == second and r < other))


@compiled
def sift(s: RunState, i: int, place: int) -> None:
    """Moves the request at a place of a decoding batch to where it belongs."""
    batch, count = s.batch[i], s.instance[i, SEQUENCES]
    r = batch[place]
    while place > 0 and finishes_before(s, r, batch[(place - 1) // 2]):
        above = (place - 1) // 2
        batch[place] = batch[above]
        s.request[batch[place], PLACE] = place
        place = above
    while True:
        below = 2 * place + 1
        if below + 1 < count and finishes_before(s, batch[below + 1], batch[below]):
            below += 1
        if below >= count or not finishes_before(s, batch[below], r):
            break
        batch[place] = batch[below]
        s.request[batch[place], PLACE] = place
        place = below
    batch[place] = r
    s.request[r, PLACE] = place


@compiled
def push_batch(s: RunState, i: int, request: int) -> None:
    """Adds a request to the decoding batch."""
    place = s.instance[i, SEQUENCES]
    s.instance[i, SEQUENCES] = place + 1
    s.batch[i, place] = request
    sift(s, i, place)


@compiled
def drop_batch(s: RunState, i: int, place: int) -> None:
    """Removes the request at a place from the decoding batch."""
    last = s.instance[i, SEQUENCES] - 1
    s.instance[i, SEQUENCES] = last
    if place < last:
        s.batch[i, place] = s.batch[i, last]
        sift(s, i, place)


@compiled
def first_to_end(s: RunState) -> int:
    """The instance whose stretch ends first, of equal ones the first."""
    return int(s.winner[1])


@compiled
def set_end(s: RunState, i: int, end_s: float) -> None:
    """Moves the end of an instance's stretch; `inf` while it is idle.

    Compared again level by level, up to one where another instance is first as it was before.
    """
    s.end_s[i] = end_s
    place, winner = len(s.winner) // 2 + i, i
    while place > 1:
        other = s.winner[place ^ 1]
        other_s = s.end_s[other]
        if other_s < end_s or (other_s == end_s and other < winner):
            winner, end_s = other, other_s
        place //= 2
        if winner != i and s.winner[place] == winner:
            return
        s.winner[place] = winner

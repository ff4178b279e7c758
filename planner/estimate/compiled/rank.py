"""numba state of one attention rank that prefills and decodes, and the sequences that it decodes."""

from typing import NamedTuple

import numpy as np

from planner.arrays import Floats, Ints
from planner.estimate.compiled.sending import SENDING
from planner.solvers.compilation.parts import inlined_part, owning_part
from planner.solvers.compiled.heaps import drop, push

RANK = np.dtype([
    *SENDING,
    ("most", "i8"),  # sequences that decode
    ("poll", "i8"),  # decode steps between looks at new requests
    ("hold", "i8"),  # decode steps for which prompts wait for each other
    ("apart", "b1"),  # whether steps that take prompts decode nothing
    ("in_turn", "b1"),  # whether sequences end in the order in which they joined
    ("watched", "b1"),  # whether gaps between tokens are counted now
    ("steps", "i8"),  # that decoded
    ("held", "f8"),  # tokens of the blocks in use in the cache
    ("preempted", "i8"),  # sequences that wait to be prefilled again
    ("current", "i8"),  # the request whose prompt was cut, or -1
    ("before", "f8"),  # tokens of it that earlier steps took
    ("since", "i8"),  # the step from which on prompts wait for each other, or -1
    ("left", "i8"),  # steps for which they still do
    ("blocked", "b1"),  # whether the cache has no room for the next prompt
    ("decoding", "i8"),  # sequences
    ("oldest", "i8"),  # where the next to end stands
    ("joined", "i8"),  # sequences that ever decoded
    ("fresh", "i8"),  # sequences whose gap since the first token is not counted yet
    ("behind", "f8"),  # seconds of steps of prompts alone since the last step that decoded
    ("drawn", "i8"),  # factors by which chance made steps longer or shorter
], align=True)  # fmt: skip


class Batch(NamedTuple):
    """Sequences of a rank: a heap or a ring of those that decode, and lists of requests, all [most + 1]."""

    keys: Floats  # the step in which the last token comes
    values: Ints  # whose it is
    fresh: Ints  # requests whose gap since the first token is not counted yet
    again: Ints  # preempted requests, the next one last
    made: Floats  # tokens of the answer of each request [count]
    last: Floats  # when its last one came [count], where it was prefilled then or preempted
    joined: Ints  # how many sequences had joined before it [count]
    turns: Ints  # sequences that take a block of the cache at which steps (`planner.estimate.compiled.blocks`)


@inlined_part
def join(s, batch, key, request):
    """One more sequence that decodes: in a heap, or in a ring where those that came first end first."""
    if s.in_turn:
        place = (s.oldest + s.decoding) % len(batch.keys)
        batch.keys[place], batch.values[place] = key, request
    else:
        push(batch.keys, batch.values, 0, s.decoding, key, request)
    s.decoding += 1


@inlined_part
def leave(s, batch):
    """The next sequence to end does."""
    if s.in_turn:
        s.oldest = (s.oldest + 1) % len(batch.keys)
    else:
        drop(batch.keys, batch.values, 0, s.decoding)
    s.decoding -= 1


@inlined_part
def forget(s, batch, request):
    """Takes a request off the list of those whose gap since the first token is not counted yet, if it is there."""
    place = 0
    while place < s.fresh and batch.fresh[place] != request:
        place += 1
    if place < s.fresh:
        s.fresh -= 1
        batch.fresh[place] = batch.fresh[s.fresh]


@owning_part
def drop_newest(s, batch):
    """Takes the sequence that joined last from the heap; returns it, and the step of its last token."""
    newest = 0
    for place in range(s.decoding):
        if batch.joined[batch.values[place]] > batch.joined[batch.values[newest]]:
            newest = place
    request, key = batch.values[newest], batch.keys[newest]
    keys, values, size = batch.keys[: s.decoding].copy(), batch.values[: s.decoding].copy(), 0
    for place in range(s.decoding):
        if place != newest:
            push(batch.keys, batch.values, 0, size, keys[place], values[place])
            size += 1
    s.decoding = size
    return request, key

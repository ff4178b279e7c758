"""Speculative decoding: a draft model proposes tokens, one step of the model verifies them (arXiv:2211.17192).

A step with drafts takes the times of the verifying table and, for its time, the blocks of all drafts. A draft is right
with the chance `ACCEPTANCE` where those before it are; the step gives one token more than there are right drafts. One
whose drafts find no room goes without. The iteration at which a request finishes comes nearer by what is right.
"""

from planner.simulate.loop.fields import (
    ACCEPTANCE,
    ACCEPTED_TOKENS,
    CONTEXT,
    DECODE_TOKENS,
    DRAFT_BLOCKS,
    DRAFTS,
    ENGINE,
    FINISH,
    FREE,
    INPUT,
    ITERATION,
    NONE,
    OUTPUT,
    PLAIN_TABLE,
    RESERVES,
    SEED,
    SEQUENCES,
    TABLE,
    VERIFY_TABLE,
)
from planner.simulate.loop.heaps import push_batch
from planner.simulate.loop.memory import blocks_of, room, take
from planner.simulate.loop.program import compiled
from planner.simulate.loop.routing import draw
from planner.simulate.loop.state import RunState


@compiled
def more_blocks(s: RunState, i: int, tokens: int, more: int) -> int:
    """Blocks that a sequence of so many tokens takes to hold more."""
    if s.instance[i, RESERVES] == 1:
        return 0
    return blocks_of(s, tokens + more) - blocks_of(s, tokens)


@compiled
def take_drafts(s: RunState, i: int, sequences: int) -> None:
    """Takes the blocks of the drafts of the step that starts, and sets its step times."""
    s.instance[i, DRAFT_BLOCKS] = NONE
    s.instance[i, TABLE] = s.instance[i, PLAIN_TABLE]
    if s.instance[i, DRAFTS] == 0 or sequences == 0:
        return
    blocks = 0
    for place in range(sequences):
        r = s.batch[i, place]
        left = s.request[r, FINISH] - s.instance[i, ITERATION]
        tokens = s.request[r, INPUT] + s.request[r, OUTPUT] - left
        blocks += more_blocks(s, i, tokens, min(s.instance[i, DRAFTS], left - 1))
    engine = s.instance[i, ENGINE]
    if blocks <= room(s, engine):
        take(s, engine, blocks)
        s.instance[i, DRAFT_BLOCKS] = blocks
        s.instance[i, TABLE] = s.instance[i, VERIFY_TABLE]


@compiled
def right_drafts(s: RunState, i: int, r: int, generated: int, most: int) -> int:
    """Drafts after so many tokens that are right, one after another; the draws of routing have even numbers."""
    right = 0
    while right < most and draw(s.run[SEED] + 2 + generated + right, r, min(most, 1)) < s.instance_s[i, ACCEPTANCE]:
        right += 1
    return right


@compiled
def accept_drafts(s: RunState, i: int) -> None:
    """Right drafts of the step that ended become tokens; its iteration is counted already."""
    engine = s.instance[i, ENGINE]
    s.instance[engine, FREE] += s.instance[i, DRAFT_BLOCKS]
    s.instance[i, DRAFT_BLOCKS] = NONE
    count, size = s.instance[i, SEQUENCES], s.residue.shape[1]
    s.instance[i, SEQUENCES] = 0
    for place in range(count):
        r = s.batch[i, place]
        left = s.request[r, FINISH] - s.instance[i, ITERATION]
        ends = s.request[r, INPUT] + s.request[r, OUTPUT]
        right = right_drafts(s, i, r, s.request[r, OUTPUT] - left, min(s.instance[i, DRAFTS], left))
        take(s, engine, more_blocks(s, i, ends - left - 1, right))
        s.residue[i, (ends - s.request[r, FINISH] - 1) % size] -= 1
        s.request[r, FINISH] -= right
        s.residue[i, (ends - s.request[r, FINISH] - 1) % size] += 1
        s.instance[i, CONTEXT] += right
        s.instance[i, DECODE_TOKENS] += right
        s.instance[i, ACCEPTED_TOKENS] += right
        push_batch(s, i, r)

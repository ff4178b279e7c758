"""numba counts of the blocks of a KV cache that sequences take whole, in tokens.

Which decode steps take blocks, and how many, is kept by `turns` [BLOCK_TOKENS]: sequences that take their next block at
the steps of that number modulo the tokens of a block. Equal prompts that began together take theirs together.
"""

import numpy as np

from planner.simulate.fleet.instances import BLOCK_TOKENS
from planner.solvers.compilation.parts import part


@part
def in_blocks(tokens):
    """Tokens of the blocks that hold these."""
    return np.ceil(tokens / BLOCK_TOKENS) * BLOCK_TOKENS


@part
def turn_of(steps, tokens):
    """The decode step, modulo the tokens of a block, at which a sequence that holds these now takes a block."""
    return (steps - int(np.ceil(tokens))) % BLOCK_TOKENS


@part
def growth(turns, decoding, steps, ahead):
    """Tokens of the blocks that so many steps take, of sequences that take one at these turns [BLOCK_TOKENS]."""
    blocks = ahead // BLOCK_TOKENS * decoding
    for step in range(steps, steps + ahead % BLOCK_TOKENS):
        blocks += turns[step % BLOCK_TOKENS]
    return BLOCK_TOKENS * blocks


@part
def steps_within(turns, decoding, steps, room, ahead):
    """How many of the steps ahead find their blocks in so much room; the first is not asked."""
    each = BLOCK_TOKENS * decoding
    rounds = min(ahead // BLOCK_TOKENS, int(room / each))
    fit, room = rounds * BLOCK_TOKENS, room - rounds * each
    while fit < ahead and BLOCK_TOKENS * turns[(steps + fit) % BLOCK_TOKENS] <= room:
        room -= BLOCK_TOKENS * turns[(steps + fit) % BLOCK_TOKENS]
        fit += 1
    return max(fit, 1)

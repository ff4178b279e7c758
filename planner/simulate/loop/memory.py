"""Paged KV cache of an instance: blocks allocated and freed, prefix caching with LRU eviction.

A prefix block is shared by all requests whose prompts agree up to its end. What a request generates is its own. A store
that all instances share is a row of instances that never runs: blocks of prefilled prompts are kept there too.
"""

from planner.simulate.loop.adapters import release
from planner.simulate.loop.fields import (
    BLOCK_TOKENS,
    CACHES,
    CAPACITY,
    EVICTABLE,
    FREE,
    INPUT,
    ITERATION,
    NEWER,
    NEWEST,
    NONE,
    OLDER,
    OLDEST,
    OUTPUT,
    PEAK_BLOCKS,
    REFERENCES,
    RESERVES,
    SEQUENCES,
    SHARED,
    SHARED_BLOCKS,
    STORE,
)
from planner.simulate.loop.program import compiled
from planner.simulate.loop.state import RunState


@compiled
def blocks_of(s: RunState, tokens: int) -> int:
    """KV blocks that hold so many tokens."""
    size = s.run[BLOCK_TOKENS]
    return int((tokens + size - 1) // size)


@compiled
def blocks_of_context(s: RunState, i: int, r: int, tokens: int) -> int:
    """Blocks of a request with so many tokens in the cache, shared ones included."""
    if s.instance[i, RESERVES] == 1:
        return blocks_of(s, s.request[r, INPUT] + s.request[r, OUTPUT])
    return blocks_of(s, tokens)


@compiled
def room(s: RunState, i: int) -> int:
    """Blocks that can be had, cached prefixes given up."""
    return int(s.instance[i, FREE] + s.instance[i, EVICTABLE])


@compiled
def unlink(s: RunState, i: int, block: int) -> None:
    """Takes a prefix block out of those that may be evicted."""
    older, newer = s.cached[i, block, OLDER], s.cached[i, block, NEWER]
    if older == NONE:
        s.instance[i, OLDEST] = newer
    else:
        s.cached[i, older, NEWER] = newer
    if newer == NONE:
        s.instance[i, NEWEST] = older
    else:
        s.cached[i, newer, OLDER] = older
    s.instance[i, EVICTABLE] -= s.prefix_size[block, 1]


@compiled
def let_go(s: RunState, i: int, block: int) -> None:
    """One holder less; a block without any may be evicted, after all that were let go before it."""
    s.cached[i, block, REFERENCES] -= 1
    if s.cached[i, block, REFERENCES] > 0:
        return
    newest = s.instance[i, NEWEST]
    s.cached[i, block, OLDER] = newest
    s.cached[i, block, NEWER] = NONE
    if newest == NONE:
        s.instance[i, OLDEST] = block
    else:
        s.cached[i, newest, NEWER] = block
    s.instance[i, NEWEST] = block
    s.instance[i, EVICTABLE] += s.prefix_size[block, 1]


@compiled
def take(s: RunState, i: int, blocks: int) -> None:
    """Takes blocks, evicting the prefixes let go longest ago where too few are free; keeps the most ever in use."""
    while s.instance[i, FREE] < blocks:
        block = s.instance[i, OLDEST]
        unlink(s, i, block)
        s.cached[i, block, REFERENCES] = NONE
        s.instance[i, FREE] += s.prefix_size[block, 1]
    s.instance[i, FREE] -= blocks
    used = s.instance[i, CAPACITY] - s.instance[i, FREE] - s.instance[i, EVICTABLE]
    s.instance[i, PEAK_BLOCKS] = max(s.instance[i, PEAK_BLOCKS], used)


@compiled
def cached_blocks(s: RunState, i: int, r: int) -> int:
    """Leading prefix blocks of a request that the instance has."""
    if s.run[CACHES] == 0:
        return 0
    first, end = s.prefix_of[r], s.prefix_of[r + 1]
    index = first
    while index < end and s.cached[i, s.prefix[index], REFERENCES] != NONE:
        index += 1
    return int(index - first)


@compiled
def needed_blocks(s: RunState, i: int, r: int, hits: int, tokens: int) -> int:
    """Blocks that admission of a request takes out of the room, of which its cached prefix is part."""
    needed = blocks_of_context(s, i, r, tokens)
    first = s.prefix_of[r]
    for index in range(first, first + hits):
        block = s.prefix[index]
        if s.cached[i, block, REFERENCES] > 0:
            needed -= s.prefix_size[block, 1]
    return needed


@compiled
def hold(s: RunState, i: int, r: int, hits: int, tokens: int) -> None:
    """Takes the blocks of a request whose first `hits` prefix blocks are cached."""
    first = s.prefix_of[r]
    shared = 0
    for index in range(first, first + hits):
        block = s.prefix[index]
        if s.cached[i, block, REFERENCES] == 0:
            unlink(s, i, block)
        s.cached[i, block, REFERENCES] += 1
        shared += s.prefix_size[block, 1]
    s.request[r, SHARED] = hits
    s.request[r, SHARED_BLOCKS] = shared
    take(s, i, blocks_of_context(s, i, r, tokens) - shared)


@compiled
def publish(s: RunState, i: int, r: int) -> None:
    """Makes the prefix blocks of a prefilled prompt available to others; of two copies one is given back."""
    if s.run[CACHES] == 0:
        return
    for index in range(s.prefix_of[r] + s.request[r, SHARED], s.prefix_of[r + 1]):
        block = s.prefix[index]
        size = s.prefix_size[block, 1]
        if s.cached[i, block, REFERENCES] == NONE:
            s.cached[i, block, REFERENCES] = 1
        else:
            if s.cached[i, block, REFERENCES] == 0:
                unlink(s, i, block)
            s.cached[i, block, REFERENCES] += 1
            s.instance[i, FREE] += size
        s.request[r, SHARED] += 1
        s.request[r, SHARED_BLOCKS] += size


@compiled
def stored_tokens(s: RunState, r: int, hits: int) -> int:
    """Tokens of the prefix blocks behind the first `hits` that the store has."""
    store, tokens = s.run[STORE], 0
    if store == NONE:
        return 0
    index, end = s.prefix_of[r] + hits, s.prefix_of[r + 1]
    while index < end and s.cached[store, s.prefix[index], REFERENCES] != NONE:
        tokens += s.prefix_size[s.prefix[index], 0]
        index += 1
    return int(tokens)


@compiled
def keep_in_store(s: RunState, r: int) -> None:
    """Keeps the prefix blocks of a prefilled prompt in the store, as many of the first as it has room for."""
    store = s.run[STORE]
    if store == NONE:
        return
    index, end = s.prefix_of[r], s.prefix_of[r + 1]
    while index < end:
        block = s.prefix[index]
        if s.cached[store, block, REFERENCES] == 0:
            unlink(s, store, block)
        elif s.prefix_size[block, 1] <= room(s, store):
            take(s, store, s.prefix_size[block, 1])
        else:
            break
        s.cached[store, block, REFERENCES] = 1
        index += 1
    for kept in range(index - 1, s.prefix_of[r] - 1, -1):
        let_go(s, store, s.prefix[kept])


@compiled
def give_back(s: RunState, i: int, r: int, tokens: int) -> None:
    """Frees the blocks of a request with so many tokens, and its adapter; the end of its prefix is evicted first."""
    s.instance[i, FREE] += blocks_of_context(s, i, r, tokens) - s.request[r, SHARED_BLOCKS]
    first = s.prefix_of[r]
    for index in range(first + s.request[r, SHARED] - 1, first - 1, -1):
        let_go(s, i, s.prefix[index])
    s.request[r, SHARED] = 0
    s.request[r, SHARED_BLOCKS] = 0
    release(s, i, r)


@compiled
def growth(s: RunState, i: int, iteration: int) -> int:
    """Blocks that the decoding batch takes for the step that follows so many decode iterations."""
    if s.instance[i, RESERVES] == 1:
        return 0
    size = s.residue.shape[1]
    return int(s.residue[i, size - 1 - (iteration - 1) % size])


@compiled
def growth_within(s: RunState, i: int, steps: int) -> int:
    """Blocks that the decoding batch takes for the second to the last of so many steps."""
    size = s.residue.shape[1]
    if s.instance[i, RESERVES] == 1 or steps < 2:
        return 0
    rounds, rest = (steps - 1) // size, (steps - 1) % size
    slot, blocks = size - 1 - s.instance[i, ITERATION] % size, rounds * s.instance[i, SEQUENCES]
    for _ in range(rest):
        blocks += s.residue[i, slot]
        slot = slot - 1 if slot > 0 else size - 1
    return int(blocks)

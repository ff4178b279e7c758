"""Paged KV cache of an instance: blocks allocated and freed, prefix caching with LRU eviction.

A prefix block is shared by all requests whose prompts agree up to its end. All other full blocks of a request, named by
nobody, are kept too when it lets them go: as its chain, which is evicted from its end, in its turn among the prefix
blocks, and which the request finds again if it was preempted. Blocks that are not full are free at once. (vLLM 0.33.0,
`free_blocks` and `get_new_blocks` of v1/core/block_pool.py: all hashed blocks go to the end of one queue, others to its
front.) Memory tiers are in `tiers`.
"""

from planner.simulate.loop.adapters import release
from planner.simulate.loop.fields import (
    ASYNCHRONOUS,
    BLOCK_TOKENS,
    CACHES,
    CAPACITY,
    CHAIN,
    DONE,
    EVICTABLE,
    FREE,
    GENERATED,
    INPUT,
    ITERATION,
    MIXED,
    NEWER,
    NEWEST,
    NONE,
    OLDER,
    OLDEST,
    OUTPUT,
    PEAK_BLOCKS,
    POLICY,
    REFERENCES,
    RESERVES,
    RESERVING,
    SEQUENCES,
    SHARED,
    SHARED_BLOCKS,
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
def kept_blocks(s: RunState, i: int, entry: int) -> int:
    """KV blocks of an entry of the cache: a prefix block, or behind those the chain of a request."""
    named = len(s.prefix_size)
    return int(s.prefix_size[entry, 1] if entry < named else s.cached[i, entry, REFERENCES])


@compiled
def unlink(s: RunState, i: int, block: int) -> None:
    """Takes a prefix block, or a chain, out of those that may be evicted."""
    older, newer = s.cached[i, block, OLDER], s.cached[i, block, NEWER]
    if older == NONE:
        s.instance[i, OLDEST] = newer
    else:
        s.cached[i, older, NEWER] = newer
    if newer == NONE:
        s.instance[i, NEWEST] = older
    else:
        s.cached[i, newer, OLDER] = older
    s.instance[i, EVICTABLE] -= kept_blocks(s, i, block)


@compiled
def let_go(s: RunState, i: int, block: int) -> None:
    """One holder less; a block without any may be evicted, after all that were let go before it."""
    s.cached[i, block, REFERENCES] -= 1
    if s.cached[i, block, REFERENCES] == 0:
        link(s, i, block)


@compiled
def link(s: RunState, i: int, block: int) -> None:
    """Puts a prefix block, or a chain, behind all that may be evicted."""
    newest = s.instance[i, NEWEST]
    s.cached[i, block, OLDER] = newest
    s.cached[i, block, NEWER] = NONE
    if newest == NONE:
        s.instance[i, OLDEST] = block
    else:
        s.cached[i, newest, NEWER] = block
    s.instance[i, NEWEST] = block
    s.instance[i, EVICTABLE] += kept_blocks(s, i, block)


@compiled
def evict(s: RunState, i: int, most: int) -> None:
    """Frees what was let go longest ago: a prefix block, or at most so many blocks of a chain."""
    entry = s.instance[i, OLDEST]
    blocks = kept_blocks(s, i, entry)
    if entry >= len(s.prefix_size) and blocks > most:
        blocks = most
        s.cached[i, entry, REFERENCES] -= most
        s.instance[i, EVICTABLE] -= most
    else:
        unlink(s, i, entry)
        s.cached[i, entry, REFERENCES] = NONE
    s.instance[i, FREE] += blocks


@compiled
def take(s: RunState, i: int, blocks: int) -> None:
    """Takes blocks, evicting what was let go longest ago where too few are free; keeps the most ever in use."""
    while s.instance[i, FREE] < blocks:
        evict(s, i, blocks - s.instance[i, FREE])
    s.instance[i, FREE] -= blocks
    used = s.instance[i, CAPACITY] - s.instance[i, FREE] - s.instance[i, EVICTABLE]
    s.instance[i, PEAK_BLOCKS] = max(s.instance[i, PEAK_BLOCKS], used)


@compiled
def cached_blocks(s: RunState, i: int, r: int) -> int:
    """Leading prefix blocks of a request that the instance has and that spare it work.

    The last token of a prompt is computed in any case, and with it the block that it lies in (vLLM 0.33.0,
    `get_computed_blocks` in v1/core/kv_cache_manager.py).
    """
    if s.run[CACHES] == 0:
        return 0
    first, end = s.prefix_of[r], s.prefix_of[r + 1]
    index, left = first, most_cached(s, r)
    while index < end and left > 0 and s.cached[i, s.prefix[index], REFERENCES] != NONE:
        left -= s.prefix_size[s.prefix[index], 0]
        index += 1
    return int(index - first)


@compiled
def most_cached(s: RunState, r: int) -> int:
    """Tokens of a request that need not be computed where all are cached."""
    size = s.run[BLOCK_TOKENS]
    return int((s.request[r, INPUT] + s.request[r, GENERATED] - 1) // size * size)


@compiled
def own_blocks(s: RunState, i: int, r: int, hits: int) -> int:
    """Blocks that a request, its first prefix blocks cached, finds of its own chain; 0 if others reach farther."""
    if s.run[CACHES] == 0:
        return 0
    left, reached = s.cached[i, len(s.prefix_size) + r, REFERENCES], 0
    for index in range(s.prefix_of[r], s.prefix_of[r] + hits):
        reached += s.prefix_size[s.prefix[index], 1]
    start = s.request[r, CHAIN]
    return int(left) if start <= reached < start + left else 0


@compiled
def blocks_before(s: RunState, r: int, start: int) -> int:
    """Leading prefix blocks of a request that fill so many KV blocks."""
    index, blocks = s.prefix_of[r], 0
    while blocks < start:
        blocks += s.prefix_size[s.prefix[index], 1]
        index += 1
    return int(index - s.prefix_of[r])


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
def hold(s: RunState, i: int, r: int, hits: int, own: int, tokens: int) -> None:
    """Takes the blocks of tokens of a request: its first `hits` prefix blocks, so many of its own chain, new ones."""
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
    if own > 0:
        unlink(s, i, len(s.prefix_size) + r)
        s.cached[i, len(s.prefix_size) + r, REFERENCES] = NONE
    take(s, i, held_blocks(s, i, r, tokens) - shared - own)


@compiled
def held_blocks(s: RunState, i: int, r: int, tokens: int) -> int:
    """Blocks that a request has for so many tokens: shared ones may hold more."""
    return int(max(blocks_of_context(s, i, r, tokens), s.request[r, SHARED_BLOCKS]))


@compiled
def names_at_once(s: RunState, i: int) -> bool:
    """Whether others find the blocks of a prompt as soon as it is scheduled, and itself what it had when preempted.

    So vLLM does (0.33.0: `allocate_slots` in v1/core/kv_cache_manager.py caches what the step will compute); SGLang and
    TensorRT-LLM when it is computed.
    """
    return bool(s.instance[i, POLICY] == MIXED and s.instance[i, RESERVING] == 0)


@compiled
def name_blocks(s: RunState, i: int, r: int) -> None:
    """Makes the prefix blocks of what is scheduled of a prompt available to others; a copy stays the request's own."""
    if s.run[CACHES] == 0 or not names_at_once(s, i):
        return
    for index in range(s.prefix_of[r] + s.request[r, SHARED], s.prefix_of[r + 1]):
        block = s.prefix[index]
        blocks = s.request[r, SHARED_BLOCKS] + s.prefix_size[block, 1]
        if blocks * s.run[BLOCK_TOKENS] > s.request[r, DONE] or s.cached[i, block, REFERENCES] != NONE:
            return
        s.cached[i, block, REFERENCES] = 1
        s.request[r, SHARED] += 1
        s.request[r, SHARED_BLOCKS] = blocks


@compiled
def publish(s: RunState, i: int, r: int) -> None:
    """Makes the prefix blocks of a prefilled prompt available to others; of two copies one is given back."""
    if s.run[CACHES] == 0 or names_at_once(s, i):
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
def give_back(s: RunState, i: int, r: int, tokens: int) -> None:
    """Lets go of the blocks of a request with so many tokens, the last of them first, and of its adapter."""
    full = tokens // s.run[BLOCK_TOKENS] - s.request[r, SHARED_BLOCKS]
    release_blocks(s, i, r, tokens, full if s.run[CACHES] == 1 else 0)


@compiled
def give_up(s: RunState, i: int, r: int, tokens: int) -> None:
    """Lets go of the blocks of a request that is preempted.

    Where it is in flight, its newest token is not known yet, and no block that ends with it is named (vLLM 0.33.0,
    `update_from_output` in v1/core/sched/scheduler.py, lines 2410 to 2417).
    """
    known = tokens
    if s.instance[i, ASYNCHRONOUS] == 1:
        known = min(tokens, max(tokens - 1, s.request[r, DONE]))
    full = known // s.run[BLOCK_TOKENS] - s.request[r, SHARED_BLOCKS]
    release_blocks(s, i, r, tokens, full if s.run[CACHES] == 1 and names_at_once(s, i) else 0)


@compiled
def release_blocks(s: RunState, i: int, r: int, tokens: int, full: int) -> None:
    """Lets go of the blocks of a request with so many tokens, of which so many behind the shared ones stay cached."""
    shared = s.request[r, SHARED_BLOCKS]
    s.instance[i, FREE] += held_blocks(s, i, r, tokens) - shared
    if full > 0:
        chain = len(s.prefix_size) + r
        if s.cached[i, chain, REFERENCES] > 0:
            s.instance[i, FREE] += s.cached[i, chain, REFERENCES]
            unlink(s, i, chain)
        s.cached[i, chain, REFERENCES] = full
        s.request[r, CHAIN] = shared
        s.instance[i, FREE] -= full
        link(s, i, chain)
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

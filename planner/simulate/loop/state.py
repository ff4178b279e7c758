"""State of a simulation run: the numpy arrays that Python makes and reads, and compiled code works on.

Shapes: I instances, R requests, S most sequences, B tokens a KV block, U distinct prefix blocks, H prefix blocks of all
requests, K tables, N batches, C contexts, T prefill tokens, M mean attended tokens, J new tokens, A adapters, P pools,
F factors, E changes, Y most stages of a pipeline, W workloads, G parts of a run, X bins of gaps, N instance numbers,
L memory tiers, Q the least power of two that is not below I.
"""

from typing import NamedTuple

from planner.arrays import Floats, Ints


class RunState(NamedTuple):
    """A run, begun or not; columns are named in `fields`."""

    run: Ints
    run_s: Floats
    request: Ints  # [R, REQUEST_FIELDS]
    request_s: Floats  # [R, REQUEST_SECONDS]
    instance: Ints  # [I, INSTANCE_FIELDS]
    instance_s: Floats  # [I, SECONDS_FIELDS]
    outstanding: Ints  # [I] requests sent to each and not yet gone: routers look at all of them at once
    turn: Ints  # [2, N] of round robin among the instances of a number: requests that came, and that were handed over
    batch: Ints  # [I, S] decoding requests, a heap by the iteration that finishes them
    listed: Ints  # [I, S] requests that the running step prefills
    ending: Ints  # [I, S] requests in the last step that they have here, while the one after it is formed
    residue: Ints  # [I, B] decoding sequences by the iteration, modulo B, at which they take a block
    winner: Ints  # [2 Q] a tournament tree of instances by the end of their stretch: at p the first of 2 p and 2 p + 1
    end_s: Floats  # [Q] of the stretch under way; inf if idle
    dirty: Ints  # [I]
    prefix_of: Ints  # [R + 1] where the prefix blocks of each request begin
    prefix: Ints  # [H] blocks, prompt by prompt
    prefix_size: Ints  # [U, 2] tokens and KV blocks of each
    cached: Ints  # [I, U + R, 3] prefix blocks, then what requests kept for themselves
    decode_s: Floats  # [K, N, C] seconds of a decode step, batches padded
    mixed_s: Floats  # [K, N', C, T, M] seconds of a step that prefills
    joint_s: Floats  # [K, J] seconds of what instances do together in a step, by the new tokens of the mean one
    least_s: Floats  # [K, J] of a step with prompts, by the new tokens of an instance
    axes: Floats  # [K, 5, longest] decode batch, decode context, prefill tokens, mean attended tokens, tokens of J
    lengths: Ints  # [K, 5] of the axes
    adapters: Ints  # [I, A, 2]
    links: Floats  # [P, P, 3] between pools
    skew: Floats  # [F] by which the steps of a group are longer than those of its slowest member, one after another
    change_s: Floats  # [E] when instances change
    change: Ints  # [E, 2] which, and how
    stage_free_s: Floats  # [I, Y] from when a stage of a pipeline is free, of instances that lead others
    fresh: Ints  # [I, S] requests whose last token did not come with the last step of their batch
    mates: Ints  # [I, W] the others of each
    gap_counts: Ints  # [W, G, X] gaps between tokens
    gap_s: Floats  # [W, G] their sum
    encode_s: Floats  # [I, W, 2] to encode what a request brings: of a run, and of a token of the tower
    tier_block: Ints  # [U, TIER_FIELDS]
    tier_heap: Ints  # [L, U] leaves by tier, a heap by what is evicted first
    behind: Ints  # [L, U] blocks directly behind each that the tier has
    block_worth: Floats  # [U] of the tier that it is in
    block_cost: Floats  # [U] seconds to compute it, a KV block
    use_of: Ints  # [U + 1] where the requests with each prefix block begin
    use: Ints  # [H] requests, block by block

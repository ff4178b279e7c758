"""Dual prices of tokens: the least engine seconds that a request costs, under any batching.

A step of n sequences that attend to c tokens each, and of t prefill tokens that attend to m each, takes f(n, c, t, m)
seconds, multilinear between the corners of a table. Prices hold

    sequence n + context n c + token t + pair t m <= f (1 + u n) - u L n            for every step
    context n c + token t + pair t m              <= f                              for every step

Both sides are linear in n, c, t, m one at a time (but n f, which is bounded from below), so that corners suffice.
Summed over the steps of a run: sequences whose steps last L on average at most (L the limit of the time per output
token) pay no more, all together, than the seconds that the engine works, for every u >= 0. With u = 0 the first line is
the dual of the fewest seconds that serve given tokens; u prices what a step makes each of its sequences wait.

Shapes: N decode batches, C contexts, T prefill tokens, M attended tokens; K prices and S slopes that are tried.
"""

import math
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats
from planner.simulate.fleet.instances import Instance
from planner.simulate.fleet.step_grid import StepGrid

SHARES = (0.0, 0.25, 0.5, 0.7, 0.85, 1.0)  # of the most that the price of a context, or of a pair, can be
PATIENCE = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)  # batches whose inverse is tried as u
ROUNDING = 1e-12  # seconds
DECODE_SHARES = (0.0, 0.5, 1.0)  # of the prices of decoding, where steps decode and prefill at once


@dataclass(frozen=True, slots=True)
class MeanRequest:
    """What the requests ask for on average; prices are chosen to make it dear."""

    prefill_tokens: float
    prefill_pairs: float
    decode_steps: float
    decode_contexts: float
    tpot_s: float  # the limit; inf for none


@dataclass(frozen=True, slots=True)
class TokenPrices:
    """Seconds of engine time for a prefill token, for a token that it attends to, and alike for decoding."""

    token_s: float = 0.0
    pair_s: float = 0.0
    sequence_s: float = 0.0
    context_s: float = 0.0

    def prefill_s(self, input_tokens: Floats) -> Floats:
        """Least engine time to prefill each prompt [R]."""
        return self.token_s * input_tokens + self.pair_s * pairs(input_tokens)

    def decode_s(self, input_tokens: Floats, output_tokens: Floats) -> Floats:
        """Least engine time to decode each answer [R]; its first token comes from the prefill."""
        return self.sequence_s * (output_tokens - 1.0) + self.context_s * contexts(input_tokens, output_tokens)


def least_grid(grid: StepGrid, members: int) -> StepGrid:
    """Seconds that no step undercuts, whatever the other `members` - 1 that make it do: those may be idle.

    What all do together is taken for the own tokens at the lower end of a cell, and counts for `members` of them; so no
    step between two corners is below their mean. Corners whose every cell is below `least_s` are raised to it.
    """
    floor_J = np.minimum.accumulate(grid.joint_s[::-1])[::-1]
    lower_N, lower_T = (np.concatenate([axis[:1], axis[:-1]]) for axis in (grid.batches, grid.tokens))
    own_NT = np.interp((lower_N[:, None] + lower_T) / members, grid.rank_tokens, floor_J)
    mixed_s = grid.mixed_s + own_NT[:, None, :, None]
    prompts_s = mixed_s[:, :, _first_tokens(grid) :]
    least_s = float(grid.least_s.min())
    prompts_s[_around(prompts_s) <= least_s] = least_s
    decoded_N = np.interp(np.arange(len(grid.decode_s)) / members, grid.rank_tokens, floor_J)
    return StepGrid(
        grid.decode_s + decoded_N[:, None], mixed_s, grid.batches, grid.contexts, grid.tokens, grid.attended
    )


def _first_tokens(grid: StepGrid) -> int:
    """The first place on the axis of tokens that a step with prompts can lie behind: 0 only where 1 is further on."""
    return 1 if len(grid.tokens) > 1 and grid.tokens[1] <= 1.0 else 0


def _around(values: Floats) -> Floats:
    """The largest value of each corner and its neighbours on all axes."""
    largest = values
    for axis in range(values.ndim):
        ahead, behind = largest.copy(), largest.copy()
        front, back = [slice(None)] * values.ndim, [slice(None)] * values.ndim
        front[axis], back[axis] = slice(1, None), slice(None, -1)
        ahead[tuple(back)], behind[tuple(front)] = largest[tuple(front)], largest[tuple(back)]
        largest = np.maximum(largest, np.maximum(ahead, behind))
    return largest


def pairs(input_tokens: Floats) -> Floats:
    """Tokens that the tokens of a prompt attend to, each to those before it and to itself [R]."""
    return input_tokens * (input_tokens + 1.0) / 2.0


def contexts(input_tokens: Floats, output_tokens: Floats) -> Floats:
    """Tokens that all decode steps of a request attend to [R]."""
    steps = output_tokens - 1.0
    return steps * input_tokens + steps * (steps + 1.0) / 2.0


def prefill_prices(instance: Instance, demand: MeanRequest) -> TokenPrices:
    """Prices of prefill alone, whatever decodes ride along."""
    cheapest_TM = instance.grid.mixed_s.min(axis=(0, 1))
    line = _line(cheapest_TM, instance, demand, 0.0)
    return TokenPrices() if line is None else TokenPrices(token_s=line[1], pair_s=line[2])


def decode_prices(instance: Instance, demand: MeanRequest) -> TokenPrices:
    """Prices of decoding alone, whatever prefill rides along."""
    steps_NC = _decode_steps(instance)
    counts_N = np.arange(1.0, len(steps_NC) + 1.0)
    sequence_s, context_s, _ = _decode(steps_NC, counts_N, instance.grid.contexts, demand)
    return TokenPrices(sequence_s=sequence_s, context_s=context_s)


def joint_prices(instance: Instance, demand: MeanRequest) -> TokenPrices:
    """Prices of prefill and decoding together: apart in engines that never do both in a step."""
    if instance.policy == "prefill-first":
        prefill, decode = prefill_prices(instance, demand), decode_prices(instance, demand)
        return TokenPrices(prefill.token_s, prefill.pair_s, decode.sequence_s, decode.context_s)
    best, most = TokenPrices(), -math.inf
    lowest_NC = _decode_steps(instance)
    counts_N = np.arange(1.0, len(lowest_NC) + 1.0)
    sequence_s, context_s, patience = _decode(lowest_NC, counts_N, instance.grid.contexts, demand)
    for share in DECODE_SHARES:
        left_TM = _left_for_prefill(instance, share * sequence_s, share * context_s, share * patience, demand.tpot_s)
        line = _line(left_TM, instance, demand, 0.0)
        if line is None:
            continue
        _, token_s, pair_s = line
        prices = TokenPrices(token_s, pair_s, share * sequence_s, share * context_s)
        worth = token_s * demand.prefill_tokens + pair_s * demand.prefill_pairs
        worth += prices.sequence_s * demand.decode_steps + prices.context_s * demand.decode_contexts
        if worth > most:
            best, most = prices, worth
    return best


def shortest_prefill_s(instance: Instance, input_tokens: Floats) -> Floats:
    """What prefilling each prompt takes at least on an engine that does nothing else [R].

    A prompt of several chunks takes as many steps; the lines below all steps are chosen for the mean prompt. In a
    pipeline of k stages its chunks follow each other: the last stage works on all of them, 1 / k of their steps, after
    the first has come through the stages before it. The first is in a step that is full, of prompts but for the
    sequences that decode in it, or it is the whole prompt.
    """
    mean = float(input_tokens.mean())
    prompts = input_tokens if instance.chunked else np.minimum(input_tokens, instance.token_budget)
    steps_R = np.ceil(prompts / instance.token_budget)
    demand = MeanRequest(mean, float(pairs(input_tokens).mean()), 0.0, 0.0, math.inf)
    cheapest_TM = instance.grid.mixed_s.min(axis=(0, 1))
    line = _line(cheapest_TM, instance, demand, float(steps_R.mean()))
    base_s, token_s, pair_s = line or (0.0, 0.0, 0.0)
    whole_R = np.asarray(steps_R * base_s + token_s * input_tokens + pair_s * pairs(input_tokens))
    if instance.stages == 1 or not instance.chunked:
        return whole_R
    riding = 0 if instance.policy == "prefill-first" else instance.most_sequences
    full_s = base_s + token_s * max(instance.token_budget - riding, 0)
    return np.minimum(whole_R, whole_R / instance.stages + full_s * (1.0 - 1.0 / instance.stages))


def _decode_steps(instance: Instance) -> Floats:
    """Least seconds of a step that decodes 1, 2, .. sequences [N, C]: alone, or with prefill riding along."""
    grid, most = instance.grid, instance.most_sequences
    alone_NC = grid.decode_s[1 : most + 1]
    if instance.policy == "prefill-first" or instance.role == "decode":
        return alone_NC
    cheapest_NC = grid.mixed_s.min(axis=(2, 3))
    counts = np.arange(1.0, most + 1.0)
    riding_CN = np.stack([np.interp(counts, grid.batches, cheapest_NC[:, c]) for c in range(len(grid.contexts))])
    return np.asarray(np.minimum(alone_NC, riding_CN.T))


def _decode(steps_NC: Floats, counts_N: Floats, contexts_C: Floats, demand: MeanRequest) -> tuple[float, float, float]:
    """The prices of a sequence and of its context, and the u, at which the demand is dearest."""
    limit_s = demand.tpot_s if math.isfinite(demand.tpot_s) else 0.0
    tried = PATIENCE if limit_s > 0.0 else (0.0,)
    patience_K = np.array([0.0 if batch == 0.0 else 1.0 / batch for batch in tried])
    each_NC = steps_NC / counts_N[:, None]
    seen = contexts_C > 0.0
    most_context_s = float((each_NC[:, seen] / contexts_C[seen]).min())
    best, most = (0.0, 0.0, 0.0), 0.0
    for share in SHARES:
        context_s = share * most_context_s
        rest_NC = each_NC - context_s * contexts_C
        sequence_K = (rest_NC[None] + patience_K[:, None, None] * (steps_NC - limit_s)[None]).min(axis=(1, 2))
        worth_K = np.maximum(sequence_K, 0.0) * demand.decode_steps + context_s * demand.decode_contexts
        k = int(np.argmax(worth_K))
        if worth_K[k] > most:
            best, most = (max(float(sequence_K[k]), 0.0), context_s, float(patience_K[k])), float(worth_K[k])
    return best


def _left_for_prefill(
    instance: Instance, sequence_s: float, context_s: float, patience: float, tpot_s: float
) -> Floats:
    """What steps leave for the prices of prefill once decoding is paid, at the cheapest batch and context [T, M]."""
    grid = instance.grid
    n, c = grid.batches[:, None, None, None], grid.contexts[None, :, None, None]
    limit_s = tpot_s if math.isfinite(tpot_s) else 0.0
    own = grid.mixed_s - context_s * n * c
    waiting = patience * (_batch_times_seconds(grid) - limit_s * n) - sequence_s * n
    return np.asarray(np.minimum(own, own + waiting).min(axis=(0, 1)))


def _batch_times_seconds(grid: StepGrid) -> Floats:
    """Corners [N, C, T, M] of a function below n f(n, ..), bent within a cell by slope (width / 2)^2 at most."""
    n, f = grid.batches, grid.mixed_s
    if len(n) < 2:
        return np.asarray(n[:, None, None, None] * f)
    width = np.diff(n)[:, None, None, None]
    bend = np.maximum(np.diff(f, axis=0), 0.0) * width / 4.0
    worst = np.zeros_like(f)
    worst[:-1], worst[1:] = bend, np.maximum(worst[1:], bend)
    worst[:-1] = np.maximum(worst[:-1], bend)
    return np.asarray(n[:, None, None, None] * f - worst)


def _most_tokens(instance: Instance) -> float:
    """The most prefill tokens of a step; a prompt that may not be cut can be longer than the budget."""
    return float(instance.token_budget) if instance.chunked else float(instance.grid.tokens[-1])


def _line(
    seconds_TM: Floats, instance: Instance, demand: MeanRequest, steps: float
) -> tuple[float, float, float] | None:
    """base, token and pair price with base + token t + pair t m <= seconds at every corner that steps can reach.

    Chosen to make `steps` base + the demand dear; base is 0 where `steps` is, all are None where seconds fall below 0.
    Steps have a token at least, so that the corner of none counts only where it is the next one below a token.
    """
    grid = instance.grid
    first = _first_tokens(grid)
    last = min(int(np.searchsorted(grid.tokens, _most_tokens(instance))) + 1, len(grid.tokens))
    t, s = grid.tokens[first:last], seconds_TM[first:last]
    reach_TM = t[:, None] * grid.attended[None, :]
    some = reach_TM > 0.0
    if s.min(initial=0.0) < 0.0:
        return None
    if not some.any():
        return 0.0, 0.0, 0.0
    most_pair_s = float((s[some] / reach_TM[some]).min())
    best, most = (0.0, 0.0, 0.0), 0.0
    for share in SHARES:
        pair_s = share * most_pair_s
        left_T = np.maximum((s - pair_s * reach_TM).min(axis=1), 0.0)
        base_s, token_s = _support(t, left_T, steps, demand.prefill_tokens)
        worth = base_s * steps + token_s * demand.prefill_tokens + pair_s * demand.prefill_pairs
        if worth > most:
            best, most = (base_s, token_s, pair_s), worth
    return best


def _support(t: Floats, left_T: Floats, steps: float, tokens: float) -> tuple[float, float]:
    """base, slope >= 0 with base + slope t <= left at all corners that make steps x base + tokens x slope the most."""
    some = t > 0.0
    slope_S = np.array([0.0, float((left_T[some] / t[some]).min())])
    if steps > 0.0:
        gaps = t[None, :] - t[:, None]
        rises = left_T[None, :] - left_T[:, None]
        slope_S = np.concatenate([slope_S, rises[gaps > 0.0] / gaps[gaps > 0.0]])
    slope_S = slope_S[slope_S >= 0.0]
    base_S = (left_T - slope_S[:, None] * t).min(axis=1)
    slope_S, base_S = slope_S[base_S >= -ROUNDING], base_S[base_S >= -ROUNDING]
    base_S = np.maximum(base_S, 0.0) if steps > 0.0 else np.zeros_like(base_S)
    worth_S = steps * base_S + tokens * slope_S
    best = int(np.argmax(worth_S))
    return (float(base_S[best]), float(slope_S[best])) if worth_S[best] > 0.0 else (0.0, 0.0)

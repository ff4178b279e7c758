"""Pipelines of stages in steady state: batches of unequal length hold each other up; over arrays [N] of points.

Stages keep the order of batches, and at most pp are in flight. A whole pass of a batch takes L, a stage L / pp.

Prefill alone. Budget B tokens, mean prompt m, b = B / m. Alone, a prompt passes stage 0 chunk by chunk and the others
with its longest chunk, E[min(length, B)] tokens on average. It waits as before one server of S = L(B) / (b pp) seconds
a prompt, batches being full when there is a queue. Long batches hold back those behind, which leave together, so that
the prompts that came meanwhile go into one batch again: batches grow from single prompts to the whole budget as
utilisation u, stages, budget and spread do. With L1 the pass of a single chunk, that adds
    E = M (L(B) - L1 + h r L(B) / pp) / (1 + exp(-z)),
    z = z0 + (g + g' ln pp) ln(u / (1 - u)) + p ln pp + (q + q' ln pp) ln b + v cv^2 / (1 + cv^2) + w (e - 1),
r the share of its last chunk that a prompt leaves to others, e the price of a token alone over that in a full batch.
M, h and z are fitted to a simulator of such engines (`benchmarks/pipelines.py`, docs/serving.md).

Decoding. Where batches are of whatever sequences are free (all but engines that decode in slots), a longer batch
gathers the requests that come while others wait behind it. Sequences then divide evenly as long as t(D / pp) seconds
are more than D times what a sequence adds to a step, and else one batch grows until its step takes that.

Both. A prompt of w seconds holds the ring of batches: for its longest step, and in stage 0 for the others too. Where
fewer batches than stages are in flight, a prompt that comes while the ring is held is held together with it, the longer
one for longer: with C and C2 the first moments of min(length, B) / m and y prompts a pass
    H1 = w C y / (1 + y C^2 / C2),
of equal prompts the time that a single server without a queue is busy (Erlang's loss). Where all are in flight, those
that come while it is held share the next batch, up to its budget: H2 = w E min(X, B) / m, X the tokens of a Poisson
number of mean y. With n sequences all are for b = n / (n + 2 pp) of the time, so that
    pass = t_dec + b H2 + (1 - b) H1 + w y (1 - C) / pp.
"""

import math
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Final

import numpy as np

from planner.arrays import Floats, Indices
from planner.costs.operators.work import Shards, Work
from planner.kinds.serve.steady.steps.formulas import Costs, Prefill, decode_step
from planner.solvers.stochastic.capped_lognormal import capped_means, capped_squares, compound_capped_means

MOST: Final = 1.08  # M
LEFT: Final = 0.72  # h
START: Final = -1.27  # z0
BUSY: Final = 1.53  # g
BUSY_STAGES: Final = 0.74  # g'
STAGES: Final = -0.03  # p
BUDGET: Final = -1.35  # q
BUDGET_STAGES: Final = 1.28  # q'
SPREAD: Final = 2.78  # v
ALONE: Final = 1.06  # w
DEVIATION: Final = 0.2  # of what is added, over its mean: by the quantiles of the same cells
LEAST_BUSY: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Bubbles:
    """What unequal batches add to the wait for prefill [N]; nothing without stages."""

    most_s: Floats
    start: Floats
    growth: Floats

    def wait_s(self, busy: Floats, quantile: float | None) -> Floats:
        """What is added at a utilisation, on average or at a quantile."""
        used = np.clip(busy, LEAST_BUSY, 1.0 - LEAST_BUSY)
        score = self.start + self.growth * np.log(used / (1.0 - used))
        spread = 1.0 if quantile is None else max(1.0 + DEVIATION * NormalDist().inv_cdf(quantile), 0.0)
        return self.most_s * spread / (1.0 + np.exp(-np.clip(score, -50.0, 50.0)))

    def take(self, rows: Indices) -> "Bubbles":
        """Those of some points."""
        return Bubbles(self.most_s[rows], self.start[rows], self.growth[rows])


def staged(shards: Shards) -> Indices:
    """The points with pipeline stages."""
    return np.flatnonzero(shards.pp > 1.0)


def prefill_in_stages(
    costs: Costs,
    shards: Shards,
    isl: Floats,
    chunk: Floats,
    plain: Prefill,
    length_cv2: float,
    cached: float = 0.0,
) -> tuple[Prefill, Bubbles | None]:
    """`plain`, the prefill of ranks of one stage, with the times of those of several; and their bubbles.

    `cached` tokens of the prompt lie in front of those that are prefilled.
    """
    rows = staged(shards)
    if not len(rows):
        return plain, None
    stages = shards.take(rows)
    pp, mean, budget = stages.pp, isl[rows], chunk[rows]
    full_s, alone_s, token_s = _passes(costs, stages, mean, budget, plain.step.seconds[rows], cached)
    longest = np.minimum(mean, budget)
    typical_s = alone_s - token_s * (longest - mean * capped_means(budget / mean, length_cv2))
    left = _left_share(budget / mean, length_cv2)
    most_s = MOST * (np.maximum(full_s - typical_s, 0.0) + LEFT * left * full_s / pp)
    dearer = np.maximum(alone_s / longest * budget / full_s - 1.0, 0.0)
    start = START + STAGES * np.log(pp) + (BUDGET + BUDGET_STAGES * np.log(pp)) * np.log(budget / mean)
    start = start + SPREAD * length_cv2 / (1.0 + length_cv2) + ALONE * dearer
    growth = BUSY + BUSY_STAGES * np.log(pp)
    none = np.zeros(len(isl))
    bubbles = Bubbles(*(_with(none, rows, own) for own in (most_s, start, growth)))
    latency_s = (alone_s * mean / longest + (pp - 1.0) * typical_s) / pp
    piped = replace(
        plain,
        latency_s=_with(plain.latency_s, rows, latency_s),
        queue_s=_with(plain.queue_s, rows, full_s * mean / budget / pp),
    )
    return piped, bubbles


def _with(whole: Floats, rows: Indices, own: Floats) -> Floats:
    """`whole` with other values at some rows."""
    changed = whole.copy()
    changed[rows] = own
    return changed


def _passes(
    costs: Costs, shards: Shards, mean: Floats, budget: Floats, priced_s: Floats, cached: float
) -> tuple[Floats, Floats, Floats]:
    """Seconds [N] of a whole pass of a full batch and of the longest chunk of one prompt, and of a token between them.

    `priced_s` are those of as many whole prompts as the budget holds, or of an even chunk of one; one more is priced.
    """
    prompts, chunks = np.maximum(np.floor(budget / mean), 1.0), np.ceil(mean / budget)
    tokens, several = prompts * mean / chunks, prompts > 1.0
    more_tokens = np.where(several, mean, budget)
    sequences = np.where(several, 1.0, np.maximum(budget / mean, 1.0))
    before = cached + np.where(several, 0.0, np.maximum(mean - budget, 0.0) / 2.0)
    more_s = costs.step(shards, Work.of(more_tokens, sequences, before, 0.0, 0.0)).seconds
    apart = np.abs(more_tokens - tokens) > 1e-6 * tokens
    token_s = (more_s - priced_s) / np.where(apart, more_tokens - tokens, 1.0)
    token_s = np.clip(np.where(apart, token_s, priced_s / tokens), 0.0, more_s / more_tokens)
    full_s = np.where(several, priced_s + token_s * (budget - tokens), more_s)
    return full_s, np.where(several | (mean > budget), more_s, priced_s), token_s


def _left_share(prompts: Floats, length_cv2: float) -> Floats:
    """The share of its last chunk that a prompt leaves to others [N]; of spread lengths half of one.

    The remainder of a length is spread evenly as far as the first Fourier coefficient of the lengths' phases says.
    """
    even = np.ceil(1.0 / prompts) - 1.0 / prompts
    return 0.5 + (even - 0.5) * np.exp(-2.0 * math.pi**2 * length_cv2 / prompts**2)


def decode_pace_s(
    costs: Costs,
    shards: Shards,
    sequences: Floats,
    context: Floats,
    shared_s: Floats,
    drafts: Floats | None = None,
) -> Floats:
    """Seconds [N] of decode steps as batches of unequal size go, given those of evenly shared sequences."""
    rows = staged(shards)
    if costs.engine.prefill_first or not len(rows):
        return shared_s
    stages, most = shards.take(rows), sequences[rows]
    verified = None if drafts is None else drafts[rows]
    whole_s = decode_step(costs, stages, most * stages.pp, context[rows], verified).seconds
    added_s = (whole_s - shared_s[rows]) / (most - most / stages.pp)
    pace_s = shared_s.copy()
    pace_s[rows] = np.maximum(shared_s[rows], np.minimum(added_s * most, whole_s))
    return pace_s


@dataclass(frozen=True, slots=True)
class Holds:
    """How prompts hold a ring of batches [N]; nothing is held by those of one stage."""

    prompt_s: Floats  # of a mean prompt in all stages, w
    room: Floats  # mean prompts of a batch
    length_cv2: float

    def held_s(self, sequences: Floats, steps: Floats | float, ranks: Floats, pp: Floats | float) -> Floats:
        """Seconds [N] of a pass beyond those of stage 0, with `sequences` of `steps` each on each of `ranks`."""
        prompts = sequences / steps * ranks
        inside, inside2 = capped_means(self.room, self.length_cv2), capped_squares(self.room, self.length_cv2)
        apart = prompts * inside / (1.0 + prompts * inside**2 / inside2)
        gathered = compound_capped_means(prompts, self.length_cv2, self.room)
        busy = in_flight_share(sequences, pp)
        held = busy * gathered + (1.0 - busy) * apart
        return np.where(np.asarray(pp) > 1.0, self.prompt_s * (held - prompts / ranks * inside / pp), 0.0)

    def take(self, row: int) -> "Holds":
        """Those of one point."""
        return Holds(self.prompt_s[row : row + 1], self.room[row : row + 1], self.length_cv2)


def in_flight_share(sequences: Floats, pp: Floats | float) -> Floats:
    """The share of time for which as many batches as stages are in flight [N]: seldom of few sequences."""
    share: Floats = np.where(np.asarray(pp) > 1.0, sequences / (sequences + 2.0 * pp), 1.0)
    return share


def held_by_prompts(plain: Prefill, shards: Shards, length_cv2: float) -> Holds:
    """What prompts that ride on decode steps, priced one stage after the other, do to a ring of batches."""
    return Holds(plain.stretch_s * shards.pp, plain.room_prompts, length_cv2)

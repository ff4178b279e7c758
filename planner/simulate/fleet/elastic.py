"""Elastic sequence parallelism (LoongServe): instances that join for a prefill, part for decoding, share one KV cache.

Source: Wu et al., LoongServe, SOSP 2024 (arXiv:2404.09526), section 5. Whenever an instance is between steps:
 (1) requests that wait are taken in order, as long as the instances that are idle or borrowed have room for their whole
     lengths, and tokens for a step;
 (2) instances that decode are borrowed, those of fewest tokens first, where no other is idle, or where that shortens
     the wait of the requests, for each token of their prompts, by more than the wait of the answers that stand still,
     for each token that they have (gain and cost of the paper, section 5.2);
 (3) the requests are cut into batches that share the instances (`solvers.shared_batches`), or are one batch where the
     instances of such a batch have too little room;
 (4) a prefilled batch stays on as few of its instances as have room, those with most of it, whose decoding requests it
     joins; what is computed elsewhere is kept there as it is made, so that parting costs nothing;
 (5) requests that decode on too few instances take idle ones in: each becomes the master of its share of them and keeps
     the tokens that they are still to get, while those that they have stay where they are.
A step of k instances: each works on its share of the tokens of a prefill; keys and values go round a ring behind the
work, which the step waits for where it takes longer. Decoding sequences are shared by the instances that hold them,
which exchange queries and partial results in every layer. Prompts are prefilled whole.
"""

import numpy as np

from planner.arrays import Floats
from planner.errors import PlannerError
from planner.simulate.fleet.instances import Fleet
from planner.simulate.fleet.step_grid import StepGrid
from planner.simulate.loop.elastic import fields as f
from planner.simulate.loop.elastic.state import Common
from planner.simulate.loop.fields import NONE
from planner.simulate.requests.stream import Requests


def common_arrays(fleet: Fleet, requests: Requests) -> Common:
    """What an elastic fleet adds to the arrays of a run that has not begun; raises PlannerError for adapters."""
    elastic, instances, count = fleet.elastic, len(fleet.instances), len(requests)
    assert elastic is not None
    if requests.adapter is not None and int(requests.adapter.max(initial=-1)) >= 0:
        raise PlannerError("requests with adapters on elastic instances", hint="leave one of the two out")
    common = np.zeros(f.COMMON_FIELDS, dtype=np.int64)
    common[f.BORROWS] = int(elastic.borrows)
    common[f.MASTERS] = elastic.scale_up_above or fleet.instances[0].most_sequences
    common_s = np.zeros(f.COMMON_SECONDS)
    common_s[[f.FIXED_S, f.TOKEN_S, f.SQUARE_S]] = prefill_fit(fleet.instances[0].grid)
    common_s[f.RING_RATE], common_s[f.EXCHANGE] = elastic.ring_tokens_per_s, elastic.exchange_s
    led = np.zeros((instances, f.LED_FIELDS), dtype=np.int64)
    led[:, [f.LED_BY, f.HEAD, f.PROMPTS]] = NONE
    return Common(
        common=common,
        common_s=common_s,
        waiting=np.zeros(count, dtype=np.int64),
        decoding=np.zeros(count, dtype=np.int64),
        kept=np.zeros((count, instances), dtype=np.int64),
        holders=np.zeros(count, dtype=np.int64),
        led=led,
    )


def most_prefill_tokens(token_budget: int, instances: int, longest_prompt: int) -> int:
    """Tokens of one instance in a step, at most: those of all, where one of them prefills all that were taken."""
    return max(token_budget * instances, longest_prompt)


def prefill_fit(grid: StepGrid) -> Floats:
    """A, B, C of A + B sum of lengths + C sum of squares [s] of a prefill on one instance, by least squares."""
    lengths = grid.tokens[grid.tokens >= 1.0]
    seconds = np.array([grid.prefill_s(length, (length + 1.0) / 2.0) for length in lengths])
    lengths, seconds = lengths[seconds > 0.0], seconds[seconds > 0.0]
    columns = np.stack([np.ones_like(lengths), lengths, lengths**2], axis=1) / seconds[:, None]
    coefficients = np.linalg.lstsq(columns, np.ones_like(lengths), rcond=None)[0]
    return np.asarray(np.maximum(coefficients, 0.0), dtype=np.float64)

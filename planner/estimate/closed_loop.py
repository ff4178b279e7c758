"""A closed-loop benchmark (fixed concurrency) simulated request by request: ramp-up, steady state and queues.

C clients start together and each sends its next request when it has its answer, until N were sent. Every step runs the
decodes of a rank and, where prompts wait, as many of their tokens as an engine puts into one step:
    seconds(step) = base + slope D + [prompts] (start + sum over prompts of tokens x per token),   D decoding sequences.
Between two changes of the batch the steps are equal, so stretches of decoding are skipped at once; a run costs a few
operations a request. Of a colocated deployment one attention rank is simulated, with its share of the clients. In a
disaggregated one, prompts go first come first served to the prefill ranks, then to decoding instances, which share the
sequences evenly in time but not in place: each request has its instance in turn, and waits where that is full.

Engines differ in how prompts and decoding share steps: where `prefill_first` is 1, a step takes prompts alone and
decoding waits until none is left (SGLang), so that clients with equal lengths stay in step with each other; else both
share steps. Where `hold_steps` is positive, prompts wait that many decode steps for others, or until FULL of a step's
prompt tokens wait. Clients start together, or spread over the time of one answer where they are `staggered`.

What an engine adds before the first token: every request passes the one front end in turn (`frontend_s`), takes an
exponential delay on its way (`arrival_s`), is seen when the scheduler next looks (every `poll_steps` decode steps), and
its first token leaves `output_steps` decode steps after its prefill.
"""

from dataclasses import dataclass, fields
from functools import cache

import numpy as np

from planner.arrays import Floats

_DRAWS = 1 << 16


@dataclass(frozen=True, slots=True)
class ClosedLoops:
    """What decides each run [N]."""

    clients: Floats
    requests_per_client: Floats
    isl: Floats  # the largest, where lengths are spread
    osl: Floats
    spread: Floats  # lengths are uniform in [(1 - spread) L, L]
    disaggregated: Floats  # 1 where prefill runs apart
    decode_instances: Floats
    decode_ranks: Floats  # of all instances
    prefill_ranks: Floats
    most_decoding: Floats  # sequences of a rank that its KV cache and the engine admit
    base_s: Floats
    slope_s: Floats
    start_s: Floats
    token_s: Floats  # of prefill, one rank
    moved_s: Floats  # moving a request's cache between pools
    step_tokens: Floats  # prompt tokens in one step
    frontend_s: Floats
    arrival_s: Floats
    poll_steps: Floats
    output_steps: Floats
    hold_steps: Floats  # decode steps for which prompts wait for each other
    prefill_first: Floats  # 1 where prompts do not share steps with decoding
    staggered: Floats  # 1 where clients start one after the other
    least_s: Floats  # of a step with prompts: that long the host launches its kernels


@dataclass(frozen=True, slots=True)
class MeanTimes:
    """Means over the requests of each run [N]."""

    ttft_s: Floats
    tpot_s: Floats


@dataclass(frozen=True, slots=True)
class LoopTimes(MeanTimes):
    """The same, and requests per second from the first sent to the last answered, of what one run simulates [N]."""

    rate_per_s: Floats


def simulate_loops(loop: ClosedLoops) -> LoopTimes:
    """Simulates every run; equal loops give equal figures."""
    from planner.estimate.compiled.closed_loop import simulate_all

    columns = np.stack([np.asarray(getattr(loop, column.name), dtype=np.float64) for column in fields(loop)])
    means = np.zeros((3, len(loop.clients)))
    simulate_all(columns, *_draws(), means)
    return LoopTimes(*means)


@cache
def _draws() -> tuple[Floats, Floats, Floats]:
    """What prompts, outputs and delays of all runs are drawn from: uniform, uniform and exponential."""
    random = np.random.default_rng(0)
    return random.random(_DRAWS), random.random(_DRAWS), random.exponential(1.0, _DRAWS)

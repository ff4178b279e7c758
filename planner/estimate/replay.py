"""The closed loop of a benchmark, played request by request: what comes before steady state and what queues count.

C clients start together and each sends its next request when it has its answer, until N were sent. Every step runs the
decodes of a rank and, where prompts wait, as many of their tokens as an engine puts into one step:
    seconds(step) = base + slope D + [prompts] (start + sum over prompts of tokens x per token),   D decoding sequences.
Between two changes of the batch the steps are equal, so stretches of decoding are skipped at once; a run costs a few
operations a request. Of a colocated deployment one attention rank is played, with its share of the clients. In a
disaggregated one, prompts go first come first served to the prefill ranks, then to one pool of decoding ranks that
share their sequences evenly.

What an engine adds before the first token: every request passes the one front end in turn (`frontend_s`), takes an
exponential delay on its way (`arrival_s`), is seen when the scheduler next looks (every `poll_steps` decode steps), and
its first token leaves `output_steps` decode steps after its prefill.
"""

from dataclasses import dataclass, fields
from functools import cache

import numpy as np

from planner.costs.shapes import FloatArray

_DRAWS = 1 << 16


@dataclass(frozen=True, slots=True)
class Loop:
    """What decides each run [N]."""

    clients: FloatArray
    requests_per_client: FloatArray
    isl: FloatArray  # the largest, where lengths are spread
    osl: FloatArray
    spread: FloatArray  # lengths are uniform in [(1 - spread) L, L]
    disaggregated: FloatArray  # 1 where prefill runs apart
    decode_ranks: FloatArray
    prefill_ranks: FloatArray
    most_decoding: FloatArray  # sequences of a rank that its KV cache and the engine admit
    base_s: FloatArray
    slope_s: FloatArray
    start_s: FloatArray
    token_s: FloatArray  # of prefill, one rank
    moved_s: FloatArray  # moving a request's cache between pools
    step_tokens: FloatArray  # prompt tokens in one step
    frontend_s: FloatArray
    arrival_s: FloatArray
    poll_steps: FloatArray
    output_steps: FloatArray


@dataclass(frozen=True, slots=True)
class Played:
    """Means over the requests of each run [N]."""

    ttft_s: FloatArray
    tpot_s: FloatArray


def play(loop: Loop) -> Played:
    """Plays every run; equal loops give equal figures."""
    from planner.estimate.compiled.replay import play_all

    columns = np.stack([np.asarray(getattr(loop, one.name), dtype=np.float64) for one in fields(loop)])
    means = np.zeros((2, len(loop.clients)))
    play_all(columns, *_draws(), means)
    return Played(means[0], means[1])


@cache
def _draws() -> tuple[FloatArray, FloatArray, FloatArray]:
    """What prompts, outputs and delays of all runs are drawn from: uniform, uniform and exponential."""
    random = np.random.default_rng(0)
    return random.random(_DRAWS), random.random(_DRAWS), random.exponential(1.0, _DRAWS)

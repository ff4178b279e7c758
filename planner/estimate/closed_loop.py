"""A closed-loop benchmark (fixed concurrency) simulated request by request: ramp-up, steady state and queues.

C clients start together and each sends its next request when it has its answer, until N were sent. Every step runs the
decodes of a rank and, where prompts wait, as many of their tokens as an engine puts into one step:
    seconds(step) = base + slope D + [prompts] (start + sum over prompts of tokens x per token),   D decoding sequences.
Between two changes of the batch the steps are equal, so stretches of decoding are skipped at once; a run costs a few
operations a request. Of a colocated deployment one attention rank is simulated, with its share of the clients. In a
disaggregated one, prompts go to the prefill rank that has fewest, and its next step takes them as they come, as many
tokens as fit. Attention ranks that share experts (`prefill_members`) begin and end their steps together, which last as
long as the fullest takes, so that a prompt may wait though its own rank has nothing to do (planner/simulate/loop/
groups.py; vLLM's `DPEngineCoreProc`, SGLang's `prepare_mlp_sync_batch`, `_pad_attention_dp_dummy_request` of
TensorRT-LLM). Then they go to decoding instances, which share the sequences evenly in time but not in place: each
request has its instance in turn, and waits where that is full.

Engines differ in how prompts and decoding share steps: where `prefill_first` is 1, a step takes prompts alone and
decoding waits until none is left (SGLang), so that clients with equal lengths stay in step with each other; else both
share steps. Where `whole_prompts` is 1, no prompt is cut, and one that no step holds has a step alone (TensorRT-LLM
without chunked prefill; cpp/tensorrt_llm/batch_manager/microBatchScheduler.cpp, `operator()`). Where `hold_steps` is
positive, prompts wait that many decode steps for others, or until FULL of a step's prompt tokens wait. Clients start
together, or spread over the time of one answer where they are `staggered`.

What an engine adds before the first token: every request passes the one front end of all ranks in turn (`frontend_s`,
and `frontend_token_s` for each token of its prompt), or one of its rank that tokenises prompts beside each other, in
order (`tokenises_together`: vLLM, and routers of disaggregated ones; planner/simulate/fleet/front_ends.py), takes an
exponential delay on its way (`arrival_s`), on which others overtake it, is seen when the scheduler next looks (every
`poll_steps` decode steps), and its first token leaves `output_steps` decode steps after its prefill.

Tails, where they are asked for: quantiles of requests (those of later rounds standing for the ones not simulated), and
of gaps between tokens, each step counting one gap for every sequence that it decodes and a step of prompts alone
lengthening the gap it falls into. What makes them long: the opening burst, lengths that differ, steps longer or shorter
by independent factors of mean 1 (`jitter`), batches beyond the largest CUDA graph (`graph_batch`, `eager_s`), and a
cache that runs full (`cache_tokens`, in blocks as the simulator's): a prompt is admitted where it and the tokens that
its step decodes fit; where the next tokens do not, the sequence that joined last gives its place up, waits in front of
all others, and is prefilled again with what it had written, as in vLLM. Requests of an open load (`rate_per_s`) come at
exponential gaps, and those of its middle count. Where prefill runs apart nothing is preempted.
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
    spread: Floats  # prompts are uniform in [(1 - spread) L, L],
    osl_spread: Floats  # and answers with this one
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
    rate_per_s: Floats  # of requests that come by chance, where no client waits; 0 of a closed loop
    cache_tokens: Floats  # of a rank, at which sequences are preempted; infinite where `most_decoding` says it all
    graph_batch: Floats  # sequences of the largest decoding step that CUDA graphs hold
    eager_s: Floats  # of a larger one, at least: that long the host launches its kernels
    jitter: Floats  # coefficient of variation of the time of a step
    frontend_token_s: Floats  # for each token of a prompt
    tokenises_together: Floats  # 1 where prompts are tokenised beside each other, by a front end of each rank
    prefill_members: Floats  # prefill ranks that make their steps together
    whole_prompts: Floats  # 1 where a step takes prompts that fit into it whole, or one alone, and cuts none


@dataclass(frozen=True, slots=True)
class MeanTimes:
    """Means over the requests of each run [N]."""

    ttft_s: Floats
    tpot_s: Floats


@dataclass(frozen=True, slots=True)
class LoopTimes(MeanTimes):
    """The same, and requests per second from the first sent to the last answered, of what one run simulates [N]."""

    rate_per_s: Floats
    quantiles: Floats  # [4, levels, N] of TTFT, gaps between tokens (ITL), TPOT and latency, in seconds


def simulate_loops(loop: ClosedLoops, levels: tuple[float, ...] = ()) -> LoopTimes:
    """Simulates every run, with the quantiles of these levels, which ascend; equal loops give equal figures."""
    from planner.estimate.compiled.closed_loop import simulate_all

    runs = np.empty(len(loop.clients), dtype=[(column.name, np.float64) for column in fields(loop)])
    for column in fields(loop):
        runs[column.name] = getattr(loop, column.name)
    means, quantiles = np.zeros((3, len(runs))), np.zeros((4, len(levels), len(runs)))
    simulate_all(runs, _draws(), np.array(levels, dtype=np.float64), means, quantiles)
    return LoopTimes(means[0], means[1], means[2], quantiles)


@cache
def _draws() -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """What all runs draw from: lengths uniform, delays and gaps between requests exponential, luck normal."""
    random = np.random.default_rng(0)
    prompts, answers, delays = random.random(_DRAWS), random.random(_DRAWS), random.exponential(1.0, _DRAWS)
    return prompts, answers, delays, random.exponential(1.0, _DRAWS), random.normal(size=_DRAWS)

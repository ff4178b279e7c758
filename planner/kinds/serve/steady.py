"""Steady-state formulas of continuous batching (mean field): step times to TTFT, TPOT and rates, over arrays [N].

Colocated. An attention rank decodes D sequences; every output token of each takes one step of t_dec seconds. In that
time D / osl requests finish and as many are prefilled, each stretching the steps it rides on by s_pre in all, so
    TPOT = t_dec + D / osl * s_pre,      rate of the rank = D / (osl * TPOT),      utilisation = rate * s_pre.
Prefill alone. A rank takes one batch of k prompts at a time, L seconds each: rate = utilisation * k / L.
Decode alone. TPOT = t_dec, rate of the rank = D / (osl * t_dec).
Waiting for prefill is that of an M/D/1 queue (deterministic lengths) or M/G/1 (spread lengths) at the utilisation.
"""

from dataclasses import dataclass

import numpy as np

from planner.costs.parameters import EngineOverheads
from planner.costs.shapes import FloatArray, Shards, Work
from planner.costs.step import Pricer, StepTime, step_time
from planner.models.architecture import Architecture


@dataclass(frozen=True, slots=True)
class Costs:
    """Everything that turns work into seconds for one model on one pool with one engine."""

    arch: Architecture
    pricer: Pricer
    engine: EngineOverheads

    def step(self, shards: Shards, work: Work) -> StepTime:
        """Time of one step [N]."""
        return step_time(self.arch, self.pricer, shards, work, self.engine)


@dataclass(frozen=True, slots=True)
class Prefill:
    """Prefilling one request [N]: how long the request takes, and how much of the rank's time it uses."""

    latency_s: FloatArray
    busy_s: FloatArray
    step: StepTime


def decode_step(costs: Costs, shards: Shards, sequences: FloatArray, context: FloatArray) -> StepTime:
    """A decode step of `sequences` per attention rank; pipeline stages share them in pp micro-batches."""
    return costs.step(shards, Work.decode(sequences / shards.pp, context))


def prefill_alone(costs: Costs, shards: Shards, isl: FloatArray, chunk: FloatArray) -> Prefill:
    """A prefill-only rank: whole prompts together up to `chunk` tokens a step, longer prompts chunk by chunk.

    With pipeline stages, successive steps overlap: a request uses 1 / pp of its latency.
    """
    prompts = np.maximum(np.floor(chunk / isl), 1.0)
    chunks = np.ceil(isl / chunk)
    tokens = prompts * isl / chunks
    step = costs.step(shards, Work.of(tokens, prompts, (isl - isl / chunks) / 2.0, 0.0, 0.0))
    latency = step.seconds * chunks
    return Prefill(latency, latency / prompts / shards.pp, step)


def prefill_mixed(
    costs: Costs,
    shards: Shards,
    isl: FloatArray,
    chunk: FloatArray,
    decoding: FloatArray,
    context: FloatArray,
    decode_s: FloatArray,
) -> Prefill:
    """Prefill riding on the steps of `decoding` sequences, at most `chunk` tokens a step, decodes included.

    `decode_s` is the step without prefill; `busy_s` is what the request adds to the steps that it rides on.
    """
    share = decoding / shards.pp
    room = np.maximum(chunk - share, chunk * 0.1)
    chunks = np.ceil(isl / room)
    tokens = isl / chunks
    mixed = costs.step(shards, Work.of(tokens, 1.0, (isl - tokens) / 2.0, share, context))
    added = np.maximum(mixed.seconds - decode_s, 0.0)
    return Prefill(chunks * mixed.seconds, chunks * added / shards.pp, mixed)


def colocated_tpot_s(decode_s: FloatArray, busy_s: FloatArray, sequences: FloatArray, osl: FloatArray) -> FloatArray:
    """Mean time per output token of a rank that prefills and decodes `sequences`."""
    return decode_s + sequences / osl * busy_s


def pad_graph_batch(sequences: FloatArray) -> FloatArray:
    """The CUDA-graph batch that a decode batch is padded to: 1, 2, 4, then multiples of 8 (engines' default)."""
    small = 2.0 ** np.ceil(np.log2(np.maximum(sequences, 1.0)))
    return np.where(sequences <= 4, small, np.ceil(sequences / 8.0) * 8.0)

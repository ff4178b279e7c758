"""Steady-state formulas of continuous batching (mean field): step times to TTFT, TPOT and rates, over arrays [N].

Colocated. An attention rank decodes D sequences; every output token of each takes one step of t_dec seconds. In that
time D / osl requests finish and as many are prefilled, each stretching the steps it rides on by s_pre in all, so
    TPOT = t_dec + D / osl * s_pre,      rate of the rank = D / (osl * TPOT).
A prompt takes one step or, chunked, several; a step takes one prompt or, where more than one request ends in a step, as
many as then arrive, up to its chunk. With t_mix seconds of such a step, c steps a prompt and k prompts a step
    s_pre = c (t_mix - t_dec) / (k pp).
Where prompts wait, steps are full: the rest of one prompt shares its step with the next. With R tokens of prompts in a
full step, which takes t_full = t_dec + (t_mix - t_dec) R k / (c isl) seconds,
    utilisation = rate * t_full * isl / (R pp).
Where n attention ranks make their steps together (they share experts), a step in which any of them prefills stretches
the decoding of all: with p = D c / (osl k pp) the share of its steps in which a rank prefills,
    TPOT = t_dec + (1 - (1 - p)^n) (t_mix - t_dec),
and experts get the prompts of 1 + (n - 1) p ranks in a step with prompts.
Drafts. Where a step verifies drafts and yields E tokens of each sequence, osl above is the steps of an output, osl / E,
and TPOT the time of a step, of which a token takes 1 / E: expected values, for drafts that are right independently.
Prefill alone. A rank takes one batch of k prompts at a time, L seconds each: rate = utilisation * k pp / L.
Decode alone. TPOT = t_dec, rate of the rank = D / (osl * t_dec).
Waiting for prefill is that of an M/D/1 queue (deterministic lengths) or M/G/1 (spread lengths) at the utilisation.
Formulas with pp are those of pp engines that share the load; `pipelines` says what batches in order of stages change.
"""

from dataclasses import dataclass, replace

import numpy as np

from planner.arrays import Floats
from planner.costs.operators.forward import ranks_in_step
from planner.costs.operators.work import Shards, Work
from planner.costs.rates.engine_overheads import EngineOverheads
from planner.costs.rates.pricer import Pricer
from planner.costs.rates.step import StepTime, step_time
from planner.costs.serving.media import Encoding
from planner.costs.serving.speculation import Drafter, drafting_step
from planner.models.architecture import Architecture

BUSY_STEPS = 0.8  # most steps that carry prefill before a step takes several prompts


@dataclass(frozen=True, slots=True)
class Costs:
    """Everything that turns work into seconds for one model on one pool with one engine."""

    arch: Architecture
    pricer: Pricer
    engine: EngineOverheads
    drafter: Drafter | None = None
    encoding: Encoding | None = None  # of what requests bring beside text

    def of_role(self, function: str) -> "Costs":
        """Those of instances of a function."""
        return replace(self, pricer=self.pricer.of_role(function))

    def step(self, shards: Shards, work: Work) -> StepTime:
        """Time of one step [N], of the drafts that it verifies, and of what it encodes."""
        step = step_time(self.arch, self.pricer, shards, work, self.engine)
        if self.encoding is not None and np.any(work.prefill_tokens > 0):
            step = step.beside(self.encoding.step(self.arch, self.pricer, shards, work))
        if self.drafter is None or work.queries is None:
            return step
        return step.beside(drafting_step(self.drafter, self.pricer, shards, work))

    def tokens_per_step(self, drafts: Floats) -> Floats:
        """Expected tokens of a sequence in a step [N]."""
        return np.ones_like(drafts) if self.drafter is None else self.drafter.tokens_per_step(drafts)

    def tokens_per_step_cv2(self, drafts: Floats) -> Floats:
        """Variance over squared mean of the tokens of a sequence in a step [N]."""
        return np.zeros_like(drafts) if self.drafter is None else self.drafter.tokens_per_step_cv2(drafts)


@dataclass(frozen=True, slots=True)
class Prefill:
    """Prefilling one request [N]."""

    latency_s: Floats  # from its first step to its first token
    queue_s: Floats  # of the rank's prefill time that it takes
    stretch_s: Floats  # that it adds to decode steps of the rank; 0 where prefill runs alone
    steps: Floats  # of the rank that it takes
    step: StepTime
    chunks: Floats  # that a prompt is cut into
    prompts: Floats  # of a step
    room_prompts: Floats  # mean ones that a step has room for
    added_s: Floats  # to a step that carries prefill


def _drafted(work: Work, drafts: Floats | None) -> Work:
    """The work with its drafts; where there are none the plain one, which is priced with less effort."""
    return work if drafts is None or not drafts.any() else work.with_drafts(drafts)


def decode_step(
    costs: Costs, shards: Shards, sequences: Floats, context: Floats, drafts: Floats | None = None
) -> StepTime:
    """A decode step of `sequences` per attention rank; pipeline stages share them in pp micro-batches."""
    return costs.step(shards, _drafted(Work.decode(sequences / shards.pp, context), drafts))


def prefill_alone(
    costs: Costs, shards: Shards, isl: Floats, chunk: Floats, drafts: Floats | None = None, *, cached: float = 0.0
) -> Prefill:
    """A prefill-only rank: whole prompts together up to `chunk` tokens a step, longer prompts chunk by chunk.

    `isl` tokens of a prompt are computed, behind `cached` ones that a prefix cache holds.

    With pipeline stages, successive steps overlap: a request uses 1 / pp of its latency. With drafts, prompts go
    through the drafter too.
    """
    prompts = np.maximum(np.floor(chunk / isl), 1.0)
    chunks = np.ceil(isl / chunk)
    tokens = prompts * isl / chunks
    step = costs.step(shards, _drafted(Work.of(tokens, prompts, cached + (isl - isl / chunks) / 2.0, 0.0, 0.0), drafts))
    latency = step.seconds * chunks
    none = np.zeros_like(latency)
    taken, room = chunks / prompts / shards.pp, chunk / isl
    return Prefill(latency, latency / prompts / shards.pp, none, taken, step, chunks, prompts, room, none)


def prefill_mixed(
    costs: Costs,
    shards: Shards,
    isl: Floats,
    osl: Floats,
    chunk: Floats,
    decoding: Floats,
    context: Floats,
    decode_s: Floats,
    drafts: Floats | None = None,
    *,
    cached: float = 0.0,
) -> Prefill:
    """Prefill riding on the steps of `decoding` sequences, at most `chunk` tokens a step, decodes included.

    `isl` tokens of a prompt are computed, behind `cached` ones that a prefix cache holds.

    `decode_s` is the step without prefill, `osl` the steps of an output. Where short outputs end faster than one a
    step, steps take several prompts, so many that a share of `BUSY_STEPS` of all steps carries them.
    """
    share = decoding / shards.pp
    decoded = share if drafts is None else share * (drafts + 1.0)
    room = np.maximum(chunk - decoded, chunk * 0.1)
    chunks = np.ceil(isl / room)
    tokens = isl / chunks
    prompts = np.clip(share / osl / BUSY_STEPS, 1.0, np.maximum(np.floor(room / isl), 1.0))
    steps = chunks / prompts / shards.pp
    ranks = ranks_in_step(costs.arch, shards.dp)
    prefilling = 1.0 + (ranks - 1.0) * np.minimum(decoding / osl * steps, 1.0)
    work = _drafted(Work.of(prompts * tokens, prompts, cached + (isl - tokens) / 2.0, share, context), drafts)
    mixed = costs.step(shards, replace(work, rank_tokens=decoded + prompts * tokens * prefilling / ranks))
    added = np.maximum(mixed.seconds - decode_s, 0.0)
    full_s = decode_s + added / (prompts * tokens) * room
    queue = full_s * isl / room / shards.pp
    return Prefill(chunks * mixed.seconds, queue, steps * added, steps, mixed, chunks, prompts, room / isl, added)


def colocated_tpot_s(
    decode_s: Floats,
    stretch_s: Floats | float,
    prefill_steps: Floats | float,
    sequences: Floats,
    osl: Floats | float,
    ranks: Floats,
) -> Floats:
    """Mean time per step of a rank that prefills and decodes `sequences`, as do those it makes steps with.

    That is the time per output token where a step yields one; `osl` are the steps of an output. In a pipeline it is a
    pass of all batches as stage 0 stretches it; `pipelines.Holds` says what prompts add in the others.
    """
    prefilled = sequences / osl
    share = np.clip(prefilled * prefill_steps, 1e-12, 1.0)
    any_share = 1.0 - (1.0 - share) ** ranks
    return decode_s + prefilled * stretch_s * any_share / share

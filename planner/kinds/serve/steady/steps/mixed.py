"""Roles that prefill and decode in the same steps: what a step takes at the full batch, over arrays [N] of points."""

from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats, Indices
from planner.costs.operators.forward import ranks_in_step
from planner.costs.operators.work import Shards
from planner.costs.rates.engine_overheads import EngineOverheads
from planner.costs.rates.step import StepTime
from planner.kinds.serve.steady.steps.first_tokens import Engines
from planner.kinds.serve.steady.steps.formulas import Costs, Prefill, colocated_tpot_s, decode_step, prefill_mixed
from planner.kinds.serve.steady.steps.pipelines import Holds, decode_pace_s, held_by_prompts


@dataclass(frozen=True, slots=True)
class MixedSteps:
    """Points that do both at their full batches."""

    decode: StepTime  # without prompts
    prefill: Prefill
    holds: Holds
    engines: Engines


def paced_decode(
    costs: Costs, shards: Shards, batch: Floats, context: Floats, drafts: Floats
) -> tuple[StepTime, Floats]:
    """A step of `batch` sequences a rank without prompts, and its seconds [N] in stages."""
    decode = decode_step(costs, shards, batch, context, drafts)
    return decode, decode_pace_s(costs, shards, batch, context, decode.seconds, drafts)


def mixed_steps(
    costs: Costs,
    shards: Shards,
    shape: Indices,
    batch: Floats,
    chunk: Floats,
    drafts: Floats,
    isl: Floats,
    context: Floats,
    steps: Floats,
    *,
    length_cv2: float,
    cached: float = 0.0,
) -> MixedSteps:
    """Steps of ranks that decode `batch` sequences for `steps` each and prefill `isl` tokens for each of them.

    `shape` numbers the shapes: points of equal number, batch and drafts differ in chunk alone.
    """
    decode, pace_s = paced_decode(costs, shards, batch, context, drafts)
    prefill = prefill_mixed(costs, shards, isl, steps, chunk, batch, context, decode.seconds, drafts, cached=cached)
    holds, ranks = held_by_prompts(prefill, shards, length_cv2), ranks_in_step(costs.arch, shards.dp)
    step_s = colocated_tpot_s(pace_s, prefill.stretch_s, prefill.steps, batch, steps, ranks)
    step_s = step_s + holds.held_s(batch, steps, ranks, shards.pp)
    slope_s = _slopes(costs, shards, shape, batch, context, drafts, pace_s)
    together, prompt_tokens = costs.engine.tokenises_together > 0.0, isl + cached
    engines = Engines(
        stages=shards.pp,
        places=batch,
        room=prefill.room_prompts,
        pace_s=pace_s,
        step_s=step_s,
        prompt_s=prefill.stretch_s * shards.pp,
        steps=steps,
        pace_slope_s=slope_s,
        step_slope_s=slope_s + (step_s - pace_s) / batch,
        sequence_room=(drafts + 1.0) / shards.pp / isl,
        later_s=later_steps(costs.engine, shards.pp) * step_s + costs.engine.request_s(prompt_tokens),
        front_s=np.asarray(costs.engine.turn_s(prompt_tokens)),
        front_ranks=np.ones_like(shards.dp) if together else shards.dp,
    )
    return MixedSteps(decode, prefill, holds, engines)


def later_steps(engine: EngineOverheads, pp: Floats) -> Floats:
    """Mean steps between the last one of a prompt and its token at the client, and looks at requests that are missed.

    That a request waits for the step which is under way is not among them.
    """
    later: Floats = engine.output_steps + np.maximum(engine.poll_steps - 1.0, 0.0) / 2.0 / pp
    return later


def _slopes(
    costs: Costs, shards: Shards, shape: Indices, batch: Floats, context: Floats, drafts: Floats, pace_s: Floats
) -> Floats:
    """Seconds that a step takes longer for a sequence more [N], from a batch of the same shape half as large."""
    key = (shape * (drafts.max(initial=0.0) + 1.0) + drafts) * (batch.max(initial=0.0) + 1.0) + batch
    _, rows, place = np.unique(key, return_index=True, return_inverse=True)
    half = np.maximum(np.floor(batch[rows] / 2.0), 1.0)
    _, half_s = paced_decode(costs, shards.take(rows), half, context[rows], drafts[rows])
    rise_s = np.maximum(pace_s[rows] - half_s, 0.0)
    slopes: Floats = (rise_s / np.maximum(batch[rows] - half, 1.0))[place]
    return slopes

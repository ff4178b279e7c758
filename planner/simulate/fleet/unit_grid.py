"""Step times of attention-FFN disaggregation: attention ranks that share feed-forward devices.

An engine is one micro-batch of one rank; those of all ranks of a micro-batch make their steps together, as long as the
slowest takes. The other micro-batches of the unit are taken to be as large.
"""

from dataclasses import replace

import numpy as np

from planner.arrays import Floats
from planner.costs.operators.work import Work
from planner.costs.rates.engine_overheads import EngineOverheads
from planner.costs.rates.pricer import Pricer
from planner.costs.serving.attention_ffn import RemoteFfn, Units, unit_step
from planner.costs.serving.speculation import Drafter
from planner.models.architecture import Architecture
from planner.simulate.fleet.step_grid import StepGrid, drafting_s, grid_of


def unit_grid(
    arch: Architecture,
    pricer: Pricer,
    engine: EngineOverheads,
    unit: Units,
    far: RemoteFfn | None = None,
    *,
    most_sequences: int,
    longest_tokens: int,
    chunk_tokens: int,
    draft_tokens: int = 0,
    drafter: Drafter | None = None,
) -> StepGrid:
    """The steps of one engine of `unit`, in which the other ranks decode as many sequences.

    A prompt is computed again, after a preemption, on one rank at a time: feed-forward gets it once. Drafts are made on
    the ranks of attention.
    """

    def seconds_of(work: Work) -> Floats:
        many = unit.take(np.zeros(len(work.tokens), dtype=np.intp))
        prompts = work.prefill_tokens * (1.0 - 1.0 / many.ranks)
        step = unit_step(arch, pricer, engine, many, replace(work, rank_tokens=work.tokens - prompts), far)
        return step.seconds + drafting_s(drafter, pricer, many.attention, work)

    return grid_of(
        seconds_of,
        most_sequences=most_sequences,
        longest_tokens=longest_tokens,
        chunk_tokens=chunk_tokens,
        draft_tokens=draft_tokens,
    )

"""Time by operator of the step that dominates each role, kept in the plan for people to read."""

import numpy as np

from planner.arrays import Floats
from planner.costs.operators.work import Shards
from planner.costs.rates.step import StepTime
from planner.kinds.serve.steady.demand import Target
from planner.kinds.serve.steady.evaluate import time_points
from planner.kinds.serve.steady.points import DECODE_BATCHES, Points, PoolCosts, axis
from planner.kinds.serve.steady.roles_in_use import RoleInUse
from planner.kinds.serve.steady.search import ServeSetting
from planner.kinds.serve.steady.units import FfnPart
from planner.plan.schema import StepEvidence

_DIGITS = 6


def step_evidence(setting: ServeSetting, item: RoleInUse) -> dict[str, StepEvidence]:
    """By role, one step at the full batch, or of one chunk of prefill, for the workload that loads the role most.

    Seconds by operator and for the host, largest first, to six digits; of sides apart, those of one micro-batch.
    """
    pool_costs = setting.costs_of_pool[item.candidate.model, item.candidate.pool]
    target = setting.targets[item.most_of]
    batches = _batches(setting, item)
    if item.candidate.ffn is not None:
        return _of_sides(item, item.candidate.ffn, pool_costs, target, batches)
    timed = time_points(item.candidate.function, pool_costs, target, _points(item, batches))
    step, own = timed.step, batches.index(item.candidate.max_batch)
    return {item.role: _evidence(step, own, {"host": step.host_s}, _by_batch(batches, timed.tpot_s))}


def _of_sides(
    item: RoleInUse, ffn: FfnPart, pool_costs: PoolCosts, target: Target, batches: list[int]
) -> dict[str, StepEvidence]:
    """The step of either side, the ways between them with that of attention."""
    sides = item.candidate.sides(pool_costs)
    units = sides.units(item.candidate.shape, ffn.shape, ffn.micro_batches, len(batches))
    step = sides.decode_step(units, np.array(batches, dtype=np.float64), target.context)
    own = batches.index(item.candidate.max_batch)
    _, there, _, back, host = step.stages
    also = {"attention_to_ffn": there, "ffn_to_attention": back, "host": host}
    return {
        item.role: _evidence(step.attention, own, also, _by_batch(batches, step.seconds)),
        item.ffn_role: _evidence(step.ffn, own, {}, None),
    }


def _evidence(
    step: StepTime, own: int, also: dict[str, Floats], tpot_s_by_batch: dict[str, float] | None
) -> StepEvidence:
    seconds = {name: float(times_s[own]) for name, times_s in (step.by_operator | also).items()}
    ordered = sorted(((name, value) for name, value in seconds.items() if value > 0.0), key=lambda row: -row[1])
    return StepEvidence(
        seconds={name: _short(value) for name, value in ordered},
        basis=step.shares(own),  # type: ignore[arg-type]  # names of Basis
        tpot_s_by_batch=tpot_s_by_batch,
    )


def _by_batch(batches: list[int], tpot_s: Floats) -> dict[str, float] | None:
    return {str(b): _short(float(s)) for b, s in zip(batches, tpot_s, strict=True) if s > 0.0} or None


def _short(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def _batches(setting: ServeSetting, item: RoleInUse) -> list[int]:
    """The batch of the role, and the next smaller and larger ones of the axis; of prefill its own alone."""
    own = item.candidate.max_batch
    if item.candidate.function == "prefill":
        return [own]
    known = sorted({int(batch) for batch in axis(setting.options.max_batch, DECODE_BATCHES)} | {own})
    index = known.index(own)
    return known[max(index - 1, 0) : index + 2]


def _points(item: RoleInUse, batches: list[int]) -> Points:
    """The instance type at each batch [N]; its memory is not asked for."""
    shape, ones = item.candidate.shape, np.ones(len(batches))
    return Points(
        shape=np.zeros(len(batches), dtype=np.intp),
        shards=Shards.of(*(degree * ones for degree in shape.degrees)),
        batch=np.array(batches, dtype=np.float64),
        chunk=item.candidate.chunk_tokens * ones,
        drafts=item.candidate.draft_tokens * ones,
        weight_bytes=0.0 * ones,
        activation_bytes=0.0 * ones,
        kv_bytes=(),
        fits=(),
    )

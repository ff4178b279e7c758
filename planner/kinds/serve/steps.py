"""The step that dominates each role of a plan, by operator: what a plan keeps of its costs for people to read."""

import numpy as np

from planner.costs.shapes import Shards
from planner.kinds.serve.evaluate import time_points
from planner.kinds.serve.points import Points
from planner.kinds.serve.solve import Setting
from planner.kinds.serve.used import Used
from planner.plan.schema import StepEvidence

_DIGITS = 6


def step_evidence(setting: Setting, item: Used) -> StepEvidence:
    """One step at the full batch, or of one chunk of prefill, for the workload that loads the role most.

    Seconds by operator and for the host, largest first, to six digits.
    """
    place = setting.places[item.candidate.model, item.candidate.pool]
    target = setting.targets[max(range(len(item.load_per_s)), key=lambda w: item.load_per_s[w])]
    step = time_points(item.candidate.function, place, target, _point(item)).step
    seconds = {name: float(found[0]) for name, found in step.by_operator.items()} | {"host": float(step.host_s[0])}
    ordered = sorted(((name, value) for name, value in seconds.items() if value > 0.0), key=lambda row: -row[1])
    return StepEvidence(
        seconds={name: float(f"{value:.{_DIGITS}g}") for name, value in ordered},
        basis=step.shares(0),  # type: ignore[arg-type]  # names of Basis
    )


def _point(item: Used) -> Points:
    """The instance type as an array of one; its memory is not asked for."""
    shape, one = item.candidate.shape, np.ones(1)
    degrees = (shape.tp, shape.pp, shape.dp, shape.moe_tp, shape.ep)
    return Points(
        shape=np.zeros(1, dtype=np.intp),
        shards=Shards.of(*(degree * one for degree in degrees)),
        batch=item.candidate.max_batch * one,
        chunk=item.candidate.chunk_tokens * one,
        weight_bytes=0.0 * one,
        activation_bytes=0.0 * one,
        kv_bytes=(),
        fits=(),
    )

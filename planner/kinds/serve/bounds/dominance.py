"""Instance types that the mix of a bound may leave out: another one takes the same slots and does no less.

Type B dominates A where both are of one function, model and channel, take the same slots at the same price, and every
coefficient of B in (C1) and (B1) to (B6) of `bounds.bound` is as good. In any mix instances of B then stand in for
those of A with the same loads, so that no optimum, whole or in parts, is lost. Of equals the first is kept.
"""

from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np

from planner.arrays import Floats
from planner.kinds.serve.bounds.types import TypeBound, WorkloadBound
from planner.solvers.mix import MixShape


def undominated(shapes: Sequence[MixShape], bounds: Sequence[TypeBound]) -> list[int]:
    """The places of the types that no other dominates, ascending; nothing is handed over through ports."""
    members: dict[Hashable, list[int]] = {}
    for place, (shape, bound) in enumerate(zip(shapes, bounds, strict=True)):
        alike = replace(shape, name="", rate_per_s=(), egress_bytes_per_s=None, ingress_bytes_per_s=None)
        members.setdefault((alike, bound.engine.model), []).append(place)
    return sorted(
        places[row] for places in members.values() for row in _kept(np.array([_costs(bounds[at]) for at in places]))
    )


def _kept(costs: Floats) -> list[int]:
    """Rows of costs [K, F] that no other is below or equal to in all columns, but for later equals."""
    kept: list[int] = []
    for row in np.lexsort(costs.T[::-1]).tolist():  # ascending: none is dominated by a later one, equals in order
        if not any((costs[other] <= costs[row]).all() for other in kept):
            kept.append(row)
    return kept


def _costs(bound: TypeBound) -> list[float]:
    """All coefficients of a type [F], of which less is better."""
    return [cost for own in bound.workloads if own is not None for cost in _of_workload(own, bound.engine.engines)]


def _of_workload(own: WorkloadBound, engines: int) -> list[float]:
    kept = [0.0, own.good_s / engines] if own.keeps else [1.0, 0.0]
    per_instance = [own.base_s / engines, own.limited_s / engines, -own.spent / engines]
    return [*kept, *per_instance, own.least_tpot_s, *own.late_share, own.idle_s]

"""How sure the times of roles in use are, by own runs where the calibration has those of their model."""

from collections.abc import Iterable

from planner.costs.operators.work import Shards
from planner.kinds.serve.steady.demand import Margins, Target
from planner.kinds.serve.steady.points import PoolCosts

Side = tuple[str, PoolCosts, Shards]
"""Function, costs of the pool and degrees of the instances of a role."""


def margins_in_use(target: Target, sides: Iterable[Side]) -> Margins:
    """By how much limits of a target are divided on these roles: as the one that decodes and is least sure asks."""
    at = target.margins.by_layout
    if at is None:
        return target.margins
    decoding = (each for each in sides if each[0] != "prefill")
    return Margins(target.margins.ttft, max(float(costs.margin(of, shards, at)[0]) for of, costs, shards in decoding))

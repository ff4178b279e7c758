"""Token counts of the experts of one rank for MoE benchmarks: balanced or power-law distributed."""

import numpy as np

from planner.arrays import Floats, Ints
from planner.errors import PlannerError
from planner.hardware.profiling.shapes import BALANCED, ExpertsShape

_MOST = 0.8  # of all tokens, the largest share that one expert gets under a power law
_PREFIX = "power_law_"


def expert_loads(shape: ExpertsShape) -> list[int]:
    """Tokens of each expert on the busiest of the `ep` ranks, ranks holding equal runs of experts.

    `balanced` spreads tokens x top_k choices evenly. `power_law_a` draws loads from a density x^-a truncated to
    [1, 0.8 tokens], by its quantiles, so that the loads are the same in every run, and deals them to experts in a
    fixed random order. Raises PlannerError for another distribution.
    """
    choices = shape.tokens * shape.top_k
    weights = _weights(shape)
    exact = weights / weights.sum() * choices
    loads = np.minimum(np.floor(exact).astype(np.int64), shape.tokens)
    missing = choices - int(loads.sum())
    order = np.argsort(loads - exact, kind="stable")
    for expert in np.resize(order, missing + shape.num_experts * shape.top_k):
        if missing == 0:
            break
        if loads[expert] < shape.tokens:
            loads[expert] += 1
            missing -= 1
    of_rank = loads[: shape.local_experts * shape.ep].reshape(shape.ep, shape.local_experts)
    busiest: Ints = of_rank[int(of_rank.sum(axis=1).argmax())]
    return [int(load) for load in busiest]


def _weights(shape: ExpertsShape) -> Floats:
    if shape.distribution == BALANCED:
        return np.ones(shape.num_experts)
    try:
        if not shape.distribution.startswith(_PREFIX):
            raise ValueError
        exponent = float(shape.distribution.removeprefix(_PREFIX))
    except ValueError:
        raise PlannerError(
            f"the load of experts must be `{BALANCED}` or such as `{_PREFIX}1.2`, found `{shape.distribution}`"
        ) from None
    quantiles = (np.arange(shape.num_experts) + 0.5) / shape.num_experts
    largest = max(2.0, _MOST * shape.tokens)
    if exponent == 1.0:
        loads = largest**quantiles
    else:
        power = 1.0 - exponent
        loads = ((largest**power - 1.0) * quantiles + 1.0) ** (1.0 / power)
    return np.random.default_rng(0).permutation(loads)

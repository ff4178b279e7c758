"""How much fuller than the mean the fullest rank that shares experts is priced, in words."""

from collections.abc import Iterator

import numpy as np

from planner.costs.operators.balanced import fullest_rows
from planner.kinds.serve.steady.roles_in_use import RoleInUse
from planner.kinds.serve.steady.search import ServeSetting
from planner.models.architecture import MoeFfn
from planner.plan.records import BY_NUMBER


def expert_loads(setting: ServeSetting, item: RoleInUse) -> Iterator[str]:
    """Of a role whose experts are placed by load, or lie by number on more ranks than a node has."""
    candidate, apart = item.candidate, item.candidate.ffn
    if apart is None:
        name, shape, place = item.role, candidate.shape, setting.costs_of_pool[candidate.model, candidate.pool]
    else:
        name, shape, place = item.ffn_role, apart.shape, apart.pool_costs
    ranks, redundant = shape.ep, shape.redundant
    if redundant == BY_NUMBER and ranks <= place.pool.node.num_gpus:
        return
    experts = max(layer.ffn.num_experts for layer in place.costs.arch.layers if isinstance(layer.ffn, MoeFfn))
    concentration = setting.calibration.efficiencies.routing_concentration
    full = float(fullest_rows(concentration, experts, np.array([float(ranks)]), np.array([float(redundant)]))[0])
    if redundant != BY_NUMBER:
        yield (
            f"the engine of `{name}` copies {redundant} experts of a layer and places all by load: the fullest of its "
            f"{ranks} ranks has {full:.2f} times the mean load, of loads that move as they do between mixes of lengths"
        )
        return
    yield (
        f"the {ranks} ranks of `{name}` share experts in the order of their numbers and wait for the fullest, at "
        f"{full:.2f} times the mean load; `options.redundant_experts` lets the engine place them by load"
    )

"""Whether two neighbouring ranks are joined by the same link that prefill-to-decode KV transfers take."""

from itertools import islice

import numpy as np

from planner.execute.judge.pricing import plan_pool
from planner.plan.placement import devices
from planner.plan.records import PlanDocument, Role

_PARTNERS = {"prefill": "decode", "decode": "prefill"}


def link_difference(plan: PlanDocument, role: Role) -> str:
    """How the link between the roles differs from that between the first two ranks of `role`; empty where it does not.

    Both by the placement of the plan, and the level of the pool's topology that they cross.
    """
    partner = next((other for other in plan.roles if other.function == _PARTNERS.get(role.function)), None)
    if partner is None:
        return "there is no role to send to"
    if partner.pool != role.pool:
        return f"`{partner.name}` is in the pool `{partner.pool}`"
    own = [device for block in plan.placement if block.role == role.name for device in islice(devices(block), 2)][:2]
    theirs = [next(devices(block)) for block in plan.placement if block.role == partner.name][:1]
    if len(own) < 2 or not theirs:
        return "the plan does not place two ranks of the one role and one of the other"
    topology = plan_pool(plan, role.pool).topology()
    beside, between = topology.spanning_level(np.array([own, [own[0], *theirs]]))
    if beside == between:
        return ""
    names = [level.name for level in topology.levels]
    return f"ranks are joined by {names[beside]}, the roles by {names[between]}"

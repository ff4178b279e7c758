"""Roles of attention-FFN disaggregation in a plan: which attention and feed-forward roles belong together."""

from typing import TypeVar

from planner.plan.schema import Decision, Role

D = TypeVar("D", bound=Decision)
ATTENTION, FFN = "attention", "ffn"


def ffn_roles(decision: Decision) -> dict[str, Role]:
    """By attention role, the ffn role that its activations go to, where that is one."""
    named = {role.name: role for role in decision.roles}
    goals: dict[str, set[str]] = {}
    for route in decision.routing:
        if route.source is not None and named[route.source].function == ATTENTION:
            goals.setdefault(route.source, set()).add(route.to)
    goal_of = {source: named[next(iter(names))] for source, names in goals.items() if len(names) == 1}
    return {source: role for source, role in goal_of.items() if role.function == FFN}


def without_ffn(decision: D) -> D:
    """The decision as requests see it: feed-forward roles take none."""
    gone = {role.name for role in decision.roles if role.function == FFN}
    if not gone:
        return decision
    return decision.model_copy(
        update={
            "roles": tuple(role for role in decision.roles if role.name not in gone),
            "routing": tuple(route for route in decision.routing if route.to not in gone),
        }
    )

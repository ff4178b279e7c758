"""Simulates a plan of equal engines under elastic sequence parallelism (LoongServe)."""

from collections.abc import Sequence
from dataclasses import replace

from planner.errors import PlannerError
from planner.hardware.cluster import Pool
from planner.models.architecture import Architecture
from planner.plan.schema import Role
from planner.simulate.fleet.elastic import most_prefill_tokens
from planner.simulate.fleet.instances import Fleet
from planner.simulate.fleet.operation import ElasticEngines
from planner.simulate.fleet.operation_spec import ElasticSpec

WHERE = "operation: elastic"


def require_equal_engines(roles: Sequence[Role]) -> None:
    """Refuses plans but those of one role, whose engines are whole and do both prefill and decode."""
    (role, *others) = roles
    if others:
        raise PlannerError(
            f"the plan has the roles {', '.join(f'`{each.name}`' for each in roles)}, which do not share a cache",
            where=WHERE,
            hint="give a plan of one role: `options: {modes: [colocated]}`",
        )
    if role.function != "colocated":
        raise PlannerError(
            f"role `{role.name}` is of function `{role.function}`",
            where=WHERE,
            hint="give a plan of one role: `options: {modes: [colocated]}`",
        )
    if role.parallelism.pp > 1:
        raise PlannerError(
            f"the engines of role `{role.name}` are pipelines of {role.parallelism.pp} stages",
            where=WHERE,
            hint="give a plan without pipelines: `options: {pp: [1]}`",
        )


def elastic_prefill_tokens(role: Role, token_budget: int, longest_prompt: int) -> int:
    """Tokens that an engine of the only role may prefill in a step: those of all, and any prompt whole."""
    return most_prefill_tokens(token_budget, role.replicas * role.parallelism.dp, longest_prompt)


def elastic_fleet(fleet: Fleet, spec: ElasticSpec, arch: Architecture, pool: Pool) -> Fleet:
    """The same engines as elastic instances, whose rings and exchanges go over the links that move their caches.

    A layer of a decode step that engines share hands queries over and gets partial results back: a latency each.
    """
    within = pool.num_nodes * pool.node.num_gpus <= pool.node.scale_up_size
    latency_s = pool.node.scale_up_latency_s if within else pool.node.nic_latency_s
    elastic = ElasticEngines(
        ring_tokens_per_s=fleet.instances[0].link_tokens_per_s,
        exchange_s=2.0 * len(arch.layers) * latency_s,
        borrows=spec.borrows,
        scale_up_above=spec.scale_up_above,
    )
    return replace(fleet, elastic=elastic)

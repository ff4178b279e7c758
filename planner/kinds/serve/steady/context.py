"""The context of serving roles: tokens that prompt and answer of one request may have together.

A problem states it, and then every role has it; instance types whose KV cache does not hold one such sequence are out
of the space, as engines refuse to start on them (vLLM 0.33 v1/core/kv_cache_utils.py, `check_enough_kv_cache_memory`).
Where it is left open, a role has the model's own limit, or as much of it as one sequence has room for.
"""

from dataclasses import dataclass

import numpy as np

from planner.costs.operators.work import Shards
from planner.errors import PlannerError
from planner.kinds.serve.steady.candidates import Candidate
from planner.kinds.serve.steady.demand import served_of
from planner.kinds.serve.steady.points import Needs, PoolCosts
from planner.problem.resolve import Resolved
from planner.simulate.fleet.instances import BLOCK_TOKENS

ALL = 1.0 - 1e-9  # of the requests: none is served whole


def context_of(resolved: Resolved, index: int) -> int:
    """The context that the requests of a workload are served with.

    Raises PlannerError where it is beyond the model's own limit, where no request of the workload is served whole, or
    where more are refused than the attainment of the workload leaves.
    """
    workload = resolved.workloads[index]
    arch, stated = resolved.models[workload.model], resolved.problem.engine.max_context_tokens
    own, where = arch.max_context_tokens, resolved.where(("engine", "max_context_tokens"))
    if stated is not None and stated > own:
        raise PlannerError(
            f"a context of {stated} tokens is beyond the own limit of {arch.name}, {own}",
            where=where,
            hint=f"write `max_context_tokens: {own}` or less, or leave it out",
        )
    context = stated or own
    served = served_of(workload, context)
    limit = f"`engine.max_context_tokens` is {context}" if stated else f"{arch.name} takes {context}"
    hint = "raise `engine.max_context_tokens`" if stated and stated < own else "name a model with a longer context"
    if served.refused_share + served.cut_share >= ALL:
        what = "no prompt leaves room for an answer" if served.refused_share >= ALL else "no answer comes to its end"
        raise PlannerError(
            f"{what}: the requests of `{workload.spec.name}` are longer than the context, {limit} tokens",
            where=resolved.where(("workloads", index, "input_tokens")),
            hint=f"shorten them, or {hint}",
        )
    wanted = workload.spec.slo.attainment
    if wanted is not None and served.refused_share > 1.0 - wanted:
        raise PlannerError(
            f"{served.refused_share:.2%} of the requests of `{workload.spec.name}` are refused, {limit} tokens, and "
            f"{wanted:.2%} of them are to keep their limits",
            where=resolved.where(("workloads", index, "slo", "attainment")),
            hint=f"lower `attainment`, shorten the prompts, or {hint}",
        )
    return context


@dataclass(frozen=True, slots=True)
class RoleContext:
    """The context of an instance type, and what one sequence of it takes of the KV cache of a device."""

    tokens: int
    own_tokens: int  # the model's own limit
    sequence_bytes: float  # of one sequence of `tokens`
    room_bytes: float  # of a device for KV caches


def role_context(candidate: Candidate, pool_costs: PoolCosts) -> RoleContext:
    """The context of the roles of an instance type."""
    own = pool_costs.costs.arch.max_context_tokens
    tokens = pool_costs.held_tokens or largest_context(candidate, pool_costs)
    return RoleContext(tokens, own, _sequence_bytes(candidate, pool_costs, tokens), _room(candidate, pool_costs))


def largest_context(candidate: Candidate, pool_costs: PoolCosts) -> int:
    """Tokens of the longest sequence that has room beside weights and activations, up to the model's own limit.

    Whole blocks where memory ends it, by halving: a cache grows with its sequence.
    """
    own, room = pool_costs.costs.arch.max_context_tokens, _room(candidate, pool_costs)
    if _sequence_bytes(candidate, pool_costs, own) <= room:
        return own
    low, high = 0, -(-own // BLOCK_TOKENS)
    while high - low > 1:
        middle = (low + high) // 2
        fits = _sequence_bytes(candidate, pool_costs, middle * BLOCK_TOKENS) <= room
        low, high = (middle, high) if fits else (low, middle)
    return max(low * BLOCK_TOKENS, 1)


def _room(candidate: Candidate, pool_costs: PoolCosts) -> float:
    """Bytes of one device for KV caches."""
    return pool_costs.room_bytes - candidate.weights_bytes - candidate.activations_bytes


def _sequence_bytes(candidate: Candidate, pool_costs: PoolCosts, tokens: int) -> float:
    """KV cache on one device of one sequence, that of a drafter included."""
    drafts = np.array([float(candidate.draft_tokens)])
    verified = drafts * (candidate.function != "prefill")
    shards = Shards.of(*(float(degree) for degree in candidate.shape.degrees))
    return float(Needs(drafts, drafts, drafts, verified).kv_bytes(pool_costs.costs, shards, float(tokens))[0])

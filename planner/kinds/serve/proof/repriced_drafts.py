"""Prices roles with drafts, steps in two batches or experts placed by load again, with the costs that the plan names.

The search is run on the one shape of each role, with all batches and chunks that the problem allows, since what a step
takes longer for a sequence more is told by another batch of its shape (`steps.mixed`): the type that it finds must have
the memory that the role states, the rates that the proof counts on, and the tokens a step that the decision claims. A
type that breaks limits is not found.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

from planner.documents.units import format_si
from planner.kinds.serve.options import ServeDecision
from planner.kinds.serve.proof.stated import not_judged, setting_of_plan, shape_of, stated_types
from planner.kinds.serve.steady.candidates import Candidate
from planner.kinds.serve.steady.points import Tally
from planner.kinds.serve.steady.search import ServeSetting, list_candidates, shape_spaces
from planner.plan.findings import Finding
from planner.plan.instance_types import name_of_role
from planner.plan.records import BY_NUMBER
from planner.plan.schema import Envelope, Role
from planner.problem.schema import Problem
from planner.solvers.mix import MixShape

REL_TOL = 1e-6
_HINT = "solve again: this is not what the costs of the plan give"
_MODE = {"colocated": "colocated", "prefill": "disaggregated", "decode": "disaggregated"}


def repriced_drafts(envelope: Envelope, decision: ServeDecision, problem: Problem) -> Iterator[Finding]:
    """Of each such role: that it can be, its memory, and its rates in the proof; and what a step with drafts yields."""
    roles = [role for role in decision.roles if _chosen(role)]
    if not roles and decision.drafting is None:
        return
    setting = setting_of_plan(envelope, problem, "serve.drafts")
    if isinstance(setting, Finding):
        yield setting
        return
    yield from _yielded(decision, setting, [role for role in roles if role.limits.get("draft_tokens")])
    for role in roles:
        yield from _role(envelope, role, setting)


def _chosen(role: Role) -> str:
    """What a role does that the problem lets the search choose, in words; empty where it does nothing of it."""
    shape, drafts = shape_of(role), role.limits.get("draft_tokens")
    placed = f"experts placed by load, {shape.redundant} of them copied," if shape.redundant != BY_NUMBER else ""
    parts = (f"{drafts} drafts a step" if drafts else "", "steps in two batches" * (shape.micro_batches > 1), placed)
    return " and ".join(filter(None, parts))


def _role(envelope: Envelope, role: Role, setting: ServeSetting) -> Iterator[Finding]:
    where = f"roles.{role.name}"
    types = stated_types(envelope, name_of_role(role))
    stated = next((shape for shape in types if any(rate > 0.0 for rate in shape.rate_per_s)), None)
    candidates = {candidate.name: candidate for candidate in _priced(role, setting)}
    used, named = setting.profile_digests, set(envelope.digests.profiles)
    if not used <= named or bool(used) != bool(named):
        yield not_judged("serve.drafts", "the plan was costed with kernel tables that are not at hand", where)
        return
    if stated is None:
        yield not_judged("serve.drafts", "the proof has no such instance", where)
        return
    own = candidates.get(stated.name)
    what = f"{_chosen(role)} {'keep the limits' if own else 'are not searched for, do not fit, or break the limits'}"
    yield Finding("serve.drafts", own is not None, what, f"{where}.limits", _HINT)
    if own is not None:
        yield from _memory(role, own)
        yield from _rates(role, own, stated)


def _priced(role: Role, setting: ServeSetting) -> list[Candidate]:
    """What the search finds of the one shape of a role."""
    shape, options, mode = role.parallelism, setting.options, _MODE.get(role.function)
    pools = [pool.name for pool in setting.resolved.pools]
    if mode is None or role.pool not in pools or (role.model, pools.index(role.pool)) not in setting.costs_of_pool:
        return []
    axes = {name: (getattr(shape, name),) for name in ("tp", "pp", "dp", "ep")}
    alone = options.model_copy(update={"modes": (mode,), **axes})
    spaces = shape_spaces(setting.costs_of_pool, setting.release, alone)
    candidates = list_candidates(replace(setting, options=alone, spaces=spaces, priced={}), setting.targets, Tally())
    own = role.model, pools.index(role.pool)
    return [candidate for candidate in candidates if (candidate.model, candidate.pool) == own]


def _memory(role: Role, own: Candidate) -> Iterator[Finding]:
    """Weights, the drafter's among them, and activations; the cache is that of a workload that the role serves."""
    if role.memory is None:
        return
    caches = [capacity.kv_bytes for capacity in own.capacities if capacity is not None]
    parts = (
        ("weights", role.memory.weights_bytes, [own.weights_bytes]),
        ("activations", role.memory.activations_bytes, [own.activations_bytes]),
        ("KV cache", role.memory.kv_cache_bytes, caches),
    )
    for name, stated, needed in parts:
        right = any(math.isclose(stated, value, rel_tol=REL_TOL) for value in needed)
        what = f"{name} of {format_si(stated, 'B')} a device, its steps need {format_si(max(needed), 'B')}"
        yield Finding("serve.draft_memory", right, what, f"roles.{role.name}.memory", _HINT)


def _rates(role: Role, own: Candidate, stated: MixShape) -> Iterator[Finding]:
    for capacity, rate_per_s in zip(own.capacities, stated.rate_per_s, strict=False):
        if capacity is not None:
            right = math.isclose(capacity.rate_per_s, rate_per_s, rel_tol=REL_TOL)
            what = f"{capacity.rate_per_s:.6g} requests/s of a replica, the proof has {rate_per_s:.6g}"
            yield Finding("serve.draft_rate", right, what, f"roles.{role.name}", _HINT)


def _yielded(decision: ServeDecision, setting: ServeSetting, roles: list[Role]) -> Iterator[Finding]:
    """Whether the decision states what a step of each role yields, at the acceptance of the problem."""
    stated = decision.drafting.tokens_per_step if decision.drafting is not None else {}
    decoding = [role for role in roles if role.function != "prefill"]
    wanted = {}
    for role in decoding:
        drafters = (
            pool_costs.costs.drafter for (model, _), pool_costs in setting.costs_of_pool.items() if model == role.model
        )
        drafter = next(drafters, None)
        if drafter is not None:
            wanted[role.name] = float(drafter.tokens_per_step(float(role.limits["draft_tokens"])))
    right = stated.keys() == wanted.keys() and all(
        math.isclose(tokens, wanted[name], rel_tol=REL_TOL) for name, tokens in stated.items()
    )
    what = ", ".join(f"{name} {tokens:.4g}" for name, tokens in wanted.items()) or "none"
    what = f"tokens a step: {what}" if right else f"tokens a step should be {what}"
    yield Finding("serve.tokens_per_step", right, what, "drafting", _HINT)

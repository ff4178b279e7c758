"""The memory of a plan read off its decision again, and what its search for memory stated."""

from dataclasses import replace

from planner.errors import PlannerError
from planner.kinds.serve.cached.choices import prefix_choices_of
from planner.kinds.serve.options import ServeDecision
from planner.kinds.serve.plan.memory import CONFIRMED, MEMORY, beside_memory
from planner.plan.schema import Certificate, Envelope
from planner.problem.resolve import Resolved


def bought_again(resolved: Resolved, stated: Envelope, decision: ServeDecision) -> Resolved:
    """The problem with the units of memory that the plan buys; raises PlannerError for units that cannot be."""
    spec, memory = resolved.problem.cache, decision.cache
    if spec is None or memory is None:
        if spec is None and memory is None:
            return resolved
        what = "buys memory that the problem does not offer" if spec is None else "says nothing of the memory on offer"
        raise PlannerError(f"the plan {what}", where="decision.cache", hint="solve the problem again")
    units = tuple(tier.units for tier in memory.tiers)
    if [tier.name for tier in memory.tiers] != [tier.name for tier in spec.tiers] or any(
        count > tier.max_units for count, tier in zip(units, spec.tiers, strict=True)
    ):
        raise PlannerError("other tiers, or more units than are on offer", where="decision.cache", hint="solve again")
    cached = prefix_choices_of(resolved).of(units)
    if cached is None:
        raise PlannerError(
            "a tier gives more in a window than its bandwidth", where="decision.cache", hint="solve again"
        )
    stated_memory = stated.certificate.proof.get(MEMORY)
    tightened = stated_memory.get("tightened") if isinstance(stated_memory, dict) else None
    factors = tightened if isinstance(tightened, dict) else {}
    pairs = tuple(sorted((name, float(value)) for name, value in factors.items() if isinstance(value, int | float)))
    return replace(resolved, cached=replace(cached, tightened=pairs, none_above=memory.none_above))


def beside_memory_again(proven: Certificate, stated: Certificate) -> Certificate:
    """The certificate of the mix with what the search for memory, and the simulation of its plan, said."""
    memory = stated.proof.get(MEMORY)
    proven = beside_memory(proven, memory if isinstance(memory, dict) else None)
    if CONFIRMED in stated.proof:
        proven = proven.model_copy(update={"proof": {**proven.proof, CONFIRMED: stated.proof[CONFIRMED]}})
    return proven

"""The memory of a plan read off its decision again, and what its search for memory stated."""

import math
from collections.abc import Iterator
from dataclasses import replace

from pydantic import JsonValue

from planner.errors import PlannerError
from planner.kinds.serve.cached.choices import prefix_choices_of
from planner.kinds.serve.cached.solve import MemorySearch
from planner.kinds.serve.options import ServeDecision, ServeOptions
from planner.kinds.serve.plan.memory import MEMORY, beside_memory
from planner.kinds.serve.steady.search import prepare
from planner.plan.findings import Finding
from planner.plan.schema import Certificate, Envelope
from planner.problem.recorded import AtHand, resolved_again
from planner.problem.resolve import Resolved
from planner.progress import Limits

REL_TOL = 1e-6
RULE, PLACE = "certificate.memory", "certificate.proof.memory"


def bought_again(resolved: Resolved, decision: ServeDecision) -> Resolved:
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
    return replace(resolved, cached=replace(cached, none_above=memory.none_above))


def beside_memory_again(proven: Certificate, stated: Certificate) -> Certificate:
    """The certificate of the mix with what the search for memory said."""
    memory = stated.proof.get(MEMORY)
    return beside_memory(proven, memory if isinstance(memory, dict) else None)


def memory_findings(envelope: Envelope, hand: AtHand) -> Iterator[Finding]:
    """One finding for what a plan says of the search for memory, held against that search made again.

    The search is one of formulas: its bound is on their optimum, and not on what simulation finds.
    """
    stated = envelope.certificate.proof.get(MEMORY)
    if not isinstance(stated, dict):
        return
    digests, confidence = envelope.digests, envelope.certificate.confidence
    resolved = resolved_again(envelope.inputs, ServeOptions, hand, digests.profiles, confidence)
    search = MemorySearch(prepare(resolved), prefix_choices_of(resolved), Limits())
    answer = search.cheapest()
    for name, again in search.proof(answer).items():
        own = stated.get(name)
        if name == "mixes":  # a search that also asked for the price of none counts more
            continue
        same = _same(own, again)
        what = f"memory for prefixes, searched again: {name} {again}" + ("" if same else f", the plan states {own}")
        yield Finding(RULE, same, what, f"{PLACE}.{name}", "solve again: the search does not give this")


def _same(stated: JsonValue, again: JsonValue) -> bool:
    if isinstance(stated, int | float) and isinstance(again, int | float):
        return math.isclose(stated, again, rel_tol=REL_TOL)
    return stated == again

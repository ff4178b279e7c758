"""Solves a serving problem with memory for prefixes on offer: units of memory and instances in one optimum.

For units n of memory the trace says what prompts have left to compute and how long they wait for tiers, and the mix of
instances for that is the one of any serving problem: `g(n)` of `solvers.caches.memory_boxes`. Its floor for all units
up to u is the mix for prompts that u spares most, and that wait for nothing: with fewer units every prompt computes no
less, and more work of every prompt takes no fewer instances.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from pydantic import JsonValue

from planner.errors import Infeasible, PlannerError
from planner.kinds.serve.cached.choices import prefix_choices_of, trace_of
from planner.kinds.serve.cached.confirm import Confirmation, confirmation
from planner.kinds.serve.plan.memory import CONFIRMED, beside_memory
from planner.kinds.serve.steady.limits import explain_infeasible
from planner.kinds.serve.steady.search import ServeSetting, prepare, search
from planner.kinds.serve.verified.verifiable import ASKED, unverifiable
from planner.plan.schema import Certificate, Envelope
from planner.problem.cached_prefixes import CachedPrefixes
from planner.problem.resolve import Resolved
from planner.progress import Limits
from planner.simulate.prefixes.choices import PrefixChoices
from planner.solvers.caches.memory_boxes import Machines, MemoryProblem, Units, cheapest_memory, none_above
from planner.solvers.result import SolveResult

WITHOUT = "without memory for prefixes"
AS_TIGHT = ", under limits held as tight"
MOST_TRIES = 5  # plans that are simulated, each under tighter limits than the one before
Formulas = Callable[[Resolved, Limits], Envelope]

Tightened = tuple[tuple[str, float], ...]


def solve_cached(resolved: Resolved, limits: Limits, by_formulas: Formulas) -> Envelope:
    """The plan of least cost, memory included, that simulation confirms where it may; `by_formulas` plans the mix.

    Raises Infeasible where no memory lets any mix keep the limits.
    """
    setting = prepare(resolved)
    choices, asked = prefix_choices_of(resolved), setting.options.judged_by
    why = ASKED if asked == "queueing" else unverifiable(setting)
    tightened: Tightened = ()
    floor: float | None = None
    plan: Envelope | None = None
    for number in range(1, MOST_TRIES + 1):
        limits.tell("pricing memory for prefixes")
        search_of = MemorySearch(setting, choices, limits, tightened)
        answer = search_of.cheapest()
        if answer.solution is None:
            break
        floor = answer.bound if floor is None else floor
        plan = search_of.plan(answer, floor, by_formulas)
        if why is not None:
            return plan
        limits.tell("simulating the plan with its memory")
        told = confirmation(plan, trace_of(resolved))
        if told.kept:
            return _confirmed(plan, told, number)
        tightened = told.tighter(tightened)
    if plan is None:
        raise search_of.infeasible()
    if asked == "verification":
        raise PlannerError(
            "no plan was verified: every one that was simulated broke a limit",
            where=resolved.where(("options", "judged_by")),
            hint="take `--level static`, whose answer is an estimate, or loosen the limits",
        )
    return plan


def _confirmed(plan: Envelope, told: Confirmation, tries: int) -> Envelope:
    """The plan as one that simulation confirms, no estimate."""
    proof = {**plan.certificate.proof, CONFIRMED: {"tries": tries, **told.evidence}}
    certificate = plan.certificate.model_copy(update={"estimate": None, "proof": proof})
    return plan.model_copy(update={"certificate": certificate})


@dataclass(slots=True)
class MemorySearch:
    """What machines cost beside any units of memory, under limits that may be tighter than the problem's."""

    setting: ServeSetting
    choices: PrefixChoices
    limits: Limits
    tightened: Tightened
    problem: MemoryProblem = field(init=False)
    machines: Machines = field(init=False)

    def __post_init__(self) -> None:
        tiers = self.choices.spec.tiers
        self.problem = MemoryProblem(
            tuple(self.choices.usd_per_hour(k) for k in range(len(tiers))),
            tuple(tier.max_units for tier in tiers),
            self._value,
            self._floor,
        )
        self.machines = Machines(self.problem)

    def cheapest(self) -> SolveResult[Units]:
        """The units of least cost with their mix; without a solution where no mix keeps the limits."""
        return cheapest_memory(self.problem, self.machines, gap=self.limits.gap or 0.0)

    def plan(self, answer: SolveResult[Units], floor: float | None, by_formulas: Formulas) -> Envelope:
        """The plan at the units of an answer, with what the search says of others; `floor` bounds every plan."""
        units = answer.solution
        assert units is not None
        cached, alone = self._tight(self.choices.of(units)), self.machines.value((0,) * len(units))
        assert cached is not None
        cached = replace(cached, none_above=none_above(self.problem, self.machines, units) if any(units) else None)
        plan = by_formulas(replace(self.setting.resolved, cached=cached), self.limits)
        certificate = beside_memory(plan.certificate, self._memory(floor))
        return plan.model_copy(
            update={"certificate": self._beside_none(certificate, alone) if any(units) else certificate}
        )

    def _memory(self, floor: float | None) -> dict[str, JsonValue]:
        """What the search for memory says, as a part of the proof."""
        return {
            "method": "boxes",
            "bound": floor,
            "choices": math.prod(most + 1 for most in self.problem.most_K),
            "mixes": self.machines.asked,
            "tightened": dict(self.tightened),
        }

    def _value(self, units: Units) -> float:
        cached = self._tight(self.choices.of(units))
        return math.inf if cached is None else self._mix(cached)

    def _floor(self, units: Units) -> float:
        cached = self._tight(self.choices.at_best(units))
        assert cached is not None
        return self._mix(cached)

    def _tight(self, cached: CachedPrefixes | None) -> CachedPrefixes | None:
        return None if cached is None else replace(cached, tightened=self.tightened)

    def _mix(self, cached: CachedPrefixes) -> float:
        """The least cost of instances for prompts of which memory has so much; infinite where none do."""
        beside = with_memory(self.setting, cached)
        outcome = search(beside, beside.targets, self.limits, tie_break=False)
        value = outcome.objective
        return math.inf if value is None or not outcome.has_mix else value - cached.usd_per_hour

    def _beside_none(self, certificate: Certificate, alone: float) -> Certificate:
        """The certificate with the best plan that buys no memory, under the same limits, among the others."""
        value, others = certificate.objective.value, certificate.next_best
        assert value is not None
        name = WITHOUT + (AS_TIGHT if self.tightened else "")
        none: JsonValue = {"plan": name, "objective": None, "loss": None}
        if alone < math.inf:
            none = {"plan": name, "objective": alone, "loss": abs(alone - value) / max(abs(value), 1e-9)}
        return certificate.model_copy(update={"next_best": [none, *(others if isinstance(others, list) else [])]})

    def infeasible(self) -> Infeasible:
        """The limits that no mix keeps with all memory there is."""
        most = self._tight(self.choices.at_best(self.problem.most_K))
        assert most is not None
        return explain_infeasible(with_memory(self.setting, most), self.limits)


def with_memory(setting: ServeSetting, cached: CachedPrefixes) -> ServeSetting:
    """A setting without memory for prefixes as one with it; its prompts are priced anew."""
    targets = tuple(target.beside(cached) for target in setting.targets)
    options, resolved = setting.options.roomier(cached.factor("prefill")), replace(setting.resolved, cached=cached)
    return replace(setting, resolved=resolved, options=options, targets=targets, priced={})

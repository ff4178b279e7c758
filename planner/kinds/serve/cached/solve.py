"""Solves a serving problem with memory for prefixes on offer: units of memory and instances at least cost together.

For units n of memory the trace says what prompts have left to compute and how long they wait for tiers, and the mix of
instances for that is the one of any serving problem: `g(n)` of `solvers.caches.memory_boxes`. Its floor for all units
up to u is the mix for prompts that u spares most, and that wait for nothing: with fewer units every prompt computes no
less, and more work of every prompt takes no fewer instances. That optimum is one of formulas, and says which units are
worth a simulation, with instances of all forms; beside these, and beside none, the cheapest mix that keeps the limits
is looked for in simulation of the trace with its tiers, of measured forms where they are preferred (`choice`), as it
is for any serving problem (`verified`).
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from pydantic import JsonValue

from planner.errors import Infeasible, PlannerError, Stopped
from planner.kinds.serve.bounds.bound import ProblemBounds
from planner.kinds.serve.cached.choices import prefix_choices_of
from planner.kinds.serve.choice import chosen, searched
from planner.kinds.serve.options import ServeDecision
from planner.kinds.serve.plan.memory import MEMORY, beside_memory
from planner.kinds.serve.steady.conflicts.limits import explain_infeasible
from planner.kinds.serve.steady.search import ServeSetting, prepare, search
from planner.kinds.serve.verified.budget import OutOfTime
from planner.kinds.serve.verified.loop import Brief
from planner.kinds.serve.verified.orders import TIME_LIMIT
from planner.kinds.serve.verified.preferred import solve_preferred
from planner.kinds.serve.verified.verifiable import ASKED, Unverified, estimated, unverifiable
from planner.plan.schema import Envelope
from planner.problem.cached_prefixes import CachedPrefixes
from planner.problem.resolve import Resolved
from planner.progress import Limits
from planner.simulate.fleet.shared_grids import SharedGrids
from planner.simulate.prefixes.choices import PrefixChoices
from planner.solvers.caches.memory_boxes import Machines, MemoryProblem, Units, cheapest_memory, none_above
from planner.solvers.result import SolveResult, relative_loss

WITHOUT = "without memory for prefixes"
SAME = 1e-9  # share of tokens
MORE = 2  # times the units that formulas prefer: what is simulated too, where that may cost less
NO_PLAN = "no plan with its memory kept the limits in simulation"
Formulas = Callable[[Resolved, Limits], Envelope]


def solve_cached(resolved: Resolved, limits: Limits, by_formulas: Formulas) -> Envelope:
    """The plan of least cost, memory included, of those that simulation finds to keep the limits.

    An estimate of `by_formulas`, which plans the mix, where none is simulated or none of them does.
    Raises Infeasible where no memory lets any mix keep the limits.
    """
    started_s = time.monotonic()
    setting = prepare(resolved)
    search_of = MemorySearch(setting, prefix_choices_of(resolved), limits)
    asked = setting.options.judged_by
    why = ASKED if asked == "queueing" else unverifiable(setting)
    limits.tell("pricing memory for prefixes")
    answer = search_of.cheapest()
    if why is None:
        bounds = ProblemBounds.within(search_of.free, limits, started_s)
        verified, why = VerifiedMemory(search_of, bounds, started_s).plan(answer)
        if verified is not None:
            return verified
    if answer.solution is None:
        raise search_of.infeasible()
    if asked == "verification":
        raise PlannerError(
            f"no plan was verified: {why}",
            where=resolved.where(("options", "judged_by")),
            hint="take `--level static`, whose answer is an estimate, or loosen the limits",
        )
    return estimated(search_of.plan(answer, by_formulas), why)


@dataclass(slots=True)
class MemorySearch:
    """What machines cost beside any units of memory, by formulas."""

    setting: ServeSetting
    choices: PrefixChoices
    limits: Limits
    problem: MemoryProblem = field(init=False)
    machines: Machines = field(init=False)
    mixes: dict[object, float] = field(default_factory=dict)  # least costs of instances, by what memory does to prompts

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

    def plan(self, answer: SolveResult[Units], by_formulas: Formulas) -> Envelope:
        """The plan at the units of an answer, with what the search says of others, which bounds every plan."""
        units = answer.solution
        assert units is not None
        cached, alone = self.choices.of(units), self.machines.value(self.none)
        assert cached is not None
        cached = replace(cached, none_above=none_above(self.problem, self.machines, units) if any(units) else None)
        plan = by_formulas(replace(self.setting.resolved, cached=cached), self.limits)
        certificate = beside_memory(plan.certificate, self.proof(answer))
        plan = plan.model_copy(update={"certificate": certificate})
        return _beside_none(plan, None if alone == math.inf else alone) if any(units) else plan

    def proof(self, answer: SolveResult[Units]) -> dict[str, JsonValue]:
        """What the search for memory says, as a part of a proof."""
        return {
            "method": "boxes",
            "units": None if answer.solution is None else list(answer.solution),
            "bound": answer.bound,
            "choices": math.prod(most + 1 for most in self.problem.most_K),
            "mixes": self.machines.asked,
        }

    @property
    def none(self) -> Units:
        """No unit of any tier."""
        return (0,) * len(self.problem.most_K)

    @property
    def free(self) -> ServeSetting:
        """The problem beside memory that costs nothing, of which nothing is said but what no memory spares."""
        return with_memory(self.setting, self.choices.at_best(self.none))

    def _value(self, units: Units) -> float:
        cached = self.choices.of(units)
        return math.inf if cached is None else self._mix(cached)

    def _floor(self, units: Units) -> float:
        return self._mix(self.choices.at_best(units))

    def _mix(self, cached: CachedPrefixes) -> float:
        """The least cost of instances for prompts of which memory has so much; infinite where none do.

        Beyond some size more memory has no more of them, and changes no mix.
        """
        shares = tuple(tier.hit_share for tier in cached.tiers)
        key = shares, cached.computed_cv, cached.before_tokens, cached.fetch_s_R.tobytes()
        if key not in self.mixes:
            self.mixes[key] = self._searched(cached)
        return self.mixes[key]

    def _searched(self, cached: CachedPrefixes) -> float:
        beside = with_memory(self.setting, cached)
        outcome = search(beside, beside.targets, self.limits, tie_break=False)
        value = outcome.objective
        return math.inf if value is None or not outcome.has_mix else value - cached.usd_per_hour

    def infeasible(self) -> Infeasible:
        """The limits that no mix keeps with all memory there is."""
        return explain_infeasible(with_memory(self.setting, self.choices.at_best(self.problem.most_K)), self.limits)


@dataclass(slots=True)
class VerifiedMemory:
    """The cheapest plan beside each of a few choices of memory that keeps the limits in simulation."""

    formulas: MemorySearch
    bounds: ProblemBounds  # of the problem beside memory that costs nothing
    started_s: float = field(default_factory=time.monotonic)
    why: str = NO_PLAN  # there is no plan
    cut: bool = False  # whether the time limit ended a search
    grids: SharedGrids = field(default_factory=SharedGrids)  # steps are alike, whatever memory engines have beside
    costs: dict[Units, float | None] = field(default_factory=dict)  # simulated; None: no plan kept the limits

    def plan(self, answer: SolveResult[Units]) -> tuple[Envelope | None, str]:
        """The cheapest of them with what the others cost, or None; and why there is none."""
        plans: dict[Units, Envelope] = {}
        for units in self._units(answer):
            plan = self._beside(units, self._below(units))
            self.costs[units] = None if plan is None else _cost(plan)
            if plan is not None:
                plans[units] = plan
                self.cut = self.cut or plan.certificate.stop_reason == TIME_LIMIT
        if not plans:
            return None, self.why
        best = min(plans, key=lambda units: _cost(plans[units]))
        alone = plans.get(self.formulas.none)
        plan = self._proven(plans[best], answer)
        return (self._worth(plan, None if alone is None else _cost(alone)) if any(best) else plan), ""

    def _units(self, answer: SolveResult[Units]) -> Iterator[Units]:
        """Those that formulas prefer, more of each that they buy where that may cost less, and none."""
        most = self.formulas.problem.most_K
        units = most if answer.solution is None else answer.solution
        yield units
        more = tuple(min(MORE * count, most_k) for count, most_k in zip(units, most, strict=True))
        cost, bound = self.costs[units], self.bounds.whole.value
        least = None if bound is None else bound + self.formulas.problem.memory(more)
        if self._give_more(more, units) and (cost is None or least is None or least < cost):
            yield more
        if any(units):
            yield self.formulas.none

    def _give_more(self, more: Units, units: Units) -> bool:
        """Whether a tier has tokens of more prompts: of all that are ever asked for again a few units may have all."""
        larger, own = self.formulas.choices.of(more), self.formulas.choices.of(units)
        if larger is None or own is None:
            return larger is not None
        shares = zip(larger.tiers, own.tiers, strict=True)
        return any(abs(tier.hit_share - less.hit_share) > SAME for tier, less in shares)

    def _below(self, units: Units) -> float | None:
        """What instances may cost beside more memory than was bought; None where that is to be known anyway."""
        known = [cost for cost in self.costs.values() if cost is not None]
        return min(known) - self.formulas.problem.memory(units) if known and any(units) else None

    def _beside(self, units: Units, below: float | None) -> Envelope | None:
        """The cheapest mix beside these units that keeps the limits in simulation, of those tried that cost less."""
        setting, choices, limits = self.formulas.setting, self.formulas.choices, self.formulas.limits
        cached = choices.of(units)
        if cached is None:
            return None
        beside = with_memory(setting, cached)
        picked = chosen(beside, limits, partial(searched, tie_break=True))
        try:
            return solve_preferred(picked, limits, self.started_s, self.bounds, Brief(self.grids, below))
        except Unverified as ended:
            self.why = str(ended)
            self.cut = self.cut or isinstance(ended, OutOfTime)
        except Stopped:
            self.cut = True
        except Infeasible:
            pass
        return None

    def _proven(self, plan: Envelope, answer: SolveResult[Units]) -> Envelope:
        """The plan with what formulas say of all memory, and what plans beside the other simulated choices cost."""
        simulated: list[JsonValue] = [
            {"units": list(units), "usd_per_hour": cost} for units, cost in self.costs.items()
        ]
        memory: dict[str, JsonValue] = {**self.formulas.proof(answer), "simulated": simulated}
        certificate = plan.certificate
        update: dict[str, JsonValue] = {"proof": {**certificate.proof, MEMORY: memory}}
        if self.cut and certificate.status != "optimal":
            update["stop_reason"] = TIME_LIMIT
        return plan.model_copy(update={"certificate": certificate.model_copy(update=update)})

    def _worth(self, plan: Envelope, alone: float | None) -> Envelope:
        """The plan with the price of memory from which on the one without costs less."""
        decision = ServeDecision.model_validate(plan.decision)
        memory = decision.cache
        assert memory is not None
        if alone is not None and memory.usd_per_hour > 0.0:
            factor = (alone - _cost(plan)) / memory.usd_per_hour + 1.0
            cache = memory.model_copy(update={"none_above": factor})
            decision = decision.model_copy(update={"cache": cache})
            plan = plan.model_copy(update={"decision": decision.model_dump(mode="json", exclude_none=True)})
        return _beside_none(plan, alone)


def _cost(plan: Envelope) -> float:
    value = plan.certificate.objective.value
    assert value is not None
    return value


def _beside_none(plan: Envelope, alone: float | None) -> Envelope:
    """The plan with the best one that buys no memory, judged as it is, among the others."""
    certificate, value = plan.certificate, _cost(plan)
    none: JsonValue = {
        "plan": WITHOUT,
        "objective": alone,
        "loss": None if alone is None else relative_loss(value, alone, certificate.objective.sense),
    }
    others = certificate.next_best if isinstance(certificate.next_best, list) else []
    return plan.model_copy(update={"certificate": certificate.model_copy(update={"next_best": [none, *others]})})


def with_memory(setting: ServeSetting, cached: CachedPrefixes) -> ServeSetting:
    """A setting without memory for prefixes as one with it; its prompts are priced anew."""
    targets = tuple(target.beside(cached) for target in setting.targets)
    return replace(setting, resolved=replace(setting.resolved, cached=cached), targets=targets, priced={})

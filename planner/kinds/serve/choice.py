"""Of serving plans that predictions do not tell apart, the one with the fewest roles of a form that no run has.

Costs rank plans to within their error, and what no run has they have from first principles alone. Where the best mix
has instances of a form that no run of the calibration has (`planner.costs.rates.forms`), the best of measured forms is
searched too: of every function, or of every function but some.

    Sets        STEPS of functions whose instances may have any form: none; prefill alone or decode alone; all
    Parameters  V(F), F of a step: the best objective of mixes whose other instances have measured forms
                gain(F): by what share the best of all mixes is better than V(F)
                g = e^sqrt(high^2 + low^2) - 1: the most that predictions do not tell apart
    Variable    F
    Minimise    the step of F, then gain(F)
    Subject to  gain(F) <= g

Each step allows the plans of those before it, and the last allows all, so that V only gets better and the last has gain
0. By the intervals of steps of groups that a fit has not seen, a plan does between e^-high and e^low times what is
predicted with 80 %. Errors of plans of unlike forms are taken as independent and normal in the logarithm on either
side, so that the former, where it does less than predicted and the latter more, loses up to 1 + g of its lead with the
same chance. Plans that share a role err alike in it: g is on the side of measured forms there.

What is proven stays: the bound of the whole space, and the gap to it, which was given up; beside it what was proven of
the plans that F allows. A calibration that states no forms prefers none. Nor are any preferred where a problem asks for
simulated placements (`judged_by: simulation`), which compares all.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from pydantic import JsonValue

from planner.costs.rates.calibration import Calibration
from planner.costs.rates.forms import FUNCTIONS, Forms, functions_in_any, with_any
from planner.costs.rates.spread import ErrorSpread
from planner.kinds.serve.plan.certificate import TOLERANCE, certificate
from planner.kinds.serve.steady.allowed import UNMEASURED, is_measured, text_of
from planner.kinds.serve.steady.candidates import Candidate
from planner.kinds.serve.steady.points import Tally
from planner.kinds.serve.steady.search import Outcome, ServeSetting, search
from planner.plan.schema import Certificate, Envelope, Preferred, Proven
from planner.progress import Limits
from planner.solvers.mix import MixProblem, MixSolution
from planner.solvers.mix_solve import MixCertificate
from planner.solvers.result import SolveResult, relative_loss

FAR = "no_measurement_near"  # of a record of a passed plan: the forms that no run has
STEPS: tuple[tuple[tuple[str, ...], ...], ...] = (((),), (("prefill",), ("decode",)), (FUNCTIONS,))
MEASURED = "plans where runs were measured"
Searched: TypeAlias = Callable[[ServeSetting, Limits], tuple[ServeSetting, Outcome]]
ProofOf: TypeAlias = Callable[[MixProblem, SolveResult[MixSolution]], MixCertificate]


@dataclass(frozen=True, slots=True)
class Chosen:
    """The best mix by formulas: of all, or of the forms that `setting` is held to where a better one was passed."""

    setting: ServeSetting
    outcome: Outcome
    passed: Outcome | None = None  # the best of all, at the prices of `setting`
    told: tuple[Outcome | None, ...] = ()  # the best of each step before, from which predictions tell the best of all

    @property
    def measured(self) -> Outcome | None:
        """The best of measured forms alone, where predictions tell a better one from it."""
        return self.told[0] if self.told else None

    @property
    def whole(self) -> ServeSetting:
        """The problem with all forms."""
        return replace(self.setting, forms=None)

    @property
    def best(self) -> Outcome:
        """The best of all."""
        return self.passed or self.outcome

    def held(self) -> "Chosen":
        """The same with measured forms alone, but for functions of which its mix has others."""
        forms = preferred_forms(self.setting)
        if self.passed is not None or forms is None or not self.outcome.has_mix:
            return self
        forms = with_any(forms, far_functions(self.outcome, forms))
        if len(measured_rows(self.outcome, forms)) == len(self.outcome.formulated.candidates):
            return self
        return Chosen(replace(self.setting, forms=forms), restricted(self.outcome, forms), told=self.told)


def searched(setting: ServeSetting, limits: Limits, *, tie_break: bool = False) -> tuple[ServeSetting, Outcome]:
    """The best mix by formulas, ties left as they come unless they are to be broken."""
    return setting, search(setting, setting.targets, limits, tie_break=tie_break)


def chosen(setting: ServeSetting, limits: Limits, search_of: Searched = searched) -> Chosen:
    """The best mix that `search_of` has of all forms, or that of the first of STEPS which is not told from it."""
    started_s = time.monotonic()
    setting, best = search_of(setting, limits)
    forms = preferred_forms(setting)
    far = far_functions(best, forms) if forms is not None and best.has_mix else ()
    if forms is None or not far:
        return Chosen(setting, best)
    told: list[Outcome | None] = []
    for step in STEPS:
        if any(set(far) <= set(free) for free in step):
            break  # the best of all is of this step
        limits.tell("searching forms that were measured")
        parts = [_held(setting, best, with_any(forms, free), limits.left(started_s), search_of) for free in step]
        nearest = min((part for part in parts if part is not None), key=_gain, default=None)
        if nearest is not None and _gain(nearest) <= most_gain(setting.calibration):
            return _lifted_if_as_good(replace(nearest, told=tuple(told)))
        told.append(None if nearest is None else nearest.outcome)
    return Chosen(setting, best, told=tuple(told))


def _held(setting: ServeSetting, best: Outcome, forms: Forms, limits: Limits, search_of: Searched) -> Chosen | None:
    """The best mix of these forms beside that of all, at the same prices; None where one of the two has none."""
    held, own = search_of(replace(setting, forms=forms), limits)
    passed = best
    if held.spread_gpus != setting.spread_gpus:
        _, passed = searched(replace(held, forms=None), limits)
    return Chosen(held, own, passed) if own.has_mix and passed.has_mix else None


def _lifted_if_as_good(picked: Chosen) -> Chosen:
    """As the best of all, where it is."""
    passed, forms = picked.passed, picked.setting.forms
    if passed is None or forms is None or _gain(picked) > TOLERANCE:
        return picked
    return Chosen(picked.whole, lifted(picked.outcome, passed, forms), told=picked.told)


def preferred_forms(setting: ServeSetting) -> Forms | None:
    """The forms that are preferred to others; None where none are."""
    options = setting.options
    asked = options.choice == "measured" and options.judged_by != "simulation"
    return setting.calibration.forms if asked and setting.calibration.forms else None


def most_gain(calibration: Calibration) -> float:
    """By what share a plan may be better and predictions not tell it from one of measured forms."""
    return math.expm1(math.hypot(*calibration.spreads.get("tpot", ErrorSpread()).elsewhere().sides))


def _gain(picked: Chosen) -> float:
    """By what share the best of all is better than the mix."""
    best, value, other = picked.best, picked.best.objective, picked.outcome.objective
    assert value is not None
    assert other is not None
    return value / other - 1.0 if best.formulated.problem.maximising else other / value - 1.0


def far_of(outcome: Outcome, forms: Forms) -> tuple[str, ...]:
    """The forms of a mix that no run has, such as `prefill with pipeline stages`."""
    return tuple(dict.fromkeys(map(text_of, _far(outcome, forms))))


def far_functions(outcome: Outcome, forms: Forms) -> tuple[str, ...]:
    """The functions of a mix that have instances of another form than these."""
    functions = {each.function for each in _far(outcome, forms)}
    return tuple(function for function in FUNCTIONS if function in functions)


def _far(outcome: Outcome, forms: Forms) -> list[Candidate]:
    candidates = [item.candidate for item in outcome.roles]
    return [each for each in candidates if not is_measured(each, forms)]


def restricted(outcome: Outcome, forms: Forms) -> Outcome:
    """The outcome among candidates of these forms, which its mix is of."""
    formulated, solution = outcome.formulated, outcome.solution
    rows = measured_rows(outcome, forms)
    shapes = formulated.problem.shapes
    kept = tuple(shapes[row] for row in rows if row < len(shapes))
    candidates = tuple(formulated.candidates[row] for row in rows)
    taken = replace(
        solution,
        counts=tuple(solution.counts[row] for row in rows),
        load_per_s=tuple(solution.load_per_s[row] for row in rows),
    )
    tally = Tally(outcome.tally.evaluated, outcome.tally.pruned.copy())
    tally.drop(UNMEASURED, len(formulated.candidates) - len(rows))
    return replace(
        outcome,
        formulated=replace(formulated, problem=replace(formulated.problem, shapes=kept), candidates=candidates),
        searched=replace(outcome.searched, shapes=kept),
        result=replace(outcome.result, solution=taken),
        tally=tally,
    )


def lifted(outcome: Outcome, whole: Outcome, forms: Forms) -> Outcome:
    """A mix of measured forms as one of all candidates of `whole`, with the bound of these."""
    rows, solution = measured_rows(whole, forms), outcome.solution
    counts = [0] * len(whole.formulated.candidates)
    loads = [(0.0,) * len(solution.served_per_s) for _ in counts]
    for row, count, load in zip(rows, solution.counts, solution.load_per_s, strict=True):
        counts[row], loads[row] = count, load
    taken = replace(solution, counts=tuple(counts), load_per_s=tuple(loads))
    return replace(whole, result=replace(outcome.result, solution=taken, bound=whole.result.bound))


def measured_rows(outcome: Outcome, forms: Forms) -> list[int]:
    """The candidates of these forms."""
    return [row for row, each in enumerate(outcome.formulated.candidates) if is_measured(each, forms)]


def records_of(picked: Chosen, *, simulated: bool) -> Iterator[dict[str, JsonValue]]:
    """What is said of the better mix that was passed, and of the best of measured forms alone where that was.

    Both are by formulas. What these make of a `simulated` plan is no measure of it, and stands `beside`.
    """
    own = picked.outcome.objective
    if own is None:  # limits that formulas keep with no mix
        return
    beside: dict[str, JsonValue] = {"beside": own} if simulated else {}
    for other, is_better in ((picked.passed, True), (picked.measured, False)):
        if other is None:
            continue
        value = other.objective
        assert value is not None
        mix = ", ".join(f"{item.count} x {item.candidate.function} {item.candidate.label}" for item in other.roles)
        loss = relative_loss(own, value, other.formulated.sense)
        told: dict[str, JsonValue] = {"plan": mix if is_better else f"where runs were measured, {mix}"}
        told |= {"objective": value, "loss": loss, **beside}
        yield told | ({FAR: list(far_of(other, picked.setting.forms or {}))} if is_better else {})


def with_records(plan: Envelope, records: Sequence[Mapping[str, JsonValue]]) -> Envelope:
    """The plan with others among the next best, if there are any."""
    if not records:
        return plan
    stated = plan.certificate.next_best
    others = [*map(dict, records), *(stated if isinstance(stated, list) else [])]
    return plan.model_copy(update={"certificate": plan.certificate.model_copy(update={"next_best": others})})


def passed_in(certificate: Proven) -> Mapping[str, JsonValue] | None:
    """The record of a plan that was passed for want of a measured form; None where none was."""
    others = certificate.next_best if isinstance(certificate.next_best, list) else []
    return next((row for row in others if isinstance(row, dict) and FAR in row), None)


def over_all(picked: Chosen, plan: Envelope, outcome: Outcome, proof_of: ProofOf) -> Envelope:
    """The plan with what is proven of the whole space, where its own certificate is that over measured forms.

    `proof_of` proves a bound on a mix problem, and `outcome` is the mix as it was placed.
    """
    records = list(records_of(replace(picked, outcome=outcome), simulated=False))
    best, forms = picked.passed, picked.setting.forms
    if best is None or forms is None:
        return with_records(plan, records)
    own = plan.certificate
    mix = lifted(outcome, best, forms)
    proof = proof_of(best.formulated.problem, replace(mix.result, objective=best.result.objective))
    others = own.next_best if isinstance(own.next_best, list) else []
    proven = certificate(picked.whole, mix, proof, [*records, *others])
    proven = with_part(proven.model_copy(update={"confidence": own.confidence}), own, records[0], forms)
    return plan.model_copy(update={"certificate": proven})


def among_of(forms: Forms) -> str:
    """What plans of these forms are, such as `plans where runs were measured, with decode in any form`."""
    free = functions_in_any(forms)
    return f"{MEASURED}, with {' and '.join(free)} in any form" if free else MEASURED


def forms_among(among: str, measured: Forms) -> Forms:
    """The forms of plans that a certificate calls so."""
    choices = (with_any(measured, free) for step in STEPS for free in step)
    return next((forms for forms in choices if among_of(forms) == among), measured)


def with_part(proven: Certificate, own: Proven | None, record: Mapping[str, JsonValue], forms: Forms) -> Certificate:
    """What is proven of all plans, with what is of those of these forms where that is stated.

    A bound that the passed plan reaches is all that a search can prove.
    """
    update: dict[str, object] = {}
    if own is not None:
        part = {name: getattr(own, name) for name in Proven.model_fields}
        update["within"] = Preferred(**{**part, "next_best": None, "among": among_of(forms)})
    bound, worth = proven.bound, record.get("objective")
    reached = bound is not None and isinstance(worth, int | float) and math.isclose(bound, worth, rel_tol=TOLERANCE)
    if proven.stop_reason == "node_limit" and reached:
        update["stop_reason"] = "finished"
    return proven.model_copy(update=update)

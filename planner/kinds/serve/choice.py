"""Of serving plans that predictions do not tell apart, the one of forms that were measured.

Costs rank plans to within their error. Where the best mix by formulas has instances of a form that no run of the
calibration has (`planner.costs.rates.forms`), the best of measured forms is searched too, and taken unless the former
is better by more than predictions tell apart. By the intervals of steps of groups that a fit has not seen, a plan does
between e^-high and e^low times what is predicted with 80 %. Errors of plans of unlike forms are independent, and normal
in the logarithm on either side, so that the former, where it does less than predicted and the latter more, loses up to

    e^sqrt(high^2 + low^2)

of its lead with the same chance. It is the plan where it leads by more.

What is proven stays: the bound of the whole space, and the gap to it, which was given up; beside it what was proven of
the plans of measured forms. A calibration that states no forms prefers none. Nor are any preferred where a problem
allows sides apart, which no run has, or asks for simulated placements (`judged_by: simulation`), which compares all.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from pydantic import JsonValue

from planner.costs.rates.calibration import Calibration
from planner.costs.rates.forms import Forms
from planner.costs.rates.spread import ErrorSpread
from planner.kinds.serve.plan.certificate import TOLERANCE, certificate
from planner.kinds.serve.steady.allowed import UNMEASURED, is_measured, text_of
from planner.kinds.serve.steady.points import Tally
from planner.kinds.serve.steady.search import Outcome, ServeSetting, search
from planner.plan.schema import Certificate, Envelope, Preferred, Proven
from planner.progress import Limits
from planner.solvers.mix import MixProblem, MixSolution
from planner.solvers.mix_solve import MixCertificate
from planner.solvers.result import SolveResult

FAR = "no_measurement_near"  # of a record of a passed plan: the forms that no run has
Searched: TypeAlias = Callable[[ServeSetting, Limits], tuple[ServeSetting, Outcome]]
ProofOf: TypeAlias = Callable[[MixProblem, SolveResult[MixSolution]], MixCertificate]


@dataclass(frozen=True, slots=True)
class Chosen:
    """The best mix by formulas: of all, or of measured forms where a better one of others was passed."""

    setting: ServeSetting
    outcome: Outcome
    passed: Outcome | None = None  # the best of all, at the prices of `setting`
    measured: Outcome | None = None  # the best of measured forms, where predictions tell a better one from it

    @property
    def whole(self) -> ServeSetting:
        """The problem with all forms."""
        return replace(self.setting, forms=None)

    @property
    def best(self) -> Outcome:
        """The best of all."""
        return self.passed or self.outcome

    def held(self) -> "Chosen":
        """The same with measured forms alone, where these are preferred and its mix has no other."""
        forms = preferred_forms(self.setting)
        if self.passed is not None or forms is None or not self.outcome.has_mix or far_of(self.outcome, forms):
            return self
        return Chosen(replace(self.setting, forms=forms), restricted(self.outcome, forms))


def searched(setting: ServeSetting, limits: Limits, *, tie_break: bool = False) -> tuple[ServeSetting, Outcome]:
    """The best mix by formulas, ties left as they come unless they are to be broken."""
    return setting, search(setting, setting.targets, limits, tie_break=tie_break)


def chosen(setting: ServeSetting, limits: Limits, search_of: Searched = searched) -> Chosen:
    """The best mix that `search_of` has of all forms, or of those measured where it is not told from that."""
    setting, best = search_of(setting, limits)
    forms = preferred_forms(setting)
    if forms is None or not best.has_mix or not far_of(best, forms):
        return Chosen(setting, best)
    limits.tell("searching forms that were measured")
    held, own = search_of(replace(setting, forms=forms), limits)
    passed = best
    if held.spread_gpus != setting.spread_gpus:
        _, passed = searched(replace(held, forms=None), limits)
    if not (own.has_mix and passed.has_mix):
        return Chosen(setting, best)
    gain = _gain(passed, own)
    if gain > most_gain(setting.calibration):
        return Chosen(setting, best, measured=own)
    if gain <= TOLERANCE:
        return Chosen(replace(held, forms=None), lifted(own, passed, forms))
    return Chosen(held, own, passed)


def preferred_forms(setting: ServeSetting) -> Forms | None:
    """The forms that are preferred to others; None where none are."""
    options = setting.options
    asked = options.choice == "measured" and options.judged_by != "simulation" and "attention-ffn" not in options.modes
    return setting.calibration.forms if asked and setting.calibration.forms else None


def most_gain(calibration: Calibration) -> float:
    """By what share a plan may be better and predictions not tell it from one of measured forms."""
    return math.expm1(math.hypot(*calibration.spreads.get("tpot", ErrorSpread()).elsewhere().sides))


def _gain(best: Outcome, own: Outcome) -> float:
    """By what share a mix is better than another."""
    value, other = best.objective, own.objective
    assert value is not None
    assert other is not None
    return value / other - 1.0 if best.formulated.problem.maximising else other / value - 1.0


def far_of(outcome: Outcome, forms: Forms) -> tuple[str, ...]:
    """The forms of a mix that no run has, such as `prefill with pipeline stages`."""
    candidates = (item.candidate for item in outcome.roles)
    return tuple(dict.fromkeys(text_of(each) for each in candidates if not is_measured(each, forms)))


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


def record_of(picked: Chosen, *, simulated: bool) -> dict[str, JsonValue] | None:
    """What is said of the better mix that was passed, or of the best of measured forms where that was; None of neither.

    Both are by formulas. What these make of a `simulated` plan is no measure of it, and stands `beside`.
    """
    other = picked.passed or picked.measured
    if other is None:
        return None
    value, own = other.objective, picked.outcome.objective
    assert value is not None
    assert own is not None
    mix = ", ".join(f"{item.count} x {item.candidate.function} {item.candidate.label}" for item in other.roles)
    far, loss = far_of(other, picked.setting.calibration.forms), abs(value - own) / max(abs(own), 1e-9)
    return {
        "plan": mix if far else f"where runs were measured, {mix}",
        "objective": value,
        "loss": -loss if far else loss,
        **({"beside": own} if simulated else {}),
        **({FAR: list(far)} if far else {}),
    }


def with_record(plan: Envelope, record: Mapping[str, JsonValue] | None) -> Envelope:
    """The plan with another among the next best, if there is one."""
    if record is None:
        return plan
    stated = plan.certificate.next_best
    others = [dict(record), *(stated if isinstance(stated, list) else [])]
    return plan.model_copy(update={"certificate": plan.certificate.model_copy(update={"next_best": others})})


def passed_in(certificate: Proven) -> Mapping[str, JsonValue] | None:
    """The record of a plan that was passed for want of a measured form; None where none was."""
    others = certificate.next_best if isinstance(certificate.next_best, list) else []
    return next((row for row in others if isinstance(row, dict) and FAR in row), None)


def over_all(picked: Chosen, plan: Envelope, outcome: Outcome, proof_of: ProofOf) -> Envelope:
    """The plan with what is proven of the whole space, where its own certificate is that over measured forms.

    `proof_of` proves a bound on a mix problem, and `outcome` is the mix as it was placed.
    """
    record = record_of(replace(picked, outcome=outcome), simulated=False)
    if picked.passed is None or record is None:
        return with_record(plan, record)
    best, own = picked.passed, plan.certificate
    mix = lifted(outcome, best, picked.setting.calibration.forms)
    proof = proof_of(best.formulated.problem, replace(mix.result, objective=best.result.objective))
    others = own.next_best if isinstance(own.next_best, list) else []
    proven = certificate(picked.whole, mix, proof, [record, *others])
    proven = with_part(proven.model_copy(update={"confidence": own.confidence}), own, record)
    return plan.model_copy(update={"certificate": proven})


def with_part(proven: Certificate, own: Proven | None, record: Mapping[str, JsonValue]) -> Certificate:
    """What is proven of all plans, with what is of those of measured forms where that is stated.

    A bound that the passed plan reaches is all that a search can prove.
    """
    update: dict[str, object] = {}
    if own is not None:
        part = {name: getattr(own, name) for name in Proven.model_fields}
        update["within"] = Preferred(**{**part, "next_best": None})
    bound, worth = proven.bound, record.get("objective")
    reached = bound is not None and isinstance(worth, int | float) and math.isclose(bound, worth, rel_tol=TOLERANCE)
    if proven.stop_reason == "node_limit" and reached:
        update["stop_reason"] = "finished"
    return proven.model_copy(update=update)

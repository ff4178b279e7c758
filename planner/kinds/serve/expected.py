"""At which confidence limits are kept for the most output in expectation, where a limit that breaks leaves none.

Predictions err, so that a plan which just keeps its limits breaks them about as often as not. With limits divided by
the margins of a confidence c (`slo.confidence`) they hold with c at least, all together where errors go together:

    Sets        c in CONFIDENCES
    Parameters  V_c  the most output of a mix that keeps the limits at c, of those that `choice` prefers; B_c a proven
                     bound on that of all
    Maximise    c V_c
    (E1) V falls with c:  d V_d <= d B_c  for d > c

Solved by halving the confidences that (E1) leaves open; its greatest right side among them bounds what none reaches.
CONFIDENCES begin where picks on measured deployments hold as often as they say (docs/accuracy.md); where no mix keeps
the limits with so much, and one keeps them by the estimate, that is the plan.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from planner.costs.rates.calibration import load_calibration
from planner.errors import PlannerError
from planner.kinds.serve.by_default import has_own_runs
from planner.kinds.serve.choice import chosen
from planner.kinds.serve.steady.search import ServeSetting, prepare
from planner.plan.schema import AtConfidence, Expected
from planner.problem.confidence import BY_ESTIMATE
from planner.problem.resolve import Resolved
from planner.progress import Limits

CONFIDENCES = (0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The confidence of most expected output, what is expected, and the confidences that it was chosen from."""

    confidence: float
    expected: Expected | None = None  # none where no mix keeps the limits even by the estimate
    searched: tuple[AtConfidence, ...] = ()


def most_expected(resolved: Resolved, limits: Limits) -> Chosen:
    """The confidence of most expected output, by formulas of steady state.

    Raises PlannerError for problems that state a confidence, no limit on a time, or another objective than a most.
    """
    _require_askable(resolved)
    first = prepare(replace(resolved, confidence=BY_ESTIMATE))
    at: dict[float, AtConfidence] = {}
    while left := _open(at):
        confidence = left[len(left) // 2] if at else left[0]
        at[confidence] = _searched(first, resolved, confidence, limits)
    kept = {each.confidence: each for each in at.values() if each.objective is not None}
    if not kept:
        by_estimate = _searched(first, resolved, BY_ESTIMATE, limits)
        at[BY_ESTIMATE] = by_estimate
        if by_estimate.objective is None:
            return Chosen(BY_ESTIMATE)
        kept = {BY_ESTIMATE: by_estimate}
    best = max(kept, key=lambda confidence: (confidence * _value(kept[confidence]), confidence))
    value = best * _value(kept[best])
    bounds = [_most(confidence, at) for confidence in (*CONFIDENCES, *at)]
    expected = Expected(
        value=value,
        bound=None if None in bounds else max(value, *(bound for bound in bounds if bound is not None)),
    )
    return Chosen(best, expected, tuple(at[confidence] for confidence in sorted(at)))


def counts_expected(resolved: Resolved) -> bool:
    """Whether what is expected chooses the confidence: as the problem says, or else where own runs are near layouts.

    Picks of what is expected captured most after such runs on measured deployments (docs/calibration.md).
    """
    problem = resolved.problem
    if resolved.confidence is not None:
        return False
    if problem.objective.expected is not None:
        return problem.objective.expected
    slos = [workload.spec.slo for workload in resolved.workloads]
    sure = any(slo.confidence is not None for slo in slos) or not any(slo.has_time_limits for slo in slos)
    beside = problem.cache is not None or problem.options.get("judged_by") == "simulation"
    if sure or beside or problem.objective.maximize is None:
        return False
    return has_own_runs(resolved) and {"ttft", "tpot"} <= set(load_calibration(problem.costs.calibration).spreads)


def _require_askable(resolved: Resolved) -> None:
    problem = resolved.problem
    if problem.objective.maximize is None:
        raise PlannerError(
            "what is expected is counted where a rate is maximised",
            where=resolved.where(("objective", "expected")),
            hint="maximize goodput_per_gpu or tokens_per_s_per_gpu, or state `slo.confidence`",
        )
    for index, workload in enumerate(problem.workloads):
        if workload.slo.confidence is not None:
            raise PlannerError(
                f"workload `{workload.name}` states its confidence, and `objective.expected` chooses one",
                where=resolved.where(("workloads", index, "slo", "confidence")),
                hint="remove one of the two",
            )
    if not any(workload.slo.has_time_limits for workload in problem.workloads):
        raise PlannerError(
            "no workload states a limit on a time, so that none may break",
            where=resolved.where(("objective", "expected")),
            hint="state limits in `slo`, or remove `expected`",
        )


def _searched(first: ServeSetting, resolved: Resolved, confidence: float, limits: Limits) -> AtConfidence:
    """The most output at a confidence; no objective where no mix keeps the limits."""
    limits.tell(f"searching at a confidence of {confidence:.0%}")
    setting = replace(prepare(replace(resolved, confidence=confidence)), priced=first.priced)
    picked = chosen(setting, limits)
    outcome = picked.outcome
    if not outcome.has_mix:
        return AtConfidence(confidence=confidence, bound=0.0 if outcome.proven else None)
    bound = picked.best.result.bound
    return AtConfidence(
        confidence=confidence,
        objective=outcome.objective,
        bound=None if bound is None else outcome.formulated.in_metric(bound),
    )


def _open(at: Mapping[float, AtConfidence]) -> list[float]:
    """Confidences not searched yet that may beat those that were."""
    best = max((confidence * _value(each) for confidence, each in at.items()), default=0.0)
    left = [confidence for confidence in CONFIDENCES if confidence not in at]
    bounds = {confidence: _most(confidence, at) for confidence in left}
    return [confidence for confidence in left if (bound := bounds[confidence]) is None or bound > best]


def _most(confidence: float, at: Mapping[float, AtConfidence]) -> float | None:
    """(E1): what is expected at most; None where nothing bounds it."""
    bounds = [each.bound for other, each in at.items() if other <= confidence and each.bound is not None]
    return confidence * min(bounds) if bounds else None


def _value(each: AtConfidence) -> float:
    return each.objective or 0.0

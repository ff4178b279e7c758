"""Serving answers along a line of one number of the problem, from candidates that are priced once.

Along the rate of a workload, a limit on its times, or the cap on GPUs, what is feasible at one end of an interval is
feasible all along it or nested in what is: the least number of GPUs, or the least cost, is a step function that only
rises or only falls. So equal values at both ends of an interval are the value all along it. What is preferred
(`choice`) is chosen by such values of a few parts of the space, and is the same where they all are. Along the rate
candidates stay as they are, and the largest rate that a value still buys is one more program (`solvers.mix`, objective
scale), so that breakpoints are exact. Limits without a confidence are kept with that by default (`by_default`) all
along the line.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from planner.costs.rates.forms import Forms, with_any
from planner.errors import PlannerError
from planner.kinds.serve.by_default import DEFAULT_CONFIDENCE, takes_default
from planner.kinds.serve.choice import STEPS, chosen, preferred_forms
from planner.kinds.serve.steady.allowed import is_measured
from planner.kinds.serve.steady.candidates import Candidate
from planner.kinds.serve.steady.conflicts.limits import explain_infeasible
from planner.kinds.serve.steady.formulate import formulate
from planner.kinds.serve.steady.points import Tally
from planner.kinds.serve.steady.search import Outcome, ServeSetting, list_candidates, prepare, solve_problem
from planner.problem.confidence import BY_ESTIMATE, confidence_of
from planner.problem.resolve import Resolved
from planner.problem.schema import Problem
from planner.progress import Limits
from planner.solvers.mix import MixObjective

_TIMES = ("ttft", "tpot", "itl", "latency")
AXES = ("rate", *_TIMES, "gpus")
_SLACK = 1e-9  # relative, of a cap that a plan of exactly that value must pass


@dataclass(frozen=True, slots=True)
class Best:
    """The best objective at a value, None where there is no plan, and the decision in words.

    `choices` are the best objectives that it was chosen by: of each step up to it (`choice.STEPS`), last of all mixes.
    """

    objective: float | None
    decision: str
    choices: tuple[float | None, ...] = ()


@dataclass(slots=True)
class Line:
    """One number of a problem, and what is best at each of its values; what is priced is kept."""

    resolved: Resolved
    axis: str
    limits: Limits
    first: ServeSetting = field(init=False)
    candidates: list[Candidate] | None = None  # along the rate

    def __post_init__(self) -> None:
        problem = self.resolved.problem
        if self.axis not in AXES:
            raise PlannerError(
                f"no line along `{self.axis}`", where="--parametric", hint=f"the axes are {', '.join(AXES)}"
            )
        if problem.objective.minimize not in ("gpus", "cost"):
            raise PlannerError(
                "a throughput changes with every step along a line",
                where="--parametric",
                hint="minimise gpus or cost, or sweep a grid",
            )
        if problem.cache is not None:
            raise PlannerError(
                "memory for prefixes is chosen anew for every number, and no line is drawn through choices",
                where="--parametric",
                hint="sweep a grid, or remove `cache`",
            )
        if self.axis != "gpus" and len(problem.workloads) != 1:
            raise PlannerError(
                f"`{self.axis}` could mean {len(problem.workloads)} workloads",
                where="--parametric",
                hint="state one workload, or sweep a grid",
            )
        load = problem.workloads[0].load
        if self.axis == "rate" and (load is None or load.rate_per_s is None):
            raise PlannerError("the workload states no rate", where="--parametric", hint="write `load: {rate: 10/s}`")
        self.resolved = _surely(self.resolved)
        self.first = prepare(self.resolved)

    @property
    def whole(self) -> bool:
        """Whether values are whole numbers."""
        return self.axis == "gpus"

    def at(self, value: float) -> Best:
        """The best at a value of the line, by the default choice of `solve` (`planner.kinds.serve.choice`)."""
        if self.axis == "rate":
            target = replace(self.first.targets[0], rate_per_s=value)
            picked = chosen(replace(self.first, targets=(target,)), self.limits, self._searched)
        else:
            picked = chosen(replace(prepare(self._moved(value)), priced=self.first.priced), self.limits)
        outcome = picked.outcome
        if not outcome.has_mix:
            return Best(None, f"no plan keeps all limits{_sureness(self.resolved)}")
        told = [None if each is None else each.objective for each in picked.told]
        return Best(outcome.objective, _words(outcome), (*told, outcome.objective, picked.best.objective))

    def _searched(self, setting: ServeSetting, limits: Limits) -> tuple[ServeSetting, Outcome]:
        """The best mix at a rate; candidates stay as they are along it."""
        if self.candidates is None:
            self.candidates = list_candidates(self.first, setting.targets, Tally())
        formulated = formulate(setting.resolved, setting.targets, self._of_forms(setting.forms))
        result = solve_problem(formulated.problem, setting, limits, (), tie_break=False)
        return setting, Outcome(formulated, formulated.problem, result, Tally())

    def _of_forms(self, forms: Forms | None) -> list[Candidate]:
        return [each for each in self.candidates or () if forms is None or is_measured(each, forms)]

    def reach(self, value: float, best: Best) -> float | None:
        """The largest value at which all that the best was chosen by is the same; None where the axis does not tell."""
        if self.axis != "rate":
            return None
        *held, whole = best.choices
        reaches = [self._reach(value, whole, [None])]
        forms = preferred_forms(self.first)
        for step, objective in zip(STEPS, held, strict=False):
            parts = [None if forms is None else with_any(forms, free) for free in step]
            reaches.append(self._reach(value, objective, parts))
        return min((reach for reach in reaches if reach is not None), default=value)

    def _reach(self, value: float, objective: float | None, parts: Sequence[Forms | None]) -> float | None:
        """The largest value at which this objective is still enough for a mix of some of these forms."""
        if objective is None:
            return None
        target = replace(self.first.targets[0], rate_per_s=value)
        factors: list[float] = []
        for forms in parts:
            formulated = formulate(self.resolved, [target], self._of_forms(forms))
            problem, cap = formulated.problem, objective / formulated.factor
            demands = (replace(problem.demands[0], share=value, rate_per_s=None),)
            limits = problem.limits
            if problem.objective is MixObjective.DEVICES:
                limits = replace(limits, devices=round(cap))
            else:
                limits = replace(limits, price_per_hour=cap * (1.0 + _SLACK))
            most = replace(problem, objective=MixObjective.SCALE, demands=demands, limits=limits)
            factors.append(solve_problem(most, self.first, self.limits, (), tie_break=False).objective or 1.0)
        return value * max(1.0, *factors)

    def why(self, value: float) -> str:
        """The limits that cannot hold together at a value without a plan, and how near they come."""
        conflict = explain_infeasible(prepare(self._moved(value)), self.limits).conflict
        return ", ".join(
            f"{row['limit']}{f' (nearest: {near})' if (near := row['nearest']) else ''}" for row in conflict
        )

    def _moved(self, value: float) -> Resolved:
        problem = self.resolved.problem
        data = problem.model_dump(mode="json", by_alias=True, exclude_none=True)
        if self.axis == "gpus":
            data.setdefault("limits", {})["gpus"] = round(value)
        elif self.axis == "rate":
            data["workloads"][0]["load"]["rate_per_s"] = value
        else:
            limits: Mapping[str, float] = data["workloads"][0].get("slo", {}).get(self.axis) or {"p95_s": value}
            data["workloads"][0].setdefault("slo", {})[self.axis] = dict.fromkeys(limits, value)
        moved = Problem.model_validate(data)
        pairs = zip(self.resolved.workloads, moved.workloads, strict=True)
        workloads = tuple(replace(workload, spec=spec) for workload, spec in pairs)
        return _surely(replace(self.resolved, problem=moved, workloads=workloads))


def _surely(resolved: Resolved) -> Resolved:
    """The problem with its limits at the confidence that there is by default, all along the line."""
    return replace(resolved, confidence=DEFAULT_CONFIDENCE) if takes_default(resolved) else resolved


def _sureness(resolved: Resolved) -> str:
    """` with 70%`, of limits at a confidence."""
    slos = (workload.spec.slo for workload in resolved.workloads)
    confidences = {confidence_of(slo, resolved.confidence) for slo in slos} - {None, BY_ESTIMATE}
    return f" with {' and '.join(f'{confidence:.0%}' for confidence in confidences)}" if confidences else ""


def _words(outcome: Outcome) -> str:
    """`2 x prefill tp1, 1 x decode tp2`."""
    return ", ".join(f"{item.count} x {item.candidate.function} {item.candidate.shape.label}" for item in outcome.roles)


def along(resolved: Resolved, axis: str, limits: Limits) -> Line:
    """The line along an axis; raises PlannerError for one that the problem does not have."""
    return Line(resolved, axis, limits)

"""Robust, regularised least squares: kernel efficiencies fitted to executed steps.

Minimise over x (logarithms of the parameters)
    sum_r rho(w_r log(predicted_r(x) / measured_r) / NOISE) + sum_p ((x_p - x0_p) / PRIOR)^2
with rho the soft-L1 loss (SciPy, `least_squares`). Rows r are whole steps (w = 1) and single operators, weighted by the
root of their share of the step, so that each step counts about twice. A parameter of which the rows say less than the
prior keeps its value.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

import numpy as np

from planner.arrays import Floats
from planner.calibrate.parameters import NAMES, ExecutedTerms, bounds, to_vector, with_vector
from planner.calibrate.records import ExecutedStep
from planner.costs.rates.calibration import Efficiencies
from planner.errors import PlannerError

NOISE = 0.05  # relative error of a measured time that is taken as ordinary
PRIOR = math.log(4.0)  # a parameter may well be off by this factor; devices outside the fit are worse known
LEAST_STEPS = 3
LEAST_GROUPS = 3  # for errors on groups that were left out
_STEP = 1e-4  # of finite differences, in logarithms
_SILENT = 0.1  # a parameter whose rows hold less than this share of the prior's information is not fitted


@dataclass(frozen=True, slots=True)
class RelativeErrors:
    """Absolute relative errors of predicted against measured step times."""

    median: float
    mean: float

    @classmethod
    def of(cls, predicted_s: Sequence[float] | Floats, measured_s: Sequence[float]) -> "RelativeErrors":
        sizes = [abs(predicted / measured - 1.0) for predicted, measured in zip(predicted_s, measured_s, strict=True)]
        return cls(float(median(sizes)), float(fmean(sizes)))

    def as_json(self) -> dict[str, float]:
        return {"median": self.median, "mean": self.mean}

    def worse_than(self, other: "RelativeErrors") -> bool:
        """Whether median and mean are both no better, and one is worse."""
        return self.median >= other.median and self.mean >= other.mean and self != other


@dataclass(frozen=True, slots=True)
class EfficiencyFit:
    """Fitted efficiencies, how sure they are, and what became of the errors."""

    efficiencies: Efficiencies
    standard_errors: dict[str, float]  # relative, of the parameters that were fitted
    before: RelativeErrors
    after: RelativeErrors
    held_out: RelativeErrors | None  # of groups predicted by a fit to the others; None with too few groups
    num_steps: int
    num_operators: int
    groups: tuple[str, ...]

    @property
    def worse(self) -> bool:
        """Whether the fit makes predictions worse, those of steps that it has not seen included."""
        return self.after.worse_than(self.before) or (
            self.held_out is not None and self.held_out.worse_than(self.before)
        )


def fit(steps: Sequence[ExecutedStep], base: Efficiencies) -> EfficiencyFit:
    """The efficiencies that explain `steps` best, starting from `base`.

    Raises PlannerError, naming what is missing, for too few steps and for steps that hang on no parameter.
    """
    if len(steps) < LEAST_STEPS:
        raise PlannerError(
            f"{len(steps)} executed steps to fit, at least {LEAST_STEPS} are needed",
            hint="execute more roles or plans with `planner check PLAN --level execute`",
        )
    terms = ExecutedTerms.of(steps, base)
    fitted, errors = _solve(terms, base)
    if not errors:
        raise PlannerError(
            "the executed steps hang on no parameter of the cost model: kernel tables price all of them",
            hint="calibrate without `--profiles`, or execute steps that the tables do not cover",
        )
    measured = [step.measured_s for step in steps]
    groups = tuple(sorted({step.group for step in steps}))
    return EfficiencyFit(
        efficiencies=fitted,
        standard_errors=errors,
        before=RelativeErrors.of(_step_seconds(terms, base), measured),
        after=RelativeErrors.of(_step_seconds(terms, fitted), measured),
        held_out=_held_out(terms, base, groups),
        num_steps=len(steps),
        num_operators=sum(len(step.operators_s) for step in steps),
        groups=groups,
    )


def _held_out(terms: ExecutedTerms, base: Efficiencies, groups: Sequence[str]) -> RelativeErrors | None:
    """Errors on each group of a fit to all others."""
    if len(groups) < LEAST_GROUPS:
        return None
    predicted: list[float] = []
    measured: list[float] = []
    for group in groups:
        rest, left = (
            terms.of_steps([place for place, step in enumerate(terms.steps) if (step.group == group) is out])
            for out in (False, True)
        )
        fitted, _ = _solve(rest, base)
        predicted += list(_step_seconds(left, fitted))
        measured += [step.measured_s for step in left.steps]
    return RelativeErrors.of(predicted, measured)


def _step_seconds(terms: ExecutedTerms, efficiencies: Efficiencies) -> Floats:
    return _sums(terms.step_T, terms.seconds(efficiencies), len(terms.steps))


def _sums(row_T: object, seconds_T: Floats, count: int) -> Floats:
    """Seconds of all terms of each row."""
    return np.asarray(np.bincount(np.asarray(row_T), weights=seconds_T, minlength=count), dtype=np.float64)


@dataclass(slots=True)
class _Rows:
    """Which terms add up to what was measured, and how much each sum counts."""

    term: list[int] = field(default_factory=list)  # one entry a term and row that it is part of
    row: list[int] = field(default_factory=list)
    log_measured: list[float] = field(default_factory=list)
    weight: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, terms: ExecutedTerms) -> "_Rows":
        rows = cls()
        of_step: list[dict[str, list[int]]] = [{} for _ in terms.steps]
        for term, (step, name) in enumerate(zip(terms.step_T, terms.name_T, strict=True)):
            of_step[step].setdefault(name, []).append(term)
        for step, named in zip(terms.steps, of_step, strict=True):
            rows._add([term for members in named.values() for term in members], step.measured_s, 1.0)
            for name, members in named.items():
                seconds = step.operators_s.get(name)
                if seconds is not None:
                    rows._add(members, seconds, math.sqrt(min(seconds / step.measured_s, 1.0)))
        return rows

    def _add(self, members: list[int], seconds: float, weight: float) -> None:
        self.term += members
        self.row += [len(self.weight)] * len(members)
        self.log_measured.append(math.log(seconds))
        self.weight.append(weight)

    def residuals(self, seconds_T: Floats) -> Floats:
        total = _sums(self.row, seconds_T[self.term], len(self.weight))
        gaps: Floats = np.log(np.maximum(total, 1e-12)) - np.array(self.log_measured)
        return np.asarray(np.array(self.weight) * gaps / NOISE, dtype=np.float64)


def _solve(terms: ExecutedTerms, base: Efficiencies) -> tuple[Efficiencies, dict[str, float]]:
    """Fitted efficiencies, and relative standard errors of those that the rows inform."""
    rows = _Rows.of(terms)
    moving = [name for name, depends_T in zip(NAMES, terms.depends_PT, strict=True) if depends_T.any()]
    fitted, jacobian = _minimise(terms, rows, base, moving)
    told = np.sum(jacobian**2, axis=0) * PRIOR**2 if moving else np.zeros(0)
    names = [name for name, information in zip(moving, told, strict=True) if information > _SILENT]
    if names != moving:
        fitted, jacobian = _minimise(terms, rows, base, names)
    if not names:
        return base, {}
    left = rows.residuals(terms.seconds(fitted))
    variance = float(np.sum(left**2)) / max(len(left) - len(names), 1)
    covariance = np.linalg.inv(jacobian.T @ jacobian + np.eye(len(names)) / PRIOR**2) * max(variance, 1e-12)
    return fitted, dict(zip(names, np.sqrt(np.diag(covariance)).tolist(), strict=True))


def _minimise(
    terms: ExecutedTerms, rows: _Rows, base: Efficiencies, names: Sequence[str]
) -> tuple[Efficiencies, Floats]:
    """The minimum over the named parameters, and the Jacobian of the data rows there [row, parameter]."""
    from scipy.optimize import least_squares

    if not names:
        return base, np.zeros((0, 0))
    start = to_vector(base, names)
    limits = np.log(np.array([bounds(name) for name in names])).T
    depends_PT = [terms.depends_PT[NAMES.index(name)] for name in names]

    def data_jacobian(x: Floats) -> Floats:
        seconds_T = terms.seconds(with_vector(base, names, x))
        unmoved = rows.residuals(seconds_T)
        columns = []
        for parameter, depends_T in enumerate(depends_PT):
            moved = x.copy()
            moved[parameter] += _STEP
            changed_T = np.where(depends_T, terms.seconds(with_vector(base, names, moved), depends_T), seconds_T)
            columns.append((rows.residuals(changed_T) - unmoved) / _STEP)
        return np.array(columns).T

    def residuals(x: Floats) -> Floats:
        return np.concatenate([rows.residuals(terms.seconds(with_vector(base, names, x))), (x - start) / PRIOR])

    def jacobian(x: Floats) -> Floats:
        return np.concatenate([data_jacobian(x), np.eye(len(names)) / PRIOR])

    inside = np.clip(start, limits[0] + 1e-9, limits[1] - 1e-9)
    solved = least_squares(
        residuals,
        inside,
        jac=jacobian,
        bounds=(limits[0], limits[1]),
        loss="soft_l1",
        max_nfev=40,
        ftol=1e-6,
        xtol=1e-6,
    )
    x = np.asarray(solved.x, dtype=np.float64)
    return with_vector(base, names, x), data_jacobian(x)

"""The rates of training costs fitted to measured steps.

Residuals are ln(predicted / measured) / SCALE with a pseudo-Huber loss, and every rate is drawn to its start value by a
normal prior on its logarithm, so that rates which the runs do not show stay where physics puts them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from training_replay import Replay

from planner.arrays import Bools, Floats
from planner.costs.training.physics.bounds import bound_of
from planner.costs.training.rates import Rates
from planner.costs.training.shapes import LayerShape, MeasuredShape, MeasuredShapes, ShapeKind, nearness
from planner.documents.read import parse_document

SCALE = 0.08  # ln of an error beyond which a run counts linearly
PRIOR_SHARE, PRIOR_TIME, PRIOR_GENERATION, PRIOR_BOARD = 0.35, 0.7, 0.3, 0.07  # standard deviations of logarithms
GENERATIONS = ("ampere", "hopper", "blackwell")
SHAPE_SPREAD, SHAPE_NOISE = 0.15, 0.04  # of the logarithm of a shape's factor, and of repeated runs around it
LARGEST_FACTOR = 0.5  # in logarithm: beyond it something other than the shape is wrong
_STEP = 1e-4


@dataclass(frozen=True, slots=True)
class Prior:
    """Start values: `free` ones are fitted, `fixed` ones are kept."""

    free: Mapping[str, float]
    fixed: Mapping[str, float]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.free)

    def rates(self, logs: Floats) -> Rates:
        """Rates with the free ones at these logarithms."""
        return Rates({**self.fixed, **dict(zip(self.names, np.exp(logs).tolist(), strict=True))})

    @property
    def start(self) -> Floats:
        return np.asarray(np.log(np.array(list(self.free.values()), dtype=np.float64)))


@cache
def prior() -> Prior:
    """The start values of `data/training_prior.yaml`."""
    text = (Path(__file__).parent / "data" / "training_prior.yaml").read_text(encoding="utf-8")
    document = parse_document(text, "prior of the training costs").data
    return Prior(*({name: float(value) for name, value in document[key].items()} for key in ("rates", "fixed")))


def spread_of(name: str) -> float:
    """Standard deviation of the prior on the logarithm of a rate."""
    if name.startswith("sustained."):
        return PRIOR_BOARD
    if name.rpartition(".")[2] in GENERATIONS:
        return PRIOR_GENERATION
    return PRIOR_TIME if name.startswith(("start", "host", "step")) and name != "host_overlap" else PRIOR_SHARE


def limits(names: Sequence[str]) -> tuple[Floats, Floats]:
    """Logarithms of the least and the most that physics allows of these rates; shares may be as small as 1e-6."""
    known = [bound_of(name) for name in names]
    lower, upper = (np.log(np.maximum([getattr(each, end) for each in known], 1e-6)) for end in ("lower", "upper"))
    return lower - 1e-9, upper + 1e-9


@dataclass(frozen=True, slots=True)
class Fit:
    """Logarithms of the free rates, and the standard error of each."""

    logs: Floats
    errors: Floats
    rates: Rates


def fit_rates(
    replay: Replay, measured: Floats, weights: Floats, used: Bools, *,
    start: Floats | None = None, evaluations: int = 25, known: Prior | None = None, scale: float = SCALE,
) -> Fit:  # fmt: skip
    """The rates that explain the runs `used` [N] best; `start` from an earlier fit saves evaluations."""
    from scipy.optimize import least_squares

    known = known or prior()
    centre, spread = known.start, np.array([spread_of(name) for name in known.names])
    lower, upper = limits(known.names)
    root, logs_measured = np.sqrt(weights[used]), np.log(measured[used])

    def residuals(x: Floats) -> Floats:
        error = (np.log(replay.step_s(known.rates(x))[used]) - logs_measured) / scale
        robust = np.sign(error) * np.sqrt(2.0 * (np.sqrt(1.0 + error**2) - 1.0))
        return np.concatenate([root * robust, (x - centre) / spread])

    def jacobian(x: Floats) -> Floats:
        here = residuals(x)
        return np.stack([(residuals(x + _STEP * row) - here) / _STEP for row in np.eye(len(x))], axis=1)

    inside = np.clip(centre if start is None else start, lower + 1e-6, upper - 1e-6)
    solution = least_squares(
        residuals, inside, jac=jacobian, bounds=(lower, upper), max_nfev=evaluations, xtol=1e-4, ftol=1e-4
    )
    x = np.asarray(solution.x, dtype=np.float64)
    sensitivity = jacobian(x)
    errors = np.sqrt(np.diag(np.linalg.inv(sensitivity.T @ sensitivity)))
    return Fit(x, errors, known.rates(x))


@dataclass(frozen=True, slots=True, eq=False)
class Sensitivity:
    """A fit to all runs and how their errors hang on the rates there: leave-out fits start from it."""

    fit: Fit
    slope_NP: Floats  # of ln(predicted) by the logarithm of each free rate


def sensitivity(replay: Replay, fit: Fit) -> Sensitivity:
    """The slopes at a fit, by differences."""
    known = prior()
    here = np.log(replay.step_s(fit.rates))
    rows = [
        (np.log(replay.step_s(known.rates(fit.logs + _STEP * row))) - here) / _STEP for row in np.eye(len(fit.logs))
    ]
    return Sensitivity(fit, np.stack(rows, axis=1))


def refit(
    replay: Replay, measured: Floats, weights: Floats, used: Bools, near: Sensitivity, *,
    steps: int = 8, known: Prior | None = None, scale: float = SCALE,
) -> Fit:  # fmt: skip
    """The rates that explain the runs `used` [N] best, by Gauss-Newton steps on the slopes at the fit to all.

    Errors are those of the model after every step, and a step that does not lower their loss is halved; rates at their
    bounds stay there while the loss pulls them out. Slopes change little over what leaving a group out moves.
    """
    known = known or prior()
    centre, spread = known.start, np.array([spread_of(name) for name in known.names])
    lower, upper = limits(known.names)
    slope, logs_measured, own = near.slope_NP[used] / scale, np.log(measured[used]), weights[used]

    def errors(x: Floats) -> tuple[Floats, float]:
        error = (np.log(replay.step_s(known.rates(x))[used]) - logs_measured) / scale
        loss = (own * 2.0 * (np.sqrt(1.0 + error**2) - 1.0)).sum() + (((x - centre) / spread) ** 2).sum()
        return error, float(loss)

    x = np.clip(near.fit.logs, lower, upper)
    error, loss = errors(x)
    for _ in range(steps):
        weight = own / np.sqrt(1.0 + error**2)
        curved = (slope * weight[:, None]).T @ slope + np.diag(1.0 / spread**2)
        pull = (slope * weight[:, None]).T @ error + (x - centre) / spread**2
        move = _inside(curved, pull, lower - x, upper - x)
        for share in (1.0, 0.5, 0.25, 0.1, 0.03, 0.01):
            tried = x + share * move
            tried_error, tried_loss = errors(tried)
            if tried_loss < loss:
                break
        gained = loss - tried_loss
        if gained <= 0.0:
            break
        x, error, loss = tried, tried_error, tried_loss
        if gained < 1e-3 * loss:
            break
    return Fit(x, near.fit.errors, known.rates(x))


def _inside(curved: Floats, pull: Floats, lower: Floats, upper: Floats) -> Floats:
    """The move that is least of pull + curved / 2, moves that would leave their bounds taken to these, one by one."""
    move, free = np.zeros_like(pull), np.ones(len(pull), dtype=np.bool_)
    while free.any():
        rest = pull[free] + curved[np.ix_(free, ~free)] @ move[~free]
        move[free] = -np.linalg.solve(curved[np.ix_(free, free)], rest)
        beyond = free & ((move < lower) | (move > upper))
        if not beyond.any():
            break
        move[beyond] = np.clip(move, lower, upper)[beyond]
        free &= ~beyond
    return move


def fit_shapes(shapes: Sequence[LayerShape], errors: Floats) -> MeasuredShapes:
    """What shapes tell beyond the formulas: `errors` are ln(measured / predicted) of a run with that shape each."""
    measured: list[MeasuredShape] = []
    by_kind: dict[ShapeKind, dict[LayerShape, list[float]]] = {}
    for shape, error in zip(shapes, np.clip(errors, -LARGEST_FACTOR, LARGEST_FACTOR), strict=True):
        by_kind.setdefault(shape.kind, {}).setdefault(shape, []).append(float(error))
    for group in by_kind.values():
        repeats = np.array([len(values) for values in group.values()])
        middle = np.array([np.median(values) for values in group.values()])
        noise = SHAPE_NOISE**2 * (0.3 + 0.7 / repeats)  # part of it is common to all runs of a shape
        kernel = SHAPE_SPREAD**2 * nearness(group, group)
        weights = SHAPE_SPREAD**2 * np.linalg.solve(kernel + np.diag(noise), middle)
        measured += [MeasuredShape(shape, round(float(w), 5)) for shape, w in zip(group, weights, strict=True)]
    return MeasuredShapes(tuple(measured))


def with_shapes(rates: Rates, shapes: MeasuredShapes) -> Rates:
    """The same rates with what shapes tell."""
    return replace(rates, shapes=shapes, _found={})

"""Measured training runs: read, fitted, predicted with their own group left out, and written as a calibration."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np
from numpy.typing import NDArray
from training_fit import Fit, Sensitivity, fit_rates, fit_shapes, prior, refit, with_shapes
from training_replay import Replay, replay

from planner.arrays import Bools, Floats
from planner.costs.training.config import TrainingConfig
from planner.costs.training.intervals import FARTHEST, distances, run_class
from planner.costs.training.measured_layouts import layout_of
from planner.costs.training.rates import Rates
from planner.costs.training.shapes import LayerShape, main_shape
from planner.costs.training.step import step_time
from planner.errors import PlannerError
from planner.estimate.training_rows import completed, config_of_row

LEVEL = (0.1, 0.9)  # quantiles that bound an 80 % interval
COMMON_RUNS = 5.0  # runs of all classes that weigh in with the quantiles of one
COVERED = 0.84  # of the weight that intervals are fitted to: groups not seen are a little worse
BY_DISTANCE = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5)
REPEATED_WEIGHT = 0.2  # of runs in tables with many plans of few models
GROUP_POWER = 0.5
"""A run weighs 1 over this power of the number of runs of its group: groups weigh as the root of their runs, as
training_nested.py chooses."""


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """One row of a table: its configuration, and what was measured."""

    id: str
    group: str
    config: TrainingConfig
    step_s: float
    weight: float
    row: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Skipped:
    """A row that has no prediction, and why."""

    id: str
    reason: str


def read_runs(path: str, weight: float = 1.0) -> Iterator[MeasuredRun | Skipped]:
    """The runs of a table; those that cannot be priced as `Skipped`."""
    with open(path, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            try:
                config = completed(config_of_row(row))
            except PlannerError as error:
                yield Skipped(row["id"], error.what)
                continue
            yield MeasuredRun(row["id"], row["split_group"], config, float(row["step_time_s"]), weight, row)


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """Runs as arrays [N]."""

    runs: tuple[MeasuredRun, ...]
    replay: Replay
    measured: Floats
    weights: Floats
    groups: NDArray[np.str_]
    shapes: tuple[LayerShape, ...]

    @classmethod
    def of(cls, runs: Sequence[MeasuredRun]) -> "Runs":
        """The arrays of these runs."""
        return cls(
            tuple(runs),
            replay([run.config for run in runs]),
            np.array([run.step_s for run in runs]),
            weights_of(runs, GROUP_POWER),
            np.array([run.group for run in runs]),
            tuple(main_shape(run.config) for run in runs),
        )


def weights_of(runs: Sequence[MeasuredRun], power: float) -> Floats:
    """Weights of the runs in a fit [N], whose sum is that of their tables' weights whatever the power."""
    own = np.array([run.weight for run in runs])
    _, index = np.unique([run.group for run in runs], return_inverse=True)
    weights = own / np.bincount(index)[index] ** power
    return np.asarray(weights * own.sum() / weights.sum())


def simulated_s(runs: Runs, rates: Rates, used: Bools) -> Floats:
    """Steps of the runs used, each simulated."""
    return np.array([step_time(runs.runs[index].config, rates).step_s for index in np.flatnonzero(used)])


def fitted(runs: Runs, used: Bools) -> tuple[Fit, Rates]:
    """Rates fitted to the runs used, alone and with the factors of their shapes.

    Pipelines are simulated at the prior's rates, and then at those of a first fit.
    """
    near, fit = prior().rates(prior().start), None
    for evaluations in (25, 8):
        replay = runs.replay.corrected(near)
        logs = None if fit is None else fit.logs
        fit = fit_rates(replay, runs.measured, runs.weights, used, start=logs, evaluations=evaluations)
        near = fit.rates
    assert fit is not None
    return fit, _with_shapes(runs, replay, fit, used)


def _with_shapes(runs: Runs, replay: Replay, fit: Fit, used: Bools) -> Rates:
    errors = np.log(runs.measured / replay.step_s(fit.rates))
    index = np.flatnonzero(used)
    return with_shapes(fit.rates, fit_shapes([runs.shapes[i] for i in index], errors[index]))


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Steps [N] of every run as predicted by fits that saw none of its group."""

    step_s: Floats
    formulas_s: Floats  # without the factors of measured shapes
    classes: NDArray[np.str_]  # as the fit without the group sees them

    def errors(self, measured: Floats) -> Floats:
        """ln(measured / predicted)."""
        return np.asarray(np.log(measured / self.step_s))


def leave_out(
    runs: Runs, near: Sensitivity, labels: NDArray[np.str_], *, shapes: bool = True, only: str = ""
) -> LeftOut:
    """Every label's runs predicted by a fit to all others (`runs.replay` exact at the fit to all); or those of one.

    Steps are those of the replay times what factors of measured shapes change; without `shapes` formulas stand alone.
    """
    steps, formulas = np.empty(len(runs.runs)), np.empty(len(runs.runs))
    classes = np.empty(len(runs.runs), dtype="U64")
    for label in [only] if only else sorted(set(labels.tolist())):
        out = labels == label
        fit = refit(runs.replay, runs.measured, runs.weights, ~out, near)
        formulas[out] = runs.replay.step_s(fit.rates)[out]
        rates = _with_shapes(runs, runs.replay, fit, ~out) if shapes else fit.rates
        steps[out] = simulated_s(runs, rates, out) if shapes else formulas[out]
        classes[out] = [run_class(runs.runs[i].config, rates) for i in np.flatnonzero(out)]
    return LeftOut(steps, formulas, classes)


@dataclass(frozen=True, slots=True)
class Spread:
    """80 % intervals of ln(measured / predicted) by class of run, stretched by 1 + `by_distance` d."""

    of_class: Mapping[str, tuple[float, float]]
    by_distance: float

    def ends(self, name: str, distance: float) -> tuple[float, float]:
        """The interval of a run of this class so far from the nearest measured one."""
        low, high = self.of_class.get(name) or self.of_class["all"]
        wider = 1.0 + self.by_distance * distance
        return wider * min(low, 0.0), wider * max(high, 0.0)

    def score(self, errors: Floats, classes: NDArray[np.str_], distances: Floats, weights: Floats) -> float:
        """Mean width with ten times what lies outside: least for the best interval (Gneiting and Raftery, 2007)."""
        bounds = {name: self.ends(name, 0.0) for name in set(classes.tolist())}
        ends = np.array([bounds[name] for name in classes.tolist()]) * (1.0 + self.by_distance * distances)[:, None]
        outside = np.maximum(ends[:, 0] - errors, 0.0) + np.maximum(errors - ends[:, 1], 0.0)
        return float(np.average(ends[:, 1] - ends[:, 0] + outside * 2.0 / (1.0 - LEVEL[1] + LEVEL[0]), weights=weights))


def spread_of_errors(errors: Floats, classes: NDArray[np.str_], groups: NDArray[np.str_], distances: Floats) -> Spread:
    """The intervals of the best score, every group weighing the same."""
    names, index = np.unique(groups, return_inverse=True)
    weights = 1.0 / np.bincount(index)[index]
    made = [_stretched(errors, classes, groups, distances, weights, by) for by in BY_DISTANCE]
    assert len(names)
    return min(made, key=lambda spread: spread.score(errors, classes, distances, weights))


def _stretched(
    errors: Floats, classes: NDArray[np.str_], groups: NDArray[np.str_], distances: Floats, weights: Floats, by: float
) -> Spread:
    """Intervals by class of errors over 1 + `by` d, widened by one factor until they hold COVERED of the weight."""
    scaled = errors / (1.0 + by * distances)
    interval_of = _by_class(scaled, classes, groups)
    low, high = np.array([interval_of[name] for name in classes.tolist()]).T
    low, high = np.minimum(low, 0.0), np.maximum(high, 0.0)
    for factor in np.arange(0.6, 3.0, 0.02):
        if np.average((scaled >= factor * low) & (scaled <= factor * high), weights=weights) >= COVERED:
            break
    return Spread({name: (float(ends[0] * factor), float(ends[1] * factor)) for name, ends in interval_of.items()}, by)


def _by_class(errors: Floats, classes: NDArray[np.str_], groups: NDArray[np.str_]) -> dict[str, tuple[float, float]]:
    """Quantiles by class of run, drawn to those of all runs where there are few; a group of a class counts as the root
    of its runs, which err alike."""
    weights = np.empty(len(errors))
    for group, name in set(zip(groups.tolist(), classes.tolist(), strict=True)):
        member = (groups == group) & (classes == name)
        weights[member] = 1.0 / np.sqrt(member.sum())
    everything = _quantiles(errors, weights)
    interval_of = {"all": everything}
    for name in sorted(set(classes.tolist())):
        member = classes == name
        count = float(weights[member].sum())
        own, share = _quantiles(errors[member], weights[member]), count / (count + COMMON_RUNS)
        interval_of[name] = _mixed(own, everything, share)
    return interval_of


def distances_to_others(runs: Runs) -> Floats:
    """Of every run to the nearest run of another group of its kind [N]."""
    layouts = [layout_of(run.config) for run in runs.runs]
    away = np.empty(len(layouts))
    for group in sorted(set(runs.groups.tolist())):
        out = runs.groups == group
        others = set(compress(layouts, ~out))
        away[out] = [min(distances(layouts[i], others), default=FARTHEST) for i in np.flatnonzero(out)]
    return away


def _mixed(own: tuple[float, float], common: tuple[float, float], share: float) -> tuple[float, float]:
    low, high = (share * a + (1.0 - share) * b for a, b in zip(own, common, strict=True))
    return low, high


def _quantiles(errors: Floats, weights: Floats) -> tuple[float, float]:
    order = np.argsort(errors)
    place = (np.cumsum(weights[order]) - weights[order] / 2.0) / weights.sum()
    low, high = (float(np.interp(level, place, errors[order])) for level in LEVEL)
    return low, high

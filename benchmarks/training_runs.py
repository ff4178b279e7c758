"""Measured training runs: read, fitted, predicted with their own group left out, and written as a calibration."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from training_fit import Fit, fit_rates, fit_shapes, prior, with_shapes
from training_replay import Replay, replay

from planner.arrays import Bools, Floats
from planner.costs.training.config import TrainingConfig
from planner.costs.training.intervals import run_class
from planner.costs.training.rates import Rates
from planner.costs.training.shapes import LayerShape, main_shape
from planner.costs.training.step import step_time
from planner.errors import PlannerError
from planner.estimate.training_rows import completed, config_of_row

LEVEL = (0.1, 0.9)  # quantiles that bound an 80 % interval
COMMON_RUNS = 5.0  # runs of all classes that weigh in with the quantiles of one
COVERED = 0.85  # of the runs that intervals are fitted to: groups not seen are a little worse
REPEATED_WEIGHT = 0.2  # of runs in tables with many plans of few models


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
            np.array([run.weight for run in runs]),
            np.array([run.group for run in runs]),
            tuple(main_shape(run.config) for run in runs),
        )


def simulated_s(runs: Runs, rates: Rates, used: Bools) -> Floats:
    """Steps of the runs used, each simulated."""
    return np.array([step_time(runs.runs[index].config, rates).step_s for index in np.flatnonzero(used)])


def fitted(runs: Runs, used: Bools, start: Fit | None = None) -> tuple[Fit, Rates]:
    """Rates fitted to the runs used, alone and with the factors of their shapes.

    Pipelines are simulated at the rates of `start`, or at the prior's and then at those of a first fit.
    """
    near = prior().rates(prior().start) if start is None else start.rates
    fit = start
    for evaluations in (25, 8) if start is None else (4,):
        replay = runs.replay.corrected(near) if start is None else runs.replay
        logs = None if fit is None else fit.logs
        fit = fit_rates(replay, runs.measured, runs.weights, used, start=logs, evaluations=evaluations)
        near = fit.rates
    assert fit is not None
    errors = np.log(runs.measured / replay.step_s(fit.rates))
    index = np.flatnonzero(used)
    return fit, with_shapes(fit.rates, fit_shapes([runs.shapes[i] for i in index], errors[index]))


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Steps [N] of every run as predicted by fits that saw none of its group."""

    step_s: Floats
    formulas_s: Floats  # without the factors of measured shapes
    classes: NDArray[np.str_]  # as the fit without the group sees them

    def errors(self, measured: Floats) -> Floats:
        """ln(measured / predicted)."""
        return np.asarray(np.log(measured / self.step_s))


def leave_groups_out(runs: Runs, fit: Fit) -> LeftOut:
    """Every group predicted by a fit to the other groups, which starts from the fit to all."""
    runs = replace(runs, replay=runs.replay.corrected(fit.rates))
    steps, formulas = np.empty(len(runs.runs)), np.empty(len(runs.runs))
    classes = np.empty(len(runs.runs), dtype="U64")
    for group in sorted(set(runs.groups.tolist())):
        out = runs.groups == group
        part, rates = fitted(runs, ~out, fit)
        steps[out] = simulated_s(runs, rates, out)
        formulas[out] = simulated_s(runs, part.rates, out)
        classes[out] = [run_class(runs.runs[i].config, rates) for i in np.flatnonzero(out)]
    return LeftOut(steps, formulas, classes)


def spreads(errors: Floats, classes: NDArray[np.str_], groups: NDArray[np.str_]) -> dict[str, tuple[float, float]]:
    """80 % intervals of ln(measured / predicted) by class of run, drawn to those of all runs where there are few.

    Runs of one group err alike, so each group of a class counts as the root of its runs; all intervals are widened by
    one factor until they hold `COVERED` of the runs.
    """
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
    for factor in np.arange(1.0, 3.0, 0.02):
        bounds = np.array([interval_of[name] for name in classes]) * factor
        if np.mean((errors >= bounds[:, 0]) & (errors <= bounds[:, 1])) >= COVERED:
            break
    return {name: (float(low * factor), float(high * factor)) for name, (low, high) in interval_of.items()}


def _mixed(own: tuple[float, float], common: tuple[float, float], share: float) -> tuple[float, float]:
    low, high = (share * a + (1.0 - share) * b for a, b in zip(own, common, strict=True))
    return low, high


def _quantiles(errors: Floats, weights: Floats) -> tuple[float, float]:
    order = np.argsort(errors)
    place = (np.cumsum(weights[order]) - weights[order] / 2.0) / weights.sum()
    low, high = (float(np.interp(level, place, errors[order])) for level in LEVEL)
    return low, high

"""Whether 80 % intervals of serving estimates hold, by row and by group, and what lies between groups.

    python benchmarks/serving_intervals.py ../shared/data/serving

Rows: measured.csv and the open groups of measured_more.csv; settings are those of the public recipes. A group is all
rows of a family, system, engine and format of weights. Groups that a calibration knows (`groups` of its `intervals`)
have narrow intervals. Last comes how errors of both times go together.

`left out`: intervals of each family with what the other families say lies between groups
(`planner.costs.rates.spread`), around the costs before any fit (planner/calibrate/prior.yaml), to which all groups are
unseen. `shipped`: as `planner estimate` gives them, for all rows, nearly all of which they were fitted to. Beside them
stands one width for all, the one that holds 80 % of the rows of groups that are known.
"""

import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from inputs import first_path
from recipe_columns import filled
from scipy.stats import spearmanr
from sealed_groups import SERVING, group_of, open_rows
from sealed_serving import LIKELY
from serving_fit import features, fit_between

from planner.arrays import Bools, Floats, Indices
from planner.calibrate.deployments import PRIOR_FILE, ServingParameters, predict
from planner.calibrate.terms import DeploymentTerms
from planner.costs.rates.calibration import load_calibration
from planner.costs.rates.spread import ErrorSpread
from planner.estimate.case import Case
from planner.estimate.measured import case_of_row

TABLES = ("measured.csv", "measured_more.csv")
TIMES = ("ttft", "tpot")
Texts = list[str]


@dataclass(frozen=True, slots=True)
class Errors:
    """Logarithms of measured over predicted times of rows [N], and of the bounds within groups."""

    error: Floats
    low: Floats
    high: Floats

    def held(self, between: tuple[float, float], apart: Bools) -> Bools:
        """Rows between their bounds, with what lies between groups where they stand `apart`."""
        below, above = (np.where(apart, side, 0.0) for side in between)
        return np.asarray((self.error >= -np.hypot(self.low, below)) & (self.error <= np.hypot(self.high, above)))


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows [N]: deployments, groups and families, and which of them the shipped costs know."""

    cases: list[Case]
    terms: DeploymentTerms
    group: Indices
    family: Texts
    fitted: Bools
    times: dict[str, Floats]
    queued: Bools

    @classmethod
    def read(cls, folder: Path) -> "Rows":
        rows = open_rows(folder, TABLES)
        cases, known = [case_of_row(filled(row)) for row in rows], load_calibration().groups
        names = sorted({group_of(row, SERVING) for row in rows})
        return cls(
            cases,
            DeploymentTerms.of(cases),
            np.array([names.index(group_of(row, SERVING)) for row in rows], dtype=np.intp),
            [row["family"] for row in rows],
            np.array([case.group in known for case in cases]),
            {name: np.array([float(row[f"{name}_ms"]) / 1e3 for row in rows]) for name in TIMES},
            np.array([row["saturated"] == "1" for row in rows]),
        )

    def errors(self, calibration: str, spreads: dict[str, ErrorSpread]) -> dict[str, Errors]:
        """Of these costs, by time, with the shipped bounds within groups."""
        costs = load_calibration(calibration)
        parameters = ServingParameters.of(costs, self.terms.engine_D)
        longer = np.array([costs.slowdown(case.group) for case in self.cases])
        told = predict(self.terms, parameters, longer=longer)
        about = features(self.terms, parameters, told, longer)
        result = {}
        for name, predicted in (("ttft", told.ttft_s), ("tpot", told.tpot_s)):
            within = replace(spreads[name], unseen=False)
            low, high = (np.log(bound / predicted) for bound in within.bounds(predicted, about))
            result[name] = Errors(np.log(self.times[name] / predicted), low, high)
        return result

    def counted(self, name: str) -> tuple[Bools, Floats]:
        """Rows whose time counts, and their weight; 0 of small groups."""
        rows = ~self.queued if name == "ttft" else np.ones(len(self.cases), dtype=np.bool_)
        size = np.bincount(self.group[rows], minlength=int(self.group.max()) + 1)[self.group]
        return rows, np.where(rows & (size >= LIKELY), 1.0 / np.maximum(size, 1), 0.0)


def main() -> int:
    """Print the table."""
    rows, shipped = Rows.read(first_path()), load_calibration()
    before, now = (rows.errors(file, shipped.spreads) for file in (PRIOR_FILE, "default"))
    for name in TIMES:
        own = shipped.spreads[name].between
        factors = f"a factor of {np.exp(-own[0]):.2f} to {np.exp(own[1]):.2f}"
        print(f"between groups, {name}: {factors}; 80 % intervals hold")
        show(rows, f"{name}, left out", name, left_out(rows, before[name], rows.counted(name)[1]))
        width = np.quantile(np.abs(now[name].error[rows.fitted & rows.counted(name)[0]]), 0.8)
        for title, held in (
            ("shipped", now[name].held(own, ~rows.fitted)),
            ("nothing between", now[name].held((0.0, 0.0), ~rows.fitted)),
            ("one width", np.abs(now[name].error) <= width),
        ):
            show(rows, f"{name}, {title}", name, held)
    for title, errors in (("before any fit", before), ("shipped", now)):
        ttft, tpot = (errors[name].error[~rows.queued] for name in TIMES)
        together = spearmanr(ttft, tpot).statistic
        print(f"errors of both times, {title}: rank correlation {together:.2f}")
    return 0


def left_out(rows: Rows, errors: Errors, weight: Floats) -> Bools:
    """Rows that are held by what other families say lies between groups."""
    family, held = np.array(rows.family), np.zeros(len(weight), dtype=np.bool_)
    for name in np.unique(family):
        kept = np.where(family == name, 0.0, weight)
        between = fit_between(errors.error, errors.low, errors.high, kept)
        held |= (family == name) & errors.held(between, np.ones(len(weight), dtype=np.bool_))
    return held


def show(rows: Rows, title: str, name: str, held: Bools) -> None:
    """Shares of rows, and of groups that weigh the same."""
    counted, weight = rows.counted(name)
    groups = len(np.unique(rows.group[weight > 0]))
    of_groups = 100.0 * np.sum(held * weight) / weight.sum()
    print(f"  {title:26} rows {100.0 * held[counted].mean():3.0f} %   {groups:2d} groups {of_groups:3.0f} %")


if __name__ == "__main__":
    sys.exit(main())

"""How near estimates of serving are to measured deployments, every group predicted by a fit that has not seen it.

    python benchmarks/serving.py ../shared/data/serving                     # the tables
    python benchmarks/serving.py ../shared/data/serving --folds 4           # four fits, each of three groups in four
    python benchmarks/serving.py ../shared/data/serving --quick             # without the fits
    python benchmarks/serving.py ../shared/data/serving --write FILE.yaml   # no table: a calibration of all rows
    ... --left-out FILE.jsonl       # the predictions of groups left out, as `planner propose` replays take them

Rows: measured.csv and the open groups of measured_more.csv (benchmarks/sealed_groups.py). A group is all rows of a
family, system, engine and format of weights; those of ten rows or more weigh the same in every error. Costs start from
planner/calibrate/prior.yaml, which was fitted to no row, and are fitted (benchmarks/serving_fit.py) to the settings of
the recipes that ran, without the group at hand, and without its family.
Predictions are of the same rows with these settings (`stated`), with the engine's defaults (`defaults`), and with the
defaults of the newest release (`no version`). Errors are absolute percentages, mean / median; the time to first token
counts where it is not queueing. Beside them stand a constant (the median of engine and mode in other groups), the costs
before any fit, boosted trees on roofline features grown on the other groups (benchmarks/serving_trees.py), the shipped
costs, and what would be left were each group known in the median (`its median known`). Last come the four decisions of
the data's score.py, the share of rows that 80 % intervals hold, whose widths no row of the group or family left out has
told, and how far groups lie apart.
"""

import argparse
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from inputs import required
from recipe_columns import Columns, filled, load_alone
from sealed_groups import SERVING, group_of, open_rows
from sealed_serving import LIKELY, Pairs, bias, errors
from serving_fit import features, fit, fit_between, fit_spread
from serving_tables import captured
from serving_trees import left_out as trees

from planner.arrays import Bools, Floats, Indices
from planner.calibrate.deployments import (
    PRIOR_FILE,
    Fitted,
    MeasuredTimes,
    ServingParameters,
    document_of,
    predict,
)
from planner.calibrate.history import text_of, training_of
from planner.calibrate.own_runs import rounded
from planner.calibrate.shared import SharedFit
from planner.calibrate.terms import DeploymentTerms
from planner.costs.rates.calibration import load_calibration
from planner.costs.rates.forms import forms_document
from planner.costs.rates.spread import ErrorSpread
from planner.documents.files import digest
from planner.estimate.case import Case, measured_forms
from planner.estimate.closed_loop import MeanTimes
from planner.estimate.measured import case_of_row

TABLES = ("measured.csv", "measured_more.csv")
MOST_APART = 2.0
WAYS = ("stated", "defaults", "no version")


def stated(row: Columns, way: str) -> Columns:
    """The row with what is stated of it."""
    if way == "stated":
        return filled(row)
    return {**load_alone(row), **({"backend_version": ""} if way == "no version" else {})}


@dataclass(frozen=True, slots=True)
class Data:
    """The rows [D], their groups, and their terms by what is stated."""

    rows: list[Columns]
    cases: list[Case]
    terms: dict[str, DeploymentTerms]
    start: ServingParameters
    measured: MeasuredTimes
    names: list[str]
    group: Indices
    family: Indices
    runs_group: Indices  # as estimates know them (`planner.costs.rates.spread.group_of_runs`)

    @classmethod
    def read(cls, folder: Path, ways: tuple[str, ...] = WAYS) -> "Data":
        rows = open_rows(folder, TABLES)
        cases = {way: [case_of_row(stated(row, way)) for row in rows] for way in ways}
        terms = {way: DeploymentTerms.of(known) for way, known in cases.items()}
        ttft_s, tpot_s = (np.array([float(row[name]) / 1e3 for row in rows]) for name in ("ttft_ms", "tpot_ms"))
        queued = np.array([row["saturated"] == "1" for row in rows])
        names, group = np.unique([group_of(row, SERVING) for row in rows], return_inverse=True)
        family = np.unique([row["family"] for row in rows], return_inverse=True)[1]
        together = np.unique([case.group for case in cases["stated"]], return_inverse=True)[1]
        engines = [name for known in terms.values() for name in known.engine_D]
        start = ServingParameters.of(load_calibration(PRIOR_FILE), engines)
        measured = MeasuredTimes(ttft_s, tpot_s, queued)
        return cls(rows, cases["stated"], terms, start, measured, list(names), group, family, together)

    def times(self, parameters: ServingParameters, way: str = "stated", longer: Floats | None = None) -> Floats:
        """[2, D] to first token and per output token, of steps as much longer [D]."""
        told = predict(self.terms[way], parameters, longer=longer)
        return np.array([told.ttft_s, told.tpot_s])

    def pairs(self, times: Floats, which: int) -> Pairs:
        """Predicted and measured times by group, of the rows whose time counts."""
        pairs: Pairs = {}
        known = (self.measured.ttft_s, self.measured.tpot_s)[which]
        for row in np.flatnonzero(~self.measured.queued if which == 0 else np.ones(len(known), dtype=np.bool_)):
            pairs.setdefault(self.names[self.group[row]], []).append((float(times[which, row]), float(known[row])))
        return pairs

    def line(self, title: str, times: Floats) -> str:
        """Errors of both times, and the median over groups of the signed error per output token."""
        tpot, ttft = self.pairs(times, 1), self.pairs(times, 0)
        large = {name: group for name, group in tpot.items() if len(group) >= LIKELY}
        return f"  {title:34} TPOT {errors(tpot):>11} ({bias(large)})   TTFT {errors(ttft):>11}"

    def constants(self) -> Floats:
        """[2, D] the median of engine and mode in other groups; of all rows of them where there is none."""
        kind = np.array([f"{row['backend']} {row['mode']}" for row in self.rows])
        known = np.array([self.measured.ttft_s, self.measured.tpot_s])
        times = np.zeros_like(known)
        for row in range(len(self.rows)):
            others = self.group != self.group[row]
            alike = others & (kind == kind[row])
            times[:, row] = np.median(known[:, alike if alike.any() else others], axis=1)
        return times

    def known(self, times: Floats) -> Floats:
        """The times with every group's median error per output token taken out."""
        error = np.log(self.measured.tpot_s / times[1])
        medians = np.array([np.median(error[self.group == group]) for group in range(len(self.names))])
        return np.array([times[0], times[1] * np.exp(medians[self.group])])

    def fitted(self, chosen: Bools) -> SharedFit:
        """A fit to some of the rows as the recipes state them."""
        return fit(self.terms["stated"], self.measured, self.start, self.runs_group, chosen)

    def left_out(self, unit: Indices) -> tuple[dict[str, Floats], Bools]:
        """Times [2, D] of the rows of every unit [D] by a fit to all others, by what is stated; which intervals hold.

        Those [2, D] of 80 % around what is `stated`, of groups unseen, as wide as the other units tell.
        """
        times = {way: np.zeros((2, len(self.rows))) for way in self.terms}
        held = np.zeros((2, len(self.rows)), dtype=np.bool_)
        known = (self.measured.ttft_s, self.measured.tpot_s)
        for number in np.unique(unit):
            held_out = unit == number
            fitted = self.fitted(~held_out)
            for way, told in times.items():
                told[:, held_out] = self.times(fitted.parameters, way)[:, held_out]
            spreads = spreads_of(self, fitted, ~held_out)
            terms, parameters = self.terms["stated"], fitted.parameters
            about = features(terms, parameters, MeanTimes(*self.times(parameters)))
            for which, name in enumerate(("ttft", "tpot")):
                low, high = spreads[name].elsewhere().bounds(times["stated"][which], about)
                held[which, held_out] = ((known[which] >= low) & (known[which] <= high))[held_out]
        return times, held

    def held(self, title: str, held: Bools) -> str:
        """Shares of rows, and of groups that weigh the same, whose intervals [2, D] hold."""
        cells = []
        for which, name in ((1, "TPOT"), (0, "TTFT")):
            rows = ~self.measured.queued if which == 0 else np.ones(len(self.rows), dtype=np.bool_)
            size = np.bincount(self.group[rows], minlength=len(self.names))[self.group]
            weight = np.where(rows & (size >= LIKELY), 1.0 / np.maximum(size, 1), 0.0)
            of_groups = float(np.sum(held[which] * weight) / weight.sum())
            cells.append(f"{name} rows {held[which][rows].mean():3.0%}, groups {of_groups:3.0%}")
        return f"  {title:34} 80 % intervals hold: {'   '.join(cells)}"


def main() -> int:
    """Print the tables, or with --write make a calibration of all rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("folder", type=required)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--folds", type=int, default=0, help="fits in all; 0: one for each group, and each family")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--left-out", type=Path)
    given = parser.parse_args()
    if given.write:
        write(given.write, Data.read(given.folder, ("stated",)))
        return 0
    data = Data.read(given.folder)
    print(f"{len(data.rows)} rows, {len(data.names)} groups; percent, mean / median (median over groups, signed)")
    show(data, given.folder, "a constant", data.constants())
    unfitted = {way: data.times(data.start, way) for way in WAYS}
    shipped = ServingParameters.of(load_calibration(), [name for t in data.terms.values() for name in t.engine_D])
    for way in WAYS:
        show(data, given.folder, f"before any fit, {way}", unfitted[way])
    longer = np.array([load_calibration().slowdown(case.group) for case in data.cases])
    for way in WAYS:
        show(data, given.folder, f"shipped, {way}", data.times(shipped, way, longer))
    show(data, given.folder, "before any fit, its median known", data.known(unfitted["stated"]))
    if not given.quick:
        for title, unit in (("group left out", data.group), ("family left out", data.family)):
            parts = unit % given.folds if given.folds else unit
            grown = trees(data.terms["stated"], data.measured, data.group, parts)
            show(data, given.folder, f"{title}, boosted trees", grown)
            left, held = data.left_out(parts)
            for way in WAYS:
                show(data, given.folder, f"{title}, {way}", left[way])
            print(data.held(title, held))
            if title.startswith("group") and given.left_out:
                given.left_out.write_text("".join(prediction_lines(data, left["stated"])), encoding="utf-8")
            by_group(data, title, left["stated"], unfitted["stated"])
    return 0


def show(data: Data, folder: Path, title: str, times: Floats) -> None:
    """A line of errors, and what decisions capture by these times."""
    print(f"{data.line(title, times)}   captured: {captured(folder, data.rows, times)}", flush=True)


def by_group(data: Data, title: str, times: Floats, unfitted: Floats) -> None:
    """Mean error and median signed error per output token of every group, beside those before any fit."""
    print(f"  {title}: TPOT, mean (median, signed), and before any fit")
    known = data.measured.tpot_s
    for number, name in enumerate(data.names):
        rows = data.group == number
        cells = [
            f"{100 * np.mean(np.abs(told[1][rows] / known[rows] - 1.0)):5.1f} "
            f"({100 * np.median(told[1][rows] / known[rows] - 1.0):+6.1f})"
            for told in (times, unfitted)
        ]
        print(f"    {name:50} {rows.sum():4d} rows   {'   '.join(cells)}")


def prediction_lines(data: Data, times: Floats) -> list[str]:
    """The lines of `planner estimate`, as far as scores read them."""
    import json

    return [
        json.dumps({"id": row["id"], "prediction": {"ttft_s": ttft, "tpot_s": tpot}}) + "\n"
        for row, ttft, tpot in zip(data.rows, *times, strict=True)
    ]


def write(path: Path, data: Data) -> None:
    """A calibration file of all rows: parameters, where groups lie, intervals, and forms of instances."""
    everything = np.ones(len(data.rows), dtype=bool)
    fitted = data.fitted(everything)
    shipped = load_calibration()
    parameters = replace(fitted.parameters, trust=shipped.tables)
    spreads = spreads_of(data, replace(fitted, parameters=parameters), everything)
    runs = runs_of(data, fitted)
    document = document_of(
        Fitted(parameters, fitted.standard_errors),
        spreads,
        runs,
        rows=len(data.rows),
        data=digest({"rows": data.rows}),
    )
    whole = document | {"runs": runs, "forms": forms_document(measured_forms(data.cases))} | training_of(shipped)
    path.write_text(text_of(whole), encoding="utf-8")
    print(f"  wrote {path}: between groups {spreads['tpot'].between}, deviation {fitted.between:.3f}")


def spreads_of(data: Data, fitted: SharedFit | None, chosen: Bools) -> dict[str, ErrorSpread]:
    """Widths of both times around a fit by groups of the chosen rows [D], and what lies between groups.

    Widths are those of runs around where their group lies, its steps as much longer as the fit has them; what lies
    between is of groups where the costs alone have them. Of the costs before any fit where there is none.
    """
    terms, measured = data.terms["stated"], data.measured
    parameters = data.start if fitted is None else fitted.parameters
    told = predict(terms, parameters)
    about = features(terms, parameters, told)
    placed: dict[int, float] = {}
    if fitted is not None:
        placed = {number: float(np.exp(own.mean)) for number, own in fitted.groups.items()}
    longer = np.array([placed.get(int(number), 1.0) for number in data.runs_group])
    own_ttft_s = predict(terms, parameters, longer=longer).ttft_s
    size = np.bincount(data.group)[data.group]
    likely = chosen & (size >= LIKELY)
    spreads = {}
    for name, known_s, alone_s, own_s, rows in (
        ("ttft", measured.ttft_s, told.ttft_s, own_ttft_s, likely & ~measured.queued),
        ("tpot", measured.tpot_s, told.tpot_s, told.tpot_s * longer, likely),
    ):
        within = fit_spread(known_s[rows], own_s[rows], about[rows], 1.0 / size[rows])
        low, high = (np.log(bound / alone_s) for bound in within.bounds(alone_s, about))
        between = fit_between(np.log(known_s / alone_s), low, high, np.where(rows, 1.0 / size, 0.0))
        spreads[name] = replace(within, between=between)
    return spreads


def runs_of(data: Data, fitted: SharedFit) -> dict[str, dict[str, float | int]]:
    """Section `runs`: beliefs by the names that estimates know groups by.

    Left out are groups of few rows, those whose steps would move bytes faster than a data sheet says, and those beyond
    MOST_APART deviations of what lies between groups: their columns do not tell what ran.
    """
    least, most = np.log(fitted.parameters.efficiencies.experts_bandwidth), MOST_APART * fitted.between
    named = {data.cases[row].group: fitted.groups[int(number)] for row, number in enumerate(data.runs_group)}
    kept = {name: own for name, own in named.items() if own.runs >= LIKELY and least < own.mean < most}
    return {name: rounded(own) for name, own in sorted(kept.items())}


if __name__ == "__main__":
    sys.exit(main())

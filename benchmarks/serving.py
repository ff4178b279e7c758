"""How near estimates of serving are to measured deployments, every kind predicted by a fit that has not seen it.

Fits the cost model (benchmarks/serving_fit.py) with one group left out after another: model families, systems,
and pairs of system and engine for disaggregated deployments. Prints mean and median error of the time per output token
(TPOT) and, where it is not queueing, of the time to first token (TTFT), beside the best constant of an engine and mode;
coverage and Winkler score of the 80 % intervals; and what the decisions of the data's score.py capture. Settings are
those of the recipes that ran, and what the times tell where there is none (benchmarks/recipe_columns.py).

    python benchmarks/serving.py ../shared/data/serving/measured.csv                     # the tables
    python benchmarks/serving.py ../shared/data/serving/measured.csv --write FILE.yaml   # and a calibration of all rows
    ... --profiles ../shared/data/kernel-profiles                                        # with the weights of tables
    ... --left-out FILE.jsonl                                  # the predictions of families left out, for propose.py
"""

import csv
import importlib.util
import json
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import numpy as np
from numpy.typing import NDArray
from recipe_columns import filled
from serving_fit import coverage, features, fit, fit_spread, fit_trust, winkler

from planner.arrays import Bools, Floats
from planner.calibrate.deployments import PRIOR_FILE, Fitted, MeasuredTimes, ServingParameters, predict
from planner.calibrate.terms import DeploymentTerms
from planner.costs.rates.calibration import load_calibration
from planner.costs.rates.pricer import open_store
from planner.estimate.case import Case
from planner.estimate.closed_loop import MeanTimes
from planner.estimate.measured import cases_of_rows

Texts = NDArray[np.str_]


@dataclass(frozen=True, slots=True)
class Data:
    """The rows, in the order of their cases."""

    rows: list[dict[str, str]]
    cases: list[Case]
    measured: MeasuredTimes

    @classmethod
    def read(cls, path: str) -> "Data":
        with open(path, newline="", encoding="utf-8") as file:
            known = {row["id"]: filled(row, inferred=True) for row in csv.DictReader(file)}
        cases = [case for case in cases_of_rows(known.values()) if isinstance(case, Case)]
        rows = [known[case.id] for case in cases]
        seconds = [[float(row[name]) / 1e3 for row in rows] for name in ("ttft_ms", "tpot_ms")]
        queued = np.array([row["saturated"] == "1" for row in rows])
        return cls(rows, cases, MeasuredTimes(np.array(seconds[0]), np.array(seconds[1]), queued))

    def column(self, *names: str) -> Texts:
        """The values of some columns, joined."""
        return np.array(["/".join(row[name] for name in names) for row in self.rows])

    @property
    def apart(self) -> Bools:
        return np.asarray(self.column("mode") == "disagg")


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Predictions [D] of every row by a fit without its group; what their errors go with, and the groups."""

    predicted: MeanTimes
    features: Floats
    group: Texts


def main() -> int:
    """Print the tables; with --write, a calibration of all rows."""
    data = Data.read(sys.argv[1])
    prior = load_calibration(PRIOR_FILE)
    terms = DeploymentTerms.of(data.cases)
    start = ServingParameters.of(prior, terms.engine_D)
    families = left_out(data, terms, start, data.column("family"))
    show("model family left out", data, families)
    if "--left-out" in sys.argv:
        lines = prediction_lines(data, families.predicted.ttft_s, families.predicted.tpot_s)
        Path(sys.argv[sys.argv.index("--left-out") + 1]).write_text("".join(lines), encoding="utf-8")
    if "--write" in sys.argv:
        everything = np.ones(len(data.rows), dtype=bool)
        fitted = fit(terms, data.measured, start, everything)
        if "--profiles" in sys.argv:
            store = open_store((sys.argv[sys.argv.index("--profiles") + 1],))
            trusted = fit_trust(DeploymentTerms.of(data.cases, store), data.measured, fitted.parameters, everything)
            fitted = Fitted(trusted, fitted.standard_errors)
        write(Path(sys.argv[sys.argv.index("--write") + 1]), fitted, data, families)
    for names in (("mode",), ("backend",), ("system",), ("mode", "backend", "system")):
        breakdown(data, families.predicted, data.column(*names))
    show("system left out", data, left_out(data, terms, start, data.column("system")))
    pairs = left_out(data, terms, start, data.column("system", "backend"), data.apart)
    show("system and engine left out, disaggregated", data, pairs, data.apart)
    bounds = intervals(data, families)
    decisions(sys.argv[1], data, families.predicted, bounds)
    return 0


def left_out(
    data: Data, terms: DeploymentTerms, start: ServingParameters, group: Texts, chosen: Bools | None = None
) -> LeftOut:
    """Every group predicted by a fit to all others; with `chosen`, only groups that have such rows."""
    ttft, tpot = np.full(len(group), np.nan), np.full(len(group), np.nan)
    features_DF = np.zeros((len(group), 3))
    for name in np.unique(group if chosen is None else group[chosen]):
        held_out = group == name
        print(f"... without {name}", file=sys.stderr, flush=True)
        parameters = fit(terms, data.measured, start, ~held_out).parameters
        predicted = predict(terms, parameters)
        ttft[held_out], tpot[held_out] = predicted.ttft_s[held_out], predicted.tpot_s[held_out]
        features_DF[held_out] = features(terms, parameters, predicted)[held_out]
    return LeftOut(MeanTimes(ttft, tpot), features_DF, group)


def errors(data: Data, predicted: MeanTimes, chosen: Bools) -> str:
    """Mean / median error in percent of TPOT and TTFT."""
    unqueued = chosen & ~data.measured.queued
    tpot = 100.0 * np.abs(predicted.tpot_s / data.measured.tpot_s - 1.0)[chosen]
    ttft = 100.0 * np.abs(predicted.ttft_s / data.measured.ttft_s - 1.0)[unqueued]
    if not unqueued.any():
        return f"TPOT {tpot.mean():5.1f} / {np.median(tpot):4.1f}"
    return f"TPOT {tpot.mean():5.1f} / {np.median(tpot):4.1f}   TTFT {ttft.mean():5.1f} / {np.median(ttft):4.1f}"


def worst(data: Data, predicted: MeanTimes, chosen: Bools) -> Bools:
    """The chosen row whose time to first token, where it is not queueing, is furthest off."""
    error = np.abs(predicted.ttft_s / data.measured.ttft_s - 1.0) * (chosen & ~data.measured.queued)
    return np.asarray(np.arange(len(error)) == np.nanargmax(error))


def show(title: str, data: Data, predictions: LeftOut, chosen: Bools | None = None) -> None:
    """One protocol: all rows, each group, and the best constant."""
    rows = np.ones(len(predictions.group), dtype=bool) if chosen is None else chosen
    print(f"{title}, {rows.sum()} rows: error in percent, mean / median")
    print(f"  {'all':34} {errors(data, predictions.predicted, rows)}")
    others = rows & ~worst(data, predictions.predicted, rows)
    print(f"  {'all but the row of the worst TTFT':34} {errors(data, predictions.predicted, others)}")
    print(f"  {'one constant an engine and mode':34} {errors(data, constants(data, predictions.group), rows)}")
    for name in np.unique(predictions.group[rows]):
        print(f"  {name:34} {errors(data, predictions.predicted, rows & (predictions.group == name))}")


def constants(data: Data, group: Texts) -> MeanTimes:
    """The median of engine and mode over the rows of other groups; over all other rows where there are none."""
    kind = data.column("backend", "mode")
    means = [np.zeros(len(group)), np.zeros(len(group))]
    for name in np.unique(group):
        for deployment in np.unique(kind[group == name]):
            rest = (group != name) & (kind == deployment)
            rest = rest if rest.any() else group != name
            here = (group == name) & (kind == deployment)
            means[0][here] = np.median(data.measured.ttft_s[rest])
            means[1][here] = np.median(data.measured.tpot_s[rest])
    return MeanTimes(*means)


def breakdown(data: Data, predicted: MeanTimes, kind: Texts) -> None:
    """Errors by kind of row."""
    for name in np.unique(kind):
        rows = kind == name
        print(f"  {name:34} {errors(data, predicted, rows)}   n={rows.sum()}")


def intervals(data: Data, predictions: LeftOut) -> dict[str, tuple[Floats, Floats]]:
    """80 % intervals of every group from the errors of the others; prints how good they are."""
    bounds = {}
    pairs = (
        ("tpot", data.measured.tpot_s, predictions.predicted.tpot_s),
        ("ttft", data.measured.ttft_s, predictions.predicted.ttft_s),
    )
    for name, measured, predicted in pairs:
        low, high = np.zeros_like(measured), np.zeros_like(measured)
        for group in np.unique(predictions.group):
            held_out = predictions.group == group
            spread = fit_spread(measured[~held_out], predicted[~held_out], predictions.features[~held_out])
            low[held_out], high[held_out] = spread.bounds(predicted[held_out], predictions.features[held_out])
        width = np.exp(np.quantile(np.abs(np.log(measured / predicted)), 0.8))
        constant = winkler(measured, predicted / width, predicted * width).mean()
        gain = 100.0 * (1.0 - winkler(measured, low, high).mean() / constant)
        held_share = 100.0 * coverage(measured, low, high)
        print(
            f"  {name} intervals hold {held_share:.0f} % of the rows, score {gain:.0f} % better than a constant width"
        )
        bounds[name] = low, high
    return bounds


def decisions(path: str, data: Data, predicted: MeanTimes, bounds: dict[str, tuple[Floats, Floats]]) -> None:
    """What the decisions of score.py, next to the rows, capture: on the estimate, and on the bound at 90 %."""
    place = Path(path).parent / "score.py"
    spec = importlib.util.spec_from_file_location("score", place)
    if not place.exists() or spec is None or spec.loader is None:
        print(f"  no decisions: {place} is absent")
        return
    score: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(score)
    for title, tpot in (("estimate", predicted.tpot_s), ("at 90 % confidence", bounds["tpot"][1])):
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            file.writelines(prediction_lines(data, predicted.ttft_s, tpot))
            file.flush()
            captured = score.decisions(score.read(path, file.name))
        shares = ", ".join(f"{name} {got:.2f} ({100 * bad:.0f} % break it)" for name, (got, bad, _) in captured.items())
        print(f"  captured, {title}: {shares}")


def prediction_lines(data: Data, ttft_s: Floats, tpot_s: Floats) -> list[str]:
    """The lines of `planner estimate`, as far as scores read them."""
    return [
        json.dumps({"id": row["id"], "prediction": {"ttft_s": ttft, "tpot_s": tpot}}) + "\n"
        for row, ttft, tpot in zip(data.rows, ttft_s, tpot_s, strict=True)
    ]


def write(path: Path, fitted: Fitted, data: Data, families: LeftOut) -> None:
    """A calibration file of all rows, with the intervals of groups left out."""
    from planner.calibrate.deployments import document_of
    from planner.calibrate.history import text_of, training_of
    from planner.documents.files import digest

    measured = data.measured
    spreads = {
        "ttft": fit_spread(measured.ttft_s, families.predicted.ttft_s, families.features),
        "tpot": fit_spread(measured.tpot_s, families.predicted.tpot_s, families.features),
    }
    between = {name: spread.between for name, spread in load_calibration().spreads.items()}  # serving_intervals.py's
    spreads = {name: replace(spread, between=between[name]) for name, spread in spreads.items()}
    groups = {case.group for case in data.cases}
    document = document_of(fitted, spreads, groups, rows=len(data.rows), data=digest({"rows": data.rows}))
    path.write_text(text_of(document | training_of(load_calibration())), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())

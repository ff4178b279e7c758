"""Whether kernel tables help estimates of deployments that nothing was fitted to, weighed as they help other groups.

    python benchmarks/serving_tables.py ../shared/data/serving TABLES     # TABLES: as --profiles takes them

Rows: measured.csv and the open groups of measured_more.csv (benchmarks/sealed_groups.py), with settings as the public
recipes state them, priced by planner/calibrate/prior.yaml, which was fitted to none of them, then by FOLDS fits
(benchmarks/serving_fit.py), each to the groups of the other folds. A weight for each kind of kernel says how far its
tables count against the roofline (`TableTrust`); for every group of family, system, engine and weights they are those
of the least error of the other groups: coordinate descent over WEIGHTS from no tables on
    mean over groups of [ |log TPOT error| + TTFT_SHARE |log TTFT error| ], errors capped at MOST a row, + STIFF each,
groups of ten rows or more weighing the same. Errors are printed in percent, mean / median; the time to first token
counts where it is not queueing. Beside them stand a constant, the median of the same engine and mode in other groups,
and times without tables that are all LONGER: whoever expects more breaks fewer limits.
"""

import importlib.util
import json
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from pathlib import Path

import numpy as np
from recipe_columns import filled
from sealed_groups import SERVING, group_of, open_rows
from sealed_serving import LIKELY, Pairs, errors
from serving_fit import fit

from planner.arrays import Bools, Floats, Indices
from planner.calibrate.deployments import PRIOR_FILE, MeasuredTimes, ServingParameters, predict
from planner.calibrate.terms import DeploymentTerms
from planner.costs.rates.calibration import TableTrust, load_calibration
from planner.costs.rates.pricer import open_store
from planner.estimate.case import Case
from planner.estimate.measured import case_of_row

TABLES = ("measured.csv", "measured_more.csv")
WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)
TTFT_SHARE = 0.3
MOST = 1.0
STIFF = 0.002
SWEEPS = 2
FOLDS = 4
LONGER = 1.03
NONE = TableTrust(0.0, 0.0, 0.0, 0.0)
HALF = TableTrust(0.5, 0.5, 0.5, 0.5)
SHIPPED = load_calibration().tables


@dataclass(slots=True)
class Benchmark:
    """The rows [D] with their groups, and their times under weights that were tried."""

    rows: list[dict[str, str]]
    cases: list[Case]
    terms: DeploymentTerms
    parameters: list[ServingParameters]  # of each fold
    fold: Indices  # [D]
    names: list[str]
    group: Indices
    times: Floats  # measured [2, D]: to first token, per output token
    counted: Bools  # [2, D]
    tried: dict[TableTrust, tuple[Floats, Floats]] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path, tables: str) -> "Benchmark":
        rows = open_rows(folder, TABLES)
        cases = [case_of_row(filled(row)) for row in rows]
        terms = DeploymentTerms.of(cases, open_store((tables,)))
        names = sorted({group_of(row, SERVING) for row in rows})
        group = np.array([names.index(group_of(row, SERVING)) for row in rows], dtype=np.intp)
        times = np.array([[float(row[name]) / 1e3 for row in rows] for name in ("ttft_ms", "tpot_ms")])
        queued = np.array([row["saturated"] == "1" for row in rows])
        counted = np.array([~queued, np.ones(len(rows), dtype=np.bool_)])
        start = ServingParameters.of(load_calibration(PRIOR_FILE), terms.engine_D)
        return cls(rows, cases, terms, [start], np.zeros_like(group), names, group, times, counted)

    def fitted(self) -> "Benchmark":
        """The same by parameters that were fitted to the rows of the other folds, without tables."""
        together = np.unique([case.group for case in self.cases], return_inverse=True)[1]
        measured = MeasuredTimes(self.times[0], self.times[1], ~self.counted[0])
        fold = self.group % FOLDS
        fits = [fit(self.terms, measured, self.parameters[0], together, fold != held) for held in range(FOLDS)]
        return replace(self, parameters=[shared.parameters for shared in fits], fold=fold, tried={})

    def predicted(self, weights: TableTrust) -> tuple[Floats, Floats]:
        """Times [2, D] with tables counting by `weights`, and the loss [G] of every group; NaN of small ones."""
        if weights not in self.tried:
            times = np.zeros_like(self.times)
            for held, known in enumerate(self.parameters):
                told = predict(self.terms, replace(known, trust=weights), tables=True)
                times = np.where(self.fold == held, [told.ttft_s, told.tpot_s], times)
            self.tried[weights] = times, self._losses(times)
        return self.tried[weights]

    def _losses(self, times: Floats) -> Floats:
        error = np.minimum(np.abs(np.log(times / self.times)), MOST)
        rows = np.array([np.bincount(self.group[told], minlength=len(self.names)) for told in self.counted])
        total = np.array(
            [
                np.bincount(self.group[told], own[told], minlength=len(self.names))
                for told, own in zip(self.counted, error, strict=True)
            ]
        )
        ttft, tpot = np.where(rows >= LIKELY, total / np.maximum(rows, 1), np.nan)
        return np.asarray(tpot + TTFT_SHARE * np.where(np.isnan(ttft), np.nanmean(ttft), ttft))

    def chosen(self, kept: Bools) -> TableTrust:
        """The weights of least loss of the kept groups [G]."""
        return least(lambda weights: float(np.nanmean(self.predicted(weights)[1][kept])))

    def left_out(self) -> tuple[Floats, Counter[TableTrust]]:
        """Times [2, D] of each group by the weights that the others choose; how often which were."""
        times, picked = np.zeros_like(self.times), Counter[TableTrust]()
        for index in range(len(self.names)):
            weights = self.chosen(np.arange(len(self.names)) != index)
            picked[weights] += 1
            times[:, self.group == index] = self.predicted(weights)[0][:, self.group == index]
        return times, picked

    def constants(self) -> Floats:
        """[2, D] the median of the same engine and mode in other groups; of all where there are none."""
        kind = np.array([f"{row['backend']} {row['mode']}" for row in self.rows])
        times = np.zeros_like(self.times)
        for row in range(len(self.rows)):
            others = self.group != self.group[row]
            alike = others & (kind == kind[row])
            times[:, row] = np.median(self.times[:, alike if alike.any() else others], axis=1)
        return times

    def line(self, title: str, times: Floats) -> str:
        """Errors of these times, and the median over groups of the signed error."""
        tpot, ttft = (self._pairs(which, times) for which in (1, 0))
        off = statistics.median(
            statistics.median(told / known - 1.0 for told, known in group)
            for group in tpot.values()
            if len(group) >= LIKELY
        )
        return f"{title:28} TPOT {errors(tpot):>11} ({100 * off:+5.1f})   TTFT {errors(ttft):>11}"

    def _pairs(self, which: int, times: Floats) -> Pairs:
        pairs: Pairs = {}
        for row in np.flatnonzero(self.counted[which]):
            pair = (float(times[which, row]), float(self.times[which, row]))
            pairs.setdefault(self.names[self.group[row]], []).append(pair)
        return pairs


def least(loss: Callable[[TableTrust], float]) -> TableTrust:
    """Weights by coordinate descent from none."""

    def stiff(weights: TableTrust) -> float:
        return loss(weights) + STIFF * float(sum(astuple(weights)))

    best = NONE
    for _ in range(SWEEPS):
        for kind in fields(TableTrust):
            others = (replace(best, **{kind.name: weight}) for weight in WEIGHTS)
            best = min((best, *others), key=stiff)
    return best


def captured(folder: Path, rows: Sequence[Mapping[str, str]], times: Floats) -> str:
    """What the decisions of score.py capture on measured.csv; no figure where the data have no scorer."""
    if not (folder / "score.py").exists():
        return "no scorer"
    spec = importlib.util.spec_from_file_location("score", folder / "score.py")
    assert spec is not None
    assert spec.loader is not None
    score = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(score)
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        for row, (ttft, tpot) in zip(rows, times.T, strict=True):
            file.write(json.dumps({"id": row["id"], "prediction": {"ttft_s": ttft, "tpot_s": tpot}}) + "\n")
        file.flush()
        table = score.read(str(folder / "measured.csv"), file.name)
    return ", ".join(f"{name} {share:.2f}" for name, (share, _, _) in score.decisions(table).items())


def main() -> int:
    """Print the table."""
    folder = Path(sys.argv[1])
    bench = Benchmark.read(folder, sys.argv[2])
    print(f"{len(bench.rows)} rows, {len(bench.names)} groups; percent, mean / median (median over groups, signed)")
    print(f"  {bench.line('a constant', bench.constants())}")
    show(
        bench,
        folder,
        "before any fit",
        {f"{kind.name} at .5": replace(NONE, **{kind.name: 0.5}) for kind in fields(TableTrust)},
    )
    show(bench.fitted(), folder, "fits to other groups", {"weights that are shipped": SHIPPED})
    return 0


def show(bench: Benchmark, folder: Path, title: str, more: Mapping[str, TableTrust]) -> None:
    """The lines of these parameters, with `more` weights."""
    print(f"{title}:")
    alone = bench.predicted(NONE)[0]
    times, picked = bench.left_out()
    weights = {**more, "all at .5": HALF, "all at 1": TableTrust()}
    ways = {
        "no tables": alone,
        f"no tables, {LONGER - 1.0:.0%} longer": LONGER * alone,
        **{name: bench.predicted(given)[0] for name, given in weights.items()},
        "weights of other groups": times,
    }
    for name, told in ways.items():
        print(f"  {bench.line(name, told)}   captured: {captured(folder, bench.rows, told)}", flush=True)
    for chosen, count in picked.most_common(2):
        print(f"  chosen for {count} groups: {chosen}")


if __name__ == "__main__":
    sys.exit(main())

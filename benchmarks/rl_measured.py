"""Asynchronous steps predicted from one measured colocated step, beside guesses that know no phases.

Usage: rl_measured.py MEASURED.csv [--fit]. Rows with the same setup (`group` without the ablation) pair up; only rows
whose colocated step has phase times take part. `left out` refits the constants without the row's setup. The most common
speed-up (majority) is that of the other setups' rows. `--fit` prints the constants that all rows give. Exits 1 where
the median error is above 12 %.
"""

import csv
import math
import re
import statistics
import sys
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np
from inputs import exit_code, first_path

from planner.arrays import Floats
from planner.rl.measured_step import CALIBRATED, PhaseTimes, PoolSplit, Response, is_worth, predict_step_s

TARGET = 0.12
MINIBATCHES = 16  # of 32 prompts, in steps of 512 prompts: what `require_batches` groups into calls of the trainer
PRIOR_WEIGHT = 0.02  # of a doubled or halved constant, in squared errors of the logarithm


@dataclass(frozen=True, slots=True)
class Case:
    """An asynchronous row, and the colocated one of the same setup."""

    name: str
    setup: str
    colocated: PhaseTimes
    split: PoolSplit
    parameters: float
    step_s: float
    suspect: bool

    def predicted_s(self, response: Response) -> float:
        return predict_step_s(self.colocated, self.split, self.parameters, response)


def read(path: Path) -> list[Case]:
    """Cases of a table of measured steps."""
    rows = [row for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines()) if row["framework"] == "verl"]
    bases = {_setup(row): row for row in rows if row["placement"] == "colocated" and _phased(row)}
    apart = [row for row in rows if row["placement"] == "disaggregated" and row["step_time_s"]]
    return [_case(row, bases[_setup(row)]) for row in apart if _setup(row) in bases]


def _setup(row: dict[str, str]) -> str:
    return re.sub(r"-(stale|reqb)$", "", row["group"])


def _phased(row: dict[str, str]) -> bool:
    return all(row[column] for column in ("step_time_s", "gen_time_s", "train_time_s"))


def _case(row: dict[str, str], base: dict[str, str]) -> Case:
    grouped = re.search(r"require_batches=(\d+)", row["notes"])
    one_step = row["sync_mode"] == "one_step_async"
    split = PoolSplit(
        int(row["gpus_gen"]),
        int(row["gpus_train"]),
        "one_step" if one_step else "fully",
        float(row["staleness"] or 0),
        1.0 if one_step else MINIBATCHES / (int(grouped.group(1)) if grouped else 4),
    )
    times = (float(base[column] or 0) for column in ("step_time_s", "gen_time_s", "train_time_s", "logprob_s"))
    suspect = "suspect" in base["notes"]
    colocated = PhaseTimes(int(base["gpus_total"]), *times)
    return Case(
        row["id"], _setup(row), colocated, split, 1e9 * float(row["params_b"]), float(row["step_time_s"]), suspect
    )


def fit(cases: Sequence[Case], start: Response) -> Response:
    """The constants that bring all predictions closest, in squares of logarithms, drawn to `start` by a weak prior."""
    from scipy.optimize import minimize

    centre = np.log(np.array(astuple(start)))
    used = [case for case in cases if not case.suspect] or list(cases)

    def loss(logs: "Floats") -> float:
        response = Response(*(float(value) for value in np.exp(logs)))
        if response.training_unshortened > 1 or response.generation_unshortened > 1:
            return 1e3
        errors = [math.log(case.predicted_s(response) / case.step_s) for case in used]
        prior = PRIOR_WEIGHT * float(((logs - centre) ** 2).sum()) / math.log(2) ** 2
        return sum(error**2 for error in errors) + prior

    optimum = minimize(loss, centre, method="Nelder-Mead", options={"maxiter": 1200, "xatol": 1e-3, "fatol": 1e-6})
    return Response(*(float(value) for value in np.exp(optimum.x)))


def _majority_ratio(cases: Sequence[Case], case: Case) -> float:
    """Step over colocated step, the median of the other setups' rows."""
    others = [other for other in cases if other.setup != case.setup] or list(cases)
    return statistics.median(other.step_s / other.colocated.step_s for other in others)


def _gains(case: Case) -> bool:
    """Whether the asynchronous row is the faster one."""
    return case.step_s < case.colocated.step_s


def _called(case: Case, miss: float, error: float) -> bool:
    """Whether a prediction that misses by so much names the faster side, a gain within `error` being none."""
    return is_worth(case.colocated.step_s, case.step_s * (1.0 + miss), error) == _gains(case)


def _errors_of_others(cases: Sequence[Case], misses: Sequence[float]) -> list[float]:
    """For each case, the median error of the other set-ups' predictions."""
    return [
        statistics.median(abs(miss) for other, miss in zip(cases, misses, strict=True) if other.setup != case.setup)
        for case in cases
    ]


def main(path: Path, *, print_fit: bool) -> int:
    cases = read(path)
    neutral = Response(0.5, 0.5, 0.7, 0.1, 0.3, 3.8e9)
    if print_fit:
        print(fit(cases, neutral))
    left_out = {
        setup: fit([c for c in cases if c.setup != setup], neutral) for setup in sorted({c.setup for c in cases})
    }
    print("row    setup                  split  staleness  measured  ours     error  left out  majority  no gain")
    errors: dict[str, list[float]] = {"ours": [], "left out": [], "majority": [], "no gain": []}
    signed: dict[str, list[float]] = {name: [] for name in errors}
    for case in cases:
        guesses = {
            "ours": case.predicted_s(CALIBRATED),
            "left out": case.predicted_s(left_out[case.setup]),
            "majority": case.colocated.step_s * _majority_ratio(cases, case),
            "no gain": case.colocated.step_s,
        }
        misses = {name: guess / case.step_s - 1 for name, guess in guesses.items()}
        for name, error in misses.items():
            errors[name].append(abs(error))
            signed[name].append(error)
        split = f"{case.split.generation_gpus}:{case.split.training_gpus}"
        print(
            f"{case.name}  {case.setup:<21} {split:>6}  {case.split.staleness:>9}  {case.step_s:>6.1f} s  "
            f"{guesses['ours']:>5.1f} s  {misses['ours']:+6.1%}  "
            f"{misses['left out']:+8.1%}  {misses['majority']:+8.1%}  "
            f"{misses['no gain']:+7.1%}{'  colocated row suspect' if case.suspect else ''}"
        )
    for name, values in errors.items():
        print(f"median error, {name}: {statistics.median(values):.1%}")
    logs = {name: statistics.mean(abs(math.log(1.0 + miss)) for miss in values) for name, values in signed.items()}
    share = logs["left out"] / logs["majority"]
    print(f"mean log-ratio error: left out {logs['left out']:.3f}, majority {logs['majority']:.3f} ({share:.2f} of it)")
    beyond = {name: _errors_of_others(cases, values) for name, values in signed.items()}
    for what, margins in (
        ("", dict.fromkeys(signed, [0.0] * len(cases))),
        (" beyond the error of other setups", beyond),
    ):
        called = {name: sum(map(_called, cases, signed[name], margins[name])) for name in logs}
        rows = ", ".join(f"{name} {number}" for name, number in called.items())
        print(f"faster side called right{what}, of {len(cases)}: {rows}; always asynchronous {sum(map(_gains, cases))}")
    return int(statistics.median(errors["ours"]) > TARGET)


if __name__ == "__main__":
    sys.exit(exit_code(main(first_path(), print_fit="--fit" in sys.argv)))

"""Fits what engines add before the first token, on a table of measured deployments, and prints how well it carries.

Three numbers an engine (planner/costs/parameters.py): request_s, first_token_steps, together; everything else stays as
calibrated. The fit is robust (soft L1 of log ratios, scale 0.3) on rows whose time to first token is no queueing time.
Beside the error on the rows fitted stand the error on model families left out, and that of one constant an engine.

    python benchmarks/first_token.py ../shared/data/serving/measured.csv
"""

import csv
import dataclasses
import sys

import numpy as np
from scipy.optimize import least_squares

from planner.costs.parameters import EngineOverheads, load_calibration
from planner.costs.shapes import FloatArray
from planner.estimate.case import Case
from planner.estimate.evaluate import loops
from planner.estimate.measured import cases_of_table
from planner.kinds.serve.closed_loop import Dynamics, settle

START = (0.03, 2.0, 0.05)  # request_s, first_token_steps, together
LOWER, UPPER = (0.0, 0.0, 0.0), (0.5, 30.0, 1.0)
FEWEST = 30  # rows of an engine; a fit on fewer uses those of all engines

Row = dict[str, str]


def read(path: str) -> tuple[list[Row], list[Case]]:
    """The rows with a usable time to first token, and their cases."""
    with open(path, newline="", encoding="utf-8") as file:
        rows = {row["id"]: row for row in csv.DictReader(file) if row["saturated"] != "1"}
    cases = [case for case in cases_of_table(path) if isinstance(case, Case) and case.id in rows]
    return [rows[case.id] for case in cases], cases


def with_overheads(loop: Dynamics, fitted: EngineOverheads, theta: FloatArray) -> Dynamics:
    """The loop with other overheads than the calibrated ones; pools that only prefill wait for no decode step."""
    request_s, steps, together = theta
    return dataclasses.replace(
        loop,
        service_s=loop.service_s - fitted.request_s + request_s,
        first_steps=np.where(loop.stretch_s > 0, steps, 0.0),
        together=np.full_like(loop.together, together),
    )


def take(loop: Dynamics, chosen: FloatArray) -> Dynamics:
    """The chosen points of a loop."""
    return Dynamics(**{field.name: getattr(loop, field.name)[chosen] for field in dataclasses.fields(Dynamics)})


def fit(loop: Dynamics, now: EngineOverheads, measured_s: FloatArray) -> FloatArray:
    """The three numbers that bring the loop's times to first token nearest to the measured ones."""

    def residuals(theta: FloatArray) -> FloatArray:
        predicted = settle(with_overheads(loop, now, theta)).ttft_s
        return np.asarray(np.log(np.maximum(predicted, 1e-4) / measured_s))

    steps = np.full(len(START), 1e-3)
    found = least_squares(
        residuals, START, loss="soft_l1", f_scale=0.3, bounds=(LOWER, UPPER), diff_step=steps, x_scale=(0.05, 2.0, 0.1)
    )
    return np.asarray(found.x, dtype=np.float64)


def error(predicted_s: FloatArray, measured_s: FloatArray) -> str:
    """Mean and median absolute error in percent."""
    relative = np.abs(predicted_s / measured_s - 1.0) * 100.0
    return f"{relative.mean():5.1f} / {np.median(relative):4.1f}"


def main() -> int:
    """Print the fit of every engine and its errors."""
    rows, cases = read(sys.argv[1])
    measured = np.array([float(row["ttft_ms"]) / 1e3 for row in rows])
    family, engine = np.array([row["family"] for row in rows]), np.array([case.engine for case in cases])
    loop = loops(cases, None)
    overheads = {name: load_calibration().engine(name) for name in np.unique(engine)}
    left_out, within, constant = np.zeros(len(rows)), np.zeros(len(rows)), np.zeros(len(rows))
    for name, now in overheads.items():
        mine = engine == name
        theta = fit(take(loop, mine), now, measured[mine])
        within[mine] = settle(with_overheads(take(loop, mine), now, theta)).ttft_s
        constant[mine] = np.median(measured[mine])
        print(f"{name:8} request_s {theta[0]:.3f}  first_token_steps {theta[1]:.2f}  together {theta[2]:.3f}")
        for one in np.unique(family[mine]):
            held, rest = mine & (family == one), mine & (family != one)
            rest = rest if rest.sum() >= FEWEST else family != one
            other = fit(take(loop, rest), now, measured[rest])
            left_out[held] = settle(with_overheads(take(loop, held), now, other)).ttft_s
    print("time to first token, error in percent, mean / median")
    print(f"  fitted rows                {error(within, measured)}")
    print(f"  model family left out      {error(left_out, measured)}")
    print(f"  one constant an engine     {error(constant, measured)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""How near the shipped training costs are to the newer runs: the sealed groups, logged, or the open ones.

    python benchmarks/sealed_training.py --open      # the open groups, a line each, as often as wanted
    python benchmarks/sealed_training.py             # the sealed ones together: appends date, commit and figures

Rows are predicted by `planner estimate --measured` as a user's table is. Errors are absolute errors of the step in
percent, each group of benchmarks/sealed_groups.py weighing the same; beside them stands a constant, 6 operations a
parameter and token at the median rate of the same GPU (or of all) in measured.csv. Intervals are those of 80 %, the
share that they hold counted by groups of equal weight; `over` are rows that are said to take over 1.03 of their device.
"""

import argparse
import csv
import datetime
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean, median

from inputs import ABSENT, absent
from sealed_groups import DATA, TRAINING, Status, frozen, group_of, rows_of, split
from sealed_serving import commit, weighted
from training import plain_flop

from planner.errors import PlannerError
from planner.estimate.training import training_lines
from planner.estimate.training_rows import completed, config_of_row

ROOT = Path(__file__).parent.parent
LOG = ROOT / "docs" / "sealed-training-scores.md"
MORE = "training/measured_more.csv"
OVER = 1.03  # of its device, that a run which happened may be said to take
Row = dict[str, str]


class Scored:
    """Rows with what is predicted of them, by group."""

    def __init__(self, rows: Sequence[Row], constant_s: Callable[[Row], float | None]) -> None:
        self.groups: dict[str, list[tuple[Row, Mapping[str, object]]]] = defaultdict(list)
        self.rows, self.constant_s = rows, constant_s
        for row, line in zip(rows, _lines(rows), strict=True):
            if "prediction" in line:
                self.groups[group_of(row, TRAINING)].append((row, line["prediction"]))

    def errors(self, of: Callable[[Row, Mapping[str, object]], float | None]) -> str:
        """Mean and median of the absolute errors in percent, groups weighing the same."""
        pairs = [
            [abs(made / float(row["step_time_s"]) - 1.0) for row, told in group if (made := of(row, told))]
            for group in self.groups.values()
        ]
        return "{:.1f} / {:.1f}".format(*(100.0 * figure for figure in weighted([group for group in pairs if group])))

    @property
    def figures(self) -> str:
        """Groups, rows, errors with those of the constant, what intervals hold, and rows over their device."""
        held = mean(mean(_inside(row, told) for row, told in group) for group in self.groups.values())
        over = sum(_share(told) > OVER for group in self.groups.values() for _, told in group)
        rows = sum(len(group) for group in self.groups.values())
        own = self.errors(lambda _, told: _step_s(told))
        constant = self.errors(lambda row, _: self.constant_s(row))
        return f"{len(self.groups)} | {rows} of {len(self.rows)} | {own} ({constant}) | {100.0 * held:.0f} | {over}"


def _lines(rows: Sequence[Row]) -> list[dict[str, dict[str, object]]]:
    with tempfile.NamedTemporaryFile("w", suffix=".csv", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
        file.flush()
        return [json.loads(line) for line in training_lines(file.name)]


def _step_s(told: Mapping[str, object]) -> float:
    return float(str(told["step_time_s"]))


def _share(told: Mapping[str, object]) -> float:
    return float(str(told["memory_share"]))


def _inside(row: Row, told: Mapping[str, object]) -> bool:
    interval = told["step_time_s_interval"]
    assert isinstance(interval, list)
    return bool(interval[0] <= float(row["step_time_s"]) <= interval[1])


def constant() -> Callable[[Row], float | None]:
    """Seconds of a step by 6 operations a parameter and token, at the median rate of measured.csv; None: no model."""
    rates: dict[str, list[float]] = defaultdict(list)
    for row in rows_of(DATA / "training" / "measured.csv"):
        flop = _flop(row)
        if flop:
            rates[row["gpu"]].append(flop / float(row["step_time_s"]))
    common = median(rate for of_gpu in rates.values() for rate in of_gpu)

    def seconds(row: Row) -> float | None:
        flop = _flop(row)
        return flop and flop / (median(rates[row["gpu"]]) if row["gpu"] in rates else common)

    return seconds


def _flop(row: Row) -> float | None:
    try:
        return plain_flop(completed(config_of_row(row)))
    except PlannerError:
        return None


def chosen(wanted: Status) -> list[Row]:
    """The rows of the groups that are open, or sealed."""
    status = {group: state for table, group, state in frozen() if table == MORE}
    return [row for row in rows_of(DATA / MORE) if status[group_of(row, TRAINING)] == wanted]


def open_lines() -> Iterator[str]:
    """A line for every open group, and one for all."""
    seconds, rows = constant(), chosen("open")
    for group in dict.fromkeys(group_of(row, TRAINING) for row in rows):
        scored = Scored([row for row in rows if group_of(row, TRAINING) == group], seconds)
        signed = [_step_s(told) / float(row["step_time_s"]) - 1.0 for row, told in scored.groups[group]]
        yield f"{group:100} {scored.figures}   {100.0 * median(signed):+.1f}"
    yield f"{'all open groups':100} {Scored(rows, seconds).figures}"


def main() -> int:
    """Print the figures, and log those of sealed groups; 2 where these cannot be: the tables are absent."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--open", action="store_true", help="the open groups, which are not logged")
    given = parser.parse_args()
    if absent(DATA):
        return 0 if given.open else ABSENT
    if split() != frozen():
        print("the tables have other groups than were split: get the tables of the split", file=sys.stderr)
        return 2
    if given.open:
        for line in open_lines():
            print(line, flush=True)
        return 0
    line = f"| {datetime.date.today().isoformat()} | {commit()} | {Scored(chosen('sealed'), constant()).figures} |"
    with LOG.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")
    print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""How much of the accuracy of serving estimates hangs on what a table states: one table, four ways, shipped costs.

    python benchmarks/serving_settings.py ../shared/data/serving/measured.csv
    ... --columns       # instead: the defaults, and beside them one column at a time as the recipes state it

settings stated     columns filled from the public recipes that ran (benchmarks/recipe_columns.py)
  and inferred      and from what the measured times themselves tell of runs without a recipe
defaults only       the load alone: every setting of the engine is its default for the release
no version          the same, and the release is the newest

Errors are absolute percentage errors, mean / median, of all rows and with groups of family, system, engine and weights
of at least ten rows weighing the same; the time to first token counts where it is not queueing. The shipped costs were
fitted to this table with the settings stated and inferred: these are no errors of rows unseen. Beside them stands the
best constant of an engine and mode.
"""

import csv
import statistics
import sys

from inputs import first_path
from recipe_columns import Columns, filled, load_alone
from sealed_groups import SERVING, group_of
from sealed_serving import Pairs, errors

from planner.estimate.case import Case
from planner.estimate.evaluate import Estimate, evaluate
from planner.estimate.measured import case_of_row
from planner.estimate.settings import COLUMNS

Times = tuple[float, float]


def main() -> int:
    """Print the table."""
    with open(first_path(), newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    print(f"{len(rows)} rows; errors in percent, mean / median: rows alike, groups alike")
    for title, filled_rows in (by_column(rows) if "--columns" in sys.argv else ways(rows)).items():
        show(title, rows, predictions(filled_rows))
    show("one constant an engine and mode", rows, constants(rows))
    return 0


def ways(rows: list[Columns]) -> dict[str, list[Columns]]:
    """The table with more and less stated."""
    loads = [load_alone(row) for row in rows]
    return {
        "settings stated": [filled(row) for row in rows],
        "  and inferred": [filled(row, inferred=True) for row in rows],
        "defaults only": loads,
        "no version": [{**row, "backend_version": ""} for row in loads],
    }


def by_column(rows: list[Columns]) -> dict[str, list[Columns]]:
    """The defaults, and with each column of settings that recipes fill, in how many rows."""
    loads, stated = [load_alone(row) for row in rows], [filled(row) for row in rows]
    told = {"defaults only": loads}
    for name in COLUMNS:
        changed = sum(row.get(name, "") != load.get(name, "") for row, load in zip(stated, loads, strict=True))
        if changed:
            told[f"  and {name} ({changed})"] = [
                {**load, name: row.get(name, "")} for row, load in zip(stated, loads, strict=True)
            ]
    return told


def predictions(rows: list[Columns]) -> list[Times | None]:
    """Times to first token and per output token in seconds of every row; None where there is no estimate."""
    cases: list[Case] = [case_of_row(row) for row in rows]
    return [(a.ttft_s, a.tpot_s) if isinstance(a, Estimate) else None for a in evaluate(cases, None)]


def constants(rows: list[Columns]) -> list[Times | None]:
    """The medians of all rows of the same engine and mode."""
    kinds = {(row["backend"], row["mode"]) for row in rows}

    def median(kind: tuple[str, str], name: str) -> float:
        return statistics.median(float(row[name]) / 1e3 for row in rows if (row["backend"], row["mode"]) == kind)

    known = {kind: (median(kind, "ttft_ms"), median(kind, "tpot_ms")) for kind in kinds}
    return [known[row["backend"], row["mode"]] for row in rows]


def show(title: str, rows: list[Columns], predicted: list[Times | None]) -> None:
    """One line of errors."""
    cells = []
    for index, name in ((1, "tpot_ms"), (0, "ttft_ms")):
        alike: Pairs = {"all": []}
        groups: Pairs = {}
        for row, times in zip(rows, predicted, strict=True):
            if times is not None and (name == "tpot_ms" or row["saturated"] != "1"):
                pair = (times[index], float(row[name]) / 1e3)
                alike["all"].append(pair)
                groups.setdefault(group_of(row, SERVING), []).append(pair)
        cells.append(f"{name[:4].upper()} {errors(alike):>13}, {errors(groups):>13}")
    print(f"  {title:32} {'   '.join(cells)}   predicted {sum(times is not None for times in predicted)}")


if __name__ == "__main__":
    sys.exit(main())

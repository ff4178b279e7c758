"""How near the shipped serving costs are to the newer measurements: the sealed groups, logged, or the open ones.

    python benchmarks/sealed_serving.py --open      # the open groups, as often as wanted, and throughput by GPU type
    python benchmarks/serving.py ../shared/data/serving --folds 4 --left-out left.jsonl
    python benchmarks/sealed_serving.py left.jsonl  # the sealed ones: appends date, commit and figures to the log

Rows are predicted by `planner estimate` as a user's table is, by columns and defaults of engines: once with the
settings of the public recipes that ran stated (benchmarks/recipe_columns.py), once with the load alone. Errors are
absolute percentage errors, each group weighing the same; the time to first token counts where it is not queueing
(`saturated` is not 1). Beside them stands a constant: the median of the same engine and mode in measured.csv, and for
tables of throughput that of the open groups. The groups are those of benchmarks/sealed_groups.py. The last line logged
is how much larger mean errors of sealed groups are than those of open groups left out of the fit, in points, with its
90 % interval by bootstrap over the groups of both.

Throughput by GPU type, of the open groups: the median signed error.
"""

import argparse
import csv
import datetime
import json
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
from inputs import ABSENT, absent
from recipe_columns import filled, load_alone
from sealed_groups import DATA, SERVING, TABLES, Status, frozen, group_of, rows_of, split

ROOT = Path(__file__).parent.parent
LOG = ROOT / "docs" / "sealed-scores.md"
LIKELY = 10  # rows of a group whose errors count: fewer tell of single runs
RESAMPLES = 10_000  # of groups, for the interval of a difference
MEASURED = ("serving/measured.csv", "serving/measured_more.csv")
Row = dict[str, str]
Answer = dict[str, float]
Pairs = dict[str, list[tuple[float, float]]]


def predictions(rows: list[Row]) -> dict[str, Answer]:
    """What `planner estimate` says of the rows, by id; rows that it refuses are left out."""
    from planner.estimate import estimate_measured

    with tempfile.NamedTemporaryFile("w", suffix=".csv", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)), restval="")
        writer.writeheader()
        writer.writerows(rows)
        file.flush()
        lines = [json.loads(line) for line in estimate_measured(file.name)]
    return {line["id"]: line["prediction"] for line in lines if "prediction" in line}


def errors_by_group(pairs: Pairs) -> list[list[float]]:
    """Absolute relative errors of every group of at least LIKELY rows."""
    return [
        [abs(predicted / measured - 1.0) for predicted, measured in group]
        for group in pairs.values()
        if len(group) >= LIKELY
    ]


def errors(pairs: Pairs) -> str:
    """Mean and median of the absolute error in percent, each group of at least LIKELY rows weighing the same."""
    groups = errors_by_group(pairs)
    return "{:.1f} / {:.1f}".format(*(100.0 * figure for figure in weighted(groups))) if groups else "-"


def weighted(groups: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Mean and median of all values, each group weighing the same."""
    values = sorted((value, 1.0 / len(group)) for group in groups for value in group)
    whole, passed, median = sum(weight for _, weight in values), 0.0, 0.0
    for median, weight in values:  # noqa: B007 - the value at which half of the weight is passed
        passed += weight
        if passed >= whole / 2.0:
            break
    return sum(value * weight for value, weight in values) / whole, median


def bias(pairs: Pairs) -> str:
    """The median over groups of the median signed error in percent."""
    medians = [
        statistics.median(predicted / measured - 1.0 for predicted, measured in group) for group in pairs.values()
    ]
    return f"{100.0 * statistics.median(medians):+.1f}" if medians else "-"


def pairs_of(rows: Iterable[Row], value: Callable[[Row], float | None], measured: Callable[[Row], float]) -> Pairs:
    """Predicted and measured values by group; rows without a prediction are left out."""
    pairs: Pairs = defaultdict(list)
    for row in rows:
        predicted = value(row)
        if predicted is not None:
            pairs[group_of(row, SERVING)].append((predicted, measured(row)))
    return pairs


def figures(name: str, way: str, rows: list[Row], constants: list[Row]) -> str:
    """The cells of a table's line in the log: rows, rows predicted, errors, and those of the constant."""
    ways = {"stated": filled, "defaults": load_alone}
    answers = predictions([ways[way](row) for row in rows])
    calm = [row for row in rows if row.get("saturated") != "1"]

    def constant(row: Row, column: str) -> float:
        alike = [r for r in constants if r["backend"] == row["backend"] and r["mode"] == row["mode"] and r[column]]
        return statistics.median(float(r[column]) for r in alike or [r for r in constants if r[column]])

    def predicted(field: str) -> Callable[[Row], float | None]:
        return lambda row: answers[row["id"]][field] if row["id"] in answers else None

    def score(chosen: list[Row], field: str, column: str, scale: float) -> str:
        own = pairs_of(chosen, predicted(field), lambda row: float(row[column]) * scale)
        trivial = pairs_of(chosen, lambda row: constant(row, column), lambda row: float(row[column]))
        signed = f", bias {bias(own)}" if column == "output_tok_s_gpu" else ""
        return f"{errors(own)}{signed} ({errors(trivial)})"

    if name.endswith("throughput.csv"):
        cells = ["-", "-", score(rows, "output_tokens_per_s_per_gpu", "output_tok_s_gpu", 1.0)]
    else:
        cells = [score(rows, "tpot_s", "tpot_ms", 1e-3), score(calm, "ttft_s", "ttft_ms", 1e-3), "-"]
    groups = {group_of(row, SERVING) for row in rows}
    return " | ".join([name, way, str(len(groups)), f"{len(answers)} of {len(rows)}", *cells])


def larger(sealed: Pairs, left_out: Pairs) -> str:
    """By how many points the mean error of sealed groups is larger, and the 90 % interval over resampled groups."""
    random = np.random.default_rng(0)
    means = [
        np.array([100.0 * statistics.fmean(group) for group in errors_by_group(pairs)]) for pairs in (sealed, left_out)
    ]
    drawn = [each[random.integers(len(each), size=(RESAMPLES, len(each)))].mean(axis=1) for each in means]
    low, high = np.quantile(drawn[0] - drawn[1], (0.05, 0.95))
    return f"{means[0].mean() - means[1].mean():+.1f} ({low:+.1f} to {high:+.1f})"


def comparison(left_out: Sequence[str]) -> str:
    """The cells of the log's line on sealed groups against open ones left out, settings stated."""
    status = {(table, group): state for table, group, state in frozen()}
    rows = [(name, row) for name in MEASURED for row in rows_of(DATA / name)]
    sealed = [row for name, row in rows if status.get((name, group_of(row, SERVING))) == "sealed"]
    known = {row["id"]: row for name, row in rows if status.get((name, group_of(row, SERVING)), "open") == "open"}
    lines = [json.loads(line) for line in left_out]
    both = (
        (sealed, predictions([filled(row) for row in sealed])),
        ([known[line["id"]] for line in lines], {line["id"]: line["prediction"] for line in lines}),
    )

    def pairs(field: str, column: str, chosen: Callable[[Row], bool]) -> list[Pairs]:
        def predicted(told: dict[str, Answer]) -> Callable[[Row], float | None]:
            return lambda row: told[row["id"]][field] if row["id"] in told else None

        return [
            pairs_of(filter(chosen, each), predicted(told), lambda row: float(row[column]) / 1e3) for each, told in both
        ]

    tpot = pairs("tpot_s", "tpot_ms", lambda row: True)
    ttft = pairs("ttft_s", "ttft_ms", lambda row: row.get("saturated") != "1")
    groups = " and ".join(str(len(errors_by_group(each))) for each in tpot)
    counted = " and ".join(str(len(each)) for each, _ in both)
    return f"sealed less left out | stated | {groups} | {counted} | {larger(*tpot)} | {larger(*ttft)} | -"


def scores(wanted: Status) -> list[str]:
    """One line of figures for each serving table, of its groups that are open or sealed."""
    status = {(table, group): state for table, group, state in frozen()}
    lines = []
    for name, columns in TABLES.items():
        if columns != SERVING:
            continue
        rows = rows_of(DATA / name)
        throughput = name.endswith("throughput.csv")
        chosen = [row for row in rows if status[name, group_of(row, columns)] == wanted]
        shown = [row for row in rows if status[name, group_of(row, columns)] == "open"]
        known = shown if throughput else rows_of(DATA / "serving" / "measured.csv")
        lines += [figures(name, way, chosen, known) for way in ("stated", "defaults")]
    return lines


def throughput_by_type() -> list[str]:
    """Median signed error of output tokens a second by GPU type, of open groups as their recipes state them."""
    name = "serving/throughput.csv"
    status = {(table, group): state for table, group, state in frozen()}
    rows = [row for row in rows_of(DATA / name) if status[name, group_of(row, SERVING)] == "open"]
    return [f"{system:14} {error}" for system, error in sorted(_signed(rows).items())]


def _signed(rows: list[Row]) -> dict[str, str]:
    """Median of predicted over measured output less 1, by GPU type, and of how many rows."""
    answers, errors_of = predictions([filled(row) for row in rows]), defaultdict[str, list[float]](list)
    for row in rows:
        if row["id"] in answers:
            predicted = answers[row["id"]]["output_tokens_per_s_per_gpu"]
            errors_of[row["system"]].append(predicted / float(row["output_tok_s_gpu"]) - 1.0)
    return {name: f"{100.0 * statistics.median(each):+.0f} % ({len(each)})" for name, each in errors_of.items()}


def commit() -> str:
    """The commit that is checked out; raises SystemExit where files differ from it."""

    def git(*words: str) -> str:
        return subprocess.run(("git", *words), cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()

    if git("status", "--porcelain", "--untracked-files=no"):
        raise SystemExit("commit your changes first: a score belongs to a commit")
    return git("rev-parse", "--short=10", "HEAD")


def main() -> int:
    """Print the figures, and log those of sealed groups; 2 where these cannot be: the tables are absent."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    wanted = parser.add_mutually_exclusive_group(required=True)
    wanted.add_argument("--open", action="store_true", help="the open groups, which are not logged")
    wanted.add_argument("left_out", type=Path, nargs="?", help="what `serving.py --folds 4 --left-out FILE` wrote")
    given = parser.parse_args()
    if absent(DATA):
        return 0 if given.open else ABSENT
    if split() != frozen():
        print(
            "the tables have other groups than were split: renew nothing, get the tables of the split", file=sys.stderr
        )
        return 2
    if given.open:
        print("\n".join([*scores("open"), *throughput_by_type()]))
        return 0
    left_out = given.left_out.read_text(encoding="utf-8").splitlines()
    head = f"| {datetime.date.today().isoformat()} | {commit()} |"
    lines = [f"{head} {line} |" for line in (*scores("sealed"), comparison(left_out))]
    with LOG.open("a", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Speed and accuracy of `planner estimate` on a table of measured deployments.

Speed: whole processes on 20,000 rows made from the table, user CPU with start-up included; and on the table itself with
those beside it, in one file, with start-up (what the first row alone takes) and without. Accuracy: absolute percentage
errors of the time per output token (all rows) and of the time to first token (rows that are not saturated),
beside what one constant a group does: the group's own median, fitted to the very rows that it is judged on.
"""

import csv
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from inputs import ROOT, SHARED, required, shown
from processes import user_cpu_s

ROWS = 20_000
MEASURED = SHARED / "serving" / "measured.csv"
SAMPLE = ROOT / "examples" / "cases" / "deployments.csv"
BESIDE = ("measured_more.csv", "throughput.csv")
Row = dict[str, str]


def read(path: Path) -> tuple[list[str], list[Row]]:
    """Column names and rows of a table."""
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        return list(reader.fieldnames or ()), list(reader)


def many(names: list[str], rows: list[Row], count: int, path: Path) -> None:
    """A table of `count` rows: those given over and over, each time with its own id and another concurrency."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        for number in range(count):
            turn, index = divmod(number, len(rows))
            row = rows[index]
            clients = max(1, round(float(row["concurrency"]) * (1.0 + 0.1 * turn)))
            writer.writerow({**row, "id": f"{row['id']}-{turn}", "concurrency": str(clients)})


def joined(tables: list[Path], count: int | None, path: Path) -> int:
    """The rows of several tables in one, or their first `count`; returns how many."""
    rows = [row for table in tables for row in read(table)[1]][:count]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)), restval="")
        writer.writeheader()
        writer.writerows(rows)
    return len(rows)


def estimate_cpu_s(table: Path, output: Path, cache: Path) -> float:
    """User CPU seconds of one `planner estimate`; imported tables are kept in `cache`."""
    return user_cpu_s("estimate", "--measured", table, "--output", output, PLANNER_CACHE_DIR=str(cache))


def themselves(table: Path, folder: Path) -> None:
    """Print the speed on the shared tables themselves."""
    tables = [table, *(table.with_name(name) for name in BESIDE if table.with_name(name).exists())]
    path, output, cache = (folder / name for name in ("themselves.csv", "out.jsonl", "cache"))
    joined(tables, 1, path)
    start_s = min(estimate_cpu_s(path, output, cache) for _ in range(2))
    rows = joined(tables, None, path)
    seconds = min(estimate_cpu_s(path, output, cache) for _ in range(2))
    print(
        f"{len(tables)} tables themselves: {rows} rows in {seconds:.2f} s of user CPU, {rows / seconds:.0f} rows/s; "
        f"{rows / (seconds - start_s):.0f} rows/s without the {start_s:.2f} s that the first row takes"
    )


def errors_percent(pairs: Iterable[tuple[float, float]]) -> list[float]:
    """Absolute percentage error of every (predicted, measured) pair."""
    return [abs(predicted / measured - 1.0) * 100.0 for predicted, measured in pairs]


def summary(pairs: list[tuple[float, float]]) -> str:
    """Mean and median error of predictions, and of the pairs' own median measured value in their place."""
    if not pairs:
        return "-"
    constant = statistics.median(measured for _, measured in pairs)
    own, trivial = errors_percent(pairs), errors_percent((constant, measured) for _, measured in pairs)
    texts = (f"{statistics.fmean(errors):6.1f} /{statistics.median(errors):6.1f}" for errors in (own, trivial))
    return f"{len(pairs):5d} {'  constant '.join(texts)}"


def accuracy(rows: list[Row], answers: dict[str, dict[str, float]]) -> None:
    """Print mean/median errors of all rows, and by system, engine and mode."""
    predicted = [(row, answers[row["id"]]) for row in rows if row["id"] in answers]
    print(f"predicted {len(predicted)} of {len(rows)} rows; errors in percent, mean / median")
    groupings: dict[str, Callable[[Row], str]] = {
        "all": lambda row: "",
        "system": lambda row: row["system"],
        "engine": lambda row: row["backend"],
        "mode": lambda row: row["mode"],
    }
    for name, key in groupings.items():
        for value in sorted({key(row) for row, _ in predicted}):
            members = [(row, answer) for row, answer in predicted if key(row) == value]
            tpot = [(answer["tpot_s"] * 1e3, float(row["tpot_ms"])) for row, answer in members]
            calm = [(row, answer) for row, answer in members if row["saturated"] != "1"]
            ttft = [(answer["ttft_s"] * 1e3, float(row["ttft_ms"])) for row, answer in calm]
            print(f"  {name:7s}{value:10s} tpot {summary(tpot)}   ttft {summary(ttft)}")


def main() -> int:
    """Print speed and accuracy; speed alone, on deployments of an example, where the measured table is absent."""
    table = required(sys.argv[1]) if len(sys.argv) > 1 else MEASURED
    if not table.exists():
        print(f"needs {shown(table)}: speed alone, on the deployments of {shown(SAMPLE)}", file=sys.stderr)
        table = SAMPLE
    names, rows = read(table)
    with tempfile.TemporaryDirectory() as folder:
        large, output, cache = (Path(folder) / name for name in ("many.csv", "out.jsonl", "cache"))
        many(names, rows, ROWS, large)
        for state in ("cold cache", "warm cache"):
            seconds = estimate_cpu_s(large, output, cache)
            print(f"{state}: {ROWS} rows in {seconds:.2f} s of user CPU, {ROWS / seconds:.0f} rows/s")
        themselves(table, Path(folder))
        estimate_cpu_s(table, output, cache)
        lines = [json.loads(line) for line in output.read_text().splitlines()]
    if table != SAMPLE:
        accuracy(rows, {line["id"]: line["prediction"] for line in lines if "prediction" in line})
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Which groups of the newer measurements are open to a fit, and which stay sealed: the split, by a rule without choice.

A group is all rows of a table that share the values of some columns, joined by `|` as they stand in the file (empty
stays empty). It is sealed where the last bit of the SHA-256 of that text is 1, else open. Nothing may be chosen on rows
of sealed groups, and no error on them is printed but by `sealed_serving.py` and `sealed_training.py`, which log it.

benchmarks/data/sealed_groups.csv holds the split as it was made before any error on these rows was seen: names of
groups, no measurement. `python benchmarks/sealed_groups.py` writes it anew from the tables; a test holds both to the
rule.
"""

import csv
import hashlib
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from inputs import required

Status = Literal["open", "sealed"]
SERVING = ("family", "system", "backend", "weights")
TRAINING = ("source", "model", "gpu")
TABLES = {  # below ../shared/data: the columns that make a group
    "serving/measured_more.csv": SERVING,
    "serving/throughput.csv": SERVING,
    "training/measured_more.csv": TRAINING,
}
FROZEN = Path(__file__).parent / "data" / "sealed_groups.csv"
DATA = Path(__file__).parent.parent.parent / "shared" / "data"


def group_of(row: Mapping[str, str], columns: Iterable[str]) -> str:
    """The text that names the group of a row."""
    return "|".join(row[name] for name in columns)


def status_of(group: str) -> Status:
    """Open or sealed: the last bit of the SHA-256 of the name."""
    return "sealed" if hashlib.sha256(group.encode()).digest()[-1] & 1 else "open"


def rows_of(table: Path) -> list[dict[str, str]]:
    """The rows of a CSV file, by column."""
    with table.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def split(data: Path = DATA) -> list[tuple[str, str, Status]]:
    """Table, group and status of every group of the tables below `data`, sorted."""
    groups = {(name, group_of(row, columns)) for name, columns in TABLES.items() for row in rows_of(data / name)}
    return [(table, group, status_of(group)) for table, group in sorted(groups)]


def frozen() -> list[tuple[str, str, Status]]:
    """The split as it was made first."""
    return [(row["table"], row["group"], "sealed" if row["status"] == "sealed" else "open") for row in rows_of(FROZEN)]


def open_rows(folder: Path, tables: Iterable[str]) -> list[dict[str, str]]:
    """The rows of serving tables in a folder, but for those of sealed groups; a table that is not split is open."""
    status = {(table, group): state for table, group, state in frozen()}
    return [
        row
        for table in tables
        for row in rows_of(folder / table)
        if status.get((f"serving/{table}", group_of(row, SERVING)), "open") == "open"
    ]


def main() -> int:
    """Write the split; 2 where the tables are absent."""
    required(DATA)
    groups = split()
    with FROZEN.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("table", "group", "status"))
        writer.writerows(groups)
    for table in TABLES:
        sealed = [status == "sealed" for name, _, status in groups if name == table]
        print(f"{table}: {len(sealed)} groups, {sum(sealed)} of them sealed")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The range of every degree among the measured training runs, which plans outside of it name.

python benchmarks/training_ranges.py ../shared/data/training/measured.csv            compares with what is shipped
python benchmarks/training_ranges.py ../shared/data/training/measured.csv --write    writes it anew
"""

import argparse
import csv
import io
from collections import defaultdict
from pathlib import Path

SHIPPED = Path(__file__).parent.parent / "planner" / "costs" / "training" / "measured_ranges.csv"
COLUMNS = {"tp": "tp", "pp": "pp", "cp": "cp", "ep": "ep", "zero_stage": "zero", "micro_batch": "mbs"}
STAGES = {
    "none": 0, "distopt(ZeRO-1)": 1, "ZeRO-1": 1, "fsdp grad-op(ZeRO-2)": 2, "fsdp full(ZeRO-3)": 3,
    "fsdp2 full(ZeRO-3)": 3, "megatron-fsdp(shard=64)": 3, "megatron-fsdp(shard=8)": 3, "fsdp HSDP": 3,
}  # fmt: skip
"""ZeRO stages by the words of the table; rows with others tell none."""


def kind_of(row: dict[str, str]) -> str:
    """As `planner.costs.training.measured_ranges.kind_of` tells them."""
    if row["task"] == "lora":
        return "lora"
    return "experts" if "moe" in row["arch"] or "sparse" in row["arch"] else "dense"


def ranges(table: Path) -> str:
    """The file as text, a line for every kind of run and degree."""
    rows = list(csv.DictReader(table.read_text(encoding="utf-8").splitlines()))
    seen: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row in rows:
        for degree, column in COLUMNS.items():
            stated = STAGES.get(row[column]) if degree == "zero_stage" else row[column]
            if stated not in (None, ""):
                seen[kind_of(row), degree].append(int(float(stated)))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("kind", "degree", "least", "most", "runs"))
    for (kind, degree), values in sorted(seen.items()):
        writer.writerow((kind, degree, min(values), max(values), len(values)))
    return out.getvalue()


def main() -> int:
    """1 where what is shipped differs from what the table says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--write", action="store_true", help="write the shipped file anew")
    given = parser.parse_args()
    text = ranges(given.table)
    if given.write:
        SHIPPED.write_text(text, encoding="utf-8")
    print(text, end="")
    return int(SHIPPED.read_text(encoding="utf-8") != text)


if __name__ == "__main__":
    raise SystemExit(main())

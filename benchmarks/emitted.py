"""Random plans emitted for every target and read again, beside one regular expression a flag.

A plan counts as the same where every field that the target has words for is read as planned, nothing is unresolved, and
no finding is told. Plans that a target refuses are counted apart.

    python benchmarks/emitted.py [--quick]
"""

import random
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from imports import FLAGS

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "emit"))
import imported_plans

PLANS, QUICK = 200, 10


def by_regular_expressions(text: str, wanted: dict[str, Any]) -> bool:
    """Whether the first match of one regular expression a degree is the degree of every role."""
    read = {name: re.search(FLAGS[name], text) for name in ("tp", "pp", "dp")}
    return all(int(match[1]) == wanted[name] if match else wanted[name] == 1 for name, match in read.items())


def main() -> None:
    """Prints a row a target and engine (`simple`: by regular expressions), what differs, and the totals."""
    plans = QUICK if "--quick" in sys.argv else PLANS
    totals = Counter[str]()
    for target, engine in imported_plans.PAIRS:
        draw = random.Random(f"{target}/{engine}/benchmark")
        counts, fields = Counter[str](), Counter[str]()
        for _ in range(plans):
            rows = imported_plans.differences(target, engine, draw)
            counts["refused" if rows is None else "differ" if rows else "same"] += 1
            if rows is not None:
                counts["simple"] += all(
                    by_regular_expressions(imported_plans.LAST["text"], degrees)
                    for degrees in imported_plans.LAST["degrees"]
                )
            fields.update(row.place for row in rows or ())
        totals += counts
        told = ", ".join(f"{name} {counts[name]}" for name in ("same", "differ", "refused", "simple"))
        print(f"{target:<18}{engine:<8} {told}", dict(fields) or "")
    read = totals["same"] + totals["differ"]
    print(f"the plan again {totals['same']} of {read} that were emitted; one regular expression a degree "
          f"{totals['simple']} of {read}")  # fmt: skip


if __name__ == "__main__":
    main()

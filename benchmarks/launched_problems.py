"""What benchmarks of launched problems share: how many problems to draw, and the totals of what became of them."""

import argparse
import random
from collections import Counter

PROBLEMS, QUICK, SEED = 60, 10, 0


def numbered(description: str | None) -> tuple[int, random.Random]:
    """How many problems the command line asks for, and what draws them."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} problems")
    parser.add_argument("--problems", type=int, default=PROBLEMS)
    parser.add_argument("--seed", type=int, default=SEED)
    given = parser.parse_args()
    return QUICK if given.quick else given.problems, random.Random(given.seed)


def print_totals(counts: Counter[str], fields: Counter[str], whose: str) -> None:
    """Counts, fields that start otherwise, and how many are as planned, beside those that defaults have right."""
    print(dict(counts), dict(fields) or "")
    print(
        f"fields as planned {counts['as planned']} of {counts['fields']}; the {whose} defaults {counts['as defaults']}"
    )

"""Planning cases with known answers, one module for each `kind`: read, solved by the product, answered in its form.

A module has `solve(case, directory)`: the case as it stands in its JSON file, and the folder of the file, where what
the case names lies.
"""

import gzip
import json
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.solvers.caches.block_requests import BlockRequests

KINDS = tuple(sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py")))


@dataclass(frozen=True, slots=True)
class CaseAnswer:
    """An answer in the form that its case states, with objective and proven bound in the unit of the case."""

    answer: dict[str, Any]
    objective: float
    bound: float | None
    summary: str = ""  # of the solution, one line


def solve_case(case: dict[str, Any], directory: Path) -> CaseAnswer:
    """Raises ValueError where no module solves cases of this kind."""
    kind = case.get("kind")
    if kind not in KINDS:
        raise ValueError(f"kind {kind!r} is not solved; kinds: {', '.join(KINDS)}")
    module = import_module(f"case_kinds.{kind}")
    answer: CaseAnswer = module.solve(case, directory)
    return answer


def block_requests(case: dict[str, Any], directory: Path) -> "BlockRequests":
    """The requests with blocks of the trace that a case names, in the folder of the case or those that it tells."""
    from planner.solvers.caches.block_requests import BlockRequests

    folders = [directory, *(directory / folder for folder in case.get("trace_at", ()))]
    path = next((folder / case["trace"] for folder in folders if (folder / case["trace"]).exists()), None)
    if path is None:
        raise ValueError(f"trace {case['trace']} is in none of {', '.join(map(str, folders))}")
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        rows = [row for row in map(json.loads, lines) if row["hash_ids"]]
    return BlockRequests.of([row["timestamp"] / 1000.0 for row in rows], [row["hash_ids"] for row in rows])


def small_case(kind: object) -> dict[str, Any] | None:
    """A case of that kind that takes no time; None where its module has none."""
    if kind not in KINDS:
        return None
    small = getattr(import_module(f"case_kinds.{kind}"), "SMALL", None)
    return None if small is None else {"kind": kind, **small}

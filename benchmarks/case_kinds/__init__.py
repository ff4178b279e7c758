"""Planning cases with known answers, one module for each `kind`: read, solved by the product, answered in its form.

A module has `solve(case, directory)`: the case as it stands in its JSON file, and the folder of the file, where what
the case names lies.
"""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

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

"""Every module that the glossary names is there, and its terms stand in order."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in (ROOT / "docs" / "glossary.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| term")
]


def test_terms_stand_in_the_order_of_the_alphabet_and_once() -> None:
    terms = [row[0].casefold() for row in ROWS]
    assert terms == sorted(set(terms))
    assert len(terms) >= 80


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_every_module_that_is_named_exists(row: list[str]) -> None:
    term, meaning, module = row
    assert term
    assert meaning
    match = re.fullmatch(r"`(planner(?:\.\w+)+)`", module)
    assert match, module
    path = ROOT.joinpath(*match[1].split("."))  # models, solvers and hardware stand in planner as links
    assert path.with_suffix(".py").is_file() or (path / "__init__.py").is_file(), module

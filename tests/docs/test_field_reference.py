"""The field reference says what the schemas say."""

import re
from pathlib import Path

import pytest

from planner.kinds.registry import find_kind, kind_names
from planner.plan.schema import Decision
from planner.schema.base import Spec
from planner.schema.keys import written_names

ROOT = Path(__file__).parent.parent.parent
HOMES = ("planner.problem", "planner.plan", "planner.kinds")
TEXT = (ROOT / "docs" / "problem-and-plan.md").read_text(encoding="utf-8")


def _schemas() -> dict[str, type[Spec]]:
    """Every schema of the program, those of the kinds included, by class name."""
    for kind in kind_names():
        find_kind(kind)
    specs: dict[str, type[Spec]] = {}
    waiting = [Spec]
    while waiting:
        below = [spec for spec in waiting.pop().__subclasses__() if spec.__module__.startswith(HOMES)]
        specs |= {spec.__name__: spec for spec in below}
        waiting += below
    return specs


def _documented() -> dict[str, list[str]]:
    """Names in the first column of the table below each heading that ends in (`ClassName`)."""
    sections = re.split(r"^### .*\(`(\w+)`\)$", TEXT, flags=re.MULTILINE)[1:]
    rows = {
        name: re.findall(r"^\| (`.*?) \|", body, re.MULTILINE)
        for name, body in zip(sections[::2], sections[1::2], strict=True)
    }
    return {name: [field for row in cells for field in re.findall(r"`(\w+)`", row)] for name, cells in rows.items()}


SCHEMAS, DOCUMENTED = _schemas(), _documented()


def test_every_schema_has_a_section() -> None:
    assert set(DOCUMENTED) == set(SCHEMAS)


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_a_section_names_the_fields_of_its_schema_and_no_other(name: str) -> None:
    spec = SCHEMAS[name]
    shared = set(written_names(Decision)) if issubclass(spec, Decision) and spec is not Decision else set()
    assert sorted(DOCUMENTED[name]) == sorted(set(written_names(spec)) - shared)

"""The field reference is written from the schemas, and describes every field of every one."""

import pytest

from planner.kinds.registry import find_kind, kind_names
from planner.schema.base import Spec
from planner.schema.meanings import meaning_of

HOMES = ("planner.problem", "planner.plan", "planner.kinds")

import field_reference  # noqa: E402


def _schemas() -> set[type[Spec]]:
    """Every schema of the program, those of the kinds included; of those that others extend, only these."""
    for kind in kind_names():
        find_kind(kind)
    specs: set[type[Spec]] = set()
    waiting = [Spec]
    while waiting:
        below = [spec for spec in waiting.pop().__subclasses__() if spec.__module__.startswith(HOMES)]
        specs |= set(below)
        waiting += below
    return specs


SCHEMAS = {spec.__name__: spec for spec in _schemas()}
WORDS = "write it with `python benchmarks/field_reference.py`"


def test_the_page_is_what_the_schemas_say(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-golden"):
        field_reference.main([])
    assert field_reference.main(["--check"]) == 0, WORDS


def test_every_schema_has_a_section_or_is_extended_by_one_that_has() -> None:
    text = field_reference.PAGE.read_text(encoding="utf-8")
    missing = {spec for name, spec in SCHEMAS.items() if f"(`{name}`)\n" not in text}
    assert all(any(issubclass(other, spec) for other in {*SCHEMAS.values()} - missing) for spec in missing)


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_every_field_is_described_in_its_schema_or_beside_it(name: str) -> None:
    spec = SCHEMAS[name]
    silent = [field for field in spec.model_fields if not meaning_of(spec, field)]
    assert not silent, "give `Field(description=...)`, or a line in planner/schema/meanings.yaml"

"""JSON Schema of problems and plans: whole, and of every kind."""

from collections.abc import Iterator
from typing import Any

import pytest

from planner.kinds.registry import find_kind, kind_names
from planner.load.json_schema import plan_schema, problem_schema


def references(schema: Any) -> Iterator[str]:  # noqa: ANN401
    if isinstance(schema, dict):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"]
        for below in schema.values():
            yield from references(below)
    elif isinstance(schema, list):
        for below in schema:
            yield from references(below)


@pytest.mark.parametrize("schema", [problem_schema(), plan_schema()])
def test_every_reference_resolves(schema: dict[str, Any]) -> None:
    named = set(references(schema))
    assert named
    assert named <= {f"#/$defs/{name}" for name in schema["$defs"]}


def test_every_kind_has_its_decision_and_its_options() -> None:
    for schema, field in ((plan_schema(), "decision"), (problem_schema(), "options")):
        cases = {case["if"]["properties"]["kind"]["const"]: case["then"]["properties"] for case in schema["allOf"]}
        assert sorted(cases) == schema["properties"]["kind"]["enum"] == list(kind_names())
        for name, properties in cases.items():
            spec = getattr(find_kind(name), field)
            assert properties[field]["$ref"] == f"#/$defs/{spec.__name__}"
            assert set(spec.model_fields) <= set(schema["$defs"][spec.__name__]["properties"])


def test_quantities_are_offered_with_and_without_their_unit() -> None:
    pool = problem_schema()["$defs"]["PoolSpec"]["properties"]
    assert pool["price"]["type"] == "string"
    assert {"usd_per_gpu_hour", "price"} <= set(pool)
    attainment = problem_schema()["$defs"]["SloSpec"]["properties"]["attainment"]
    assert {"string"} < {form.get("type", "other") for form in attainment["anyOf"]}


def test_editors_are_told_what_every_field_means() -> None:
    for schema in (plan_schema(), problem_schema()):
        for name, part in schema["$defs"].items():
            silent = [field for field, about in part.get("properties", {}).items() if "description" not in about]
            assert not silent, name

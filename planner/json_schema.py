"""JSON Schema (draft 2020-12) of problems and plans, with the parts that each kind adds."""

from typing import Any

from planner.kinds.registry import find_kind, kind_names
from planner.plan.schema import Envelope
from planner.problem.schema import Problem
from planner.schema_base import Spec

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def problem_schema() -> dict[str, Any]:
    """The schema of problem files; `options` depends on `kind`."""
    return _by_kind(Problem, "planner.problem/1", "options", {name: find_kind(name).options for name in kind_names()})


def plan_schema() -> dict[str, Any]:
    """The schema of plan files; `decision` depends on `kind`."""
    return _by_kind(Envelope, "planner.plan/1", "decision", {name: find_kind(name).decision for name in kind_names()})


def _by_kind(document: type[Spec], title: str, part: str, kinds: dict[str, type[Spec]]) -> dict[str, Any]:
    """The document's schema with `part` bound to the schema of the kind that the document names."""
    schema = document.model_json_schema(by_alias=True)
    definitions = schema.setdefault("$defs", {})
    for name, spec in kinds.items():
        below = spec.model_json_schema(by_alias=True, ref_template=f"#/$defs/{name}.{{model}}")
        definitions |= {f"{name}.{key}": value for key, value in below.pop("$defs", {}).items()}
        definitions[f"{name}.{part}"] = below
        condition = {"properties": {"kind": {"const": name}}, "required": ["kind"]}
        bound = {"properties": {part: {"$ref": f"#/$defs/{name}.{part}"}}}
        schema.setdefault("allOf", []).append({"if": condition, "then": bound})
    schema["properties"]["kind"]["enum"] = list(kinds)
    return {"$schema": _DIALECT, **schema, "title": title}

"""JSON Schema of problems, plans and other documents, for editors and other programs."""

from typing import Any

from planner.kinds.registry import Kind, find_kind, kind_names
from planner.schema.base import Spec

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def problem_schema() -> dict[str, Any]:
    """The schema of `problem.yaml`, with the `options` of every kind under its name."""
    from planner.problem.schema import Problem

    return _by_kind(Problem, "options", {kind.name: kind.options for kind in _kinds()})


def plan_schema() -> dict[str, Any]:
    """The schema of `plan.json`, with the `decision` of every kind under its name."""
    from planner.plan.schema import Envelope

    return _by_kind(Envelope, "decision", {kind.name: kind.decision for kind in _kinds()})


def _kinds() -> list[Kind]:
    return [find_kind(name) for name in kind_names()]


def _by_kind(spec: type[Spec], field: str, parts: dict[str, type[Spec]]) -> dict[str, Any]:
    """The schema of `spec` in which `kind` says which of `parts` stands in `field`."""
    from pydantic.json_schema import models_json_schema

    wanted = [(part, "validation") for part in (spec, *parts.values())]
    references, definitions = models_json_schema(wanted, ref_template="#/$defs/{model}")  # type: ignore[arg-type]  # literals
    cases = [
        {
            "if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]},
            "then": {"properties": {field: references[(part, "validation")]}},
        }
        for kind, part in parts.items()
    ]
    own = definitions["$defs"].pop(spec.__name__)
    own["properties"]["kind"] = {"title": "Kind", "type": "string", "enum": sorted(parts)}
    return {"$schema": _DIALECT, **own, "allOf": [*own.get("allOf", []), *cases], "$defs": definitions["$defs"]}

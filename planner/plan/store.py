"""Plan files: canonical JSON text, SHA-256 digest, and the file of check results beside a plan."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.documents.files import sha256_text, write_text_atomic
from planner.documents.read import load_document
from planner.errors import PlannerError
from planner.plan.findings import Finding, as_row, passed

if TYPE_CHECKING:
    from planner.plan.schema import Envelope

CHECKS_SCHEMA = "planner.checks/1"

_WIDTH = 120
_LINE = json.JSONEncoder(allow_nan=False, ensure_ascii=False).encode
_FIRST = ("schema", "kind", "name", "metric", "of", "role", "function", "workload", "id")  # then the alphabet


def plan_json(envelope: "Envelope") -> str:
    """The one text of a plan: sections in the envelope's order, keys sorted below, exact floats, a newline last."""
    data = envelope.model_dump(mode="json", by_alias=True, exclude_none=True)
    sections = [f" {_LINE(key)}: {_pretty(_ordered(value), 1)}" for key, value in data.items()]
    return "{\n" + ",\n".join(sections) + "\n}\n"


def plan_digest(text: str) -> str:
    """The digest of a plan: SHA-256 of the bytes of its file, as `sha256sum` prints it, after `sha256:`."""
    return sha256_text(text)


def _pretty(value: Any, depth: int) -> str:  # noqa: ANN401 - JSON
    """JSON on one line where it fits, else one entry a line, indented by one space a level."""
    if not isinstance(value, dict | list) or not value:
        return _LINE(value)
    if _left(value, _WIDTH - depth) >= 0:
        line = _LINE(value)
        if len(line) + depth <= _WIDTH:
            return line
    indent = "\n" + " " * (depth + 1)
    if isinstance(value, dict):
        parts = [f"{_LINE(key)}: {_pretty(below, depth + 1)}" for key, below in value.items()]
        return "{" + indent + f",{indent}".join(parts) + indent[:-1] + "}"
    if all(isinstance(below, int | float) for below in value):
        return _LINE(value)
    parts = [_pretty(below, depth + 1) for below in value]
    return "[" + indent + f",{indent}".join(parts) + indent[:-1] + "]"


def _left(value: Any, room: int) -> int:  # noqa: ANN401 - JSON
    """The most characters that a value on one line leaves of `room`; below 0 it need not be written to see it is long.

    Text may have escapes, and numbers more digits than one.
    """
    if isinstance(value, str):
        return room - len(value) - 2
    if isinstance(value, dict | list):
        entries = value.items() if isinstance(value, dict) else (("", below) for below in value)
        beside = 6 if isinstance(value, dict) else 2  # quotes, colon, comma, and brackets for the comma of the last
        for key, below in entries:
            room = _left(below, room - len(key) - beside)
            if room < 0:
                break
        return room
    return room - 1


def _ordered(value: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, dict):
        return {key: _ordered(value[key]) for key in sorted(value, key=_place)}
    return [_ordered(below) for below in value] if isinstance(value, list) else value


def _place(key: str) -> tuple[int, str]:
    return (_FIRST.index(key) if key in _FIRST else len(_FIRST), key)


def checks_path(plan_path: str | Path) -> Path:
    """Where the checks of a plan lie: `plan.json` has `plan.checks.json` beside it."""
    path = Path(plan_path)
    return path.with_name(f"{path.stem if path.suffix == '.json' else path.name}.checks.json")


def write_checks(
    plan_path: str | Path,
    digest: str,
    level: str,
    findings: Iterable[Finding],
    result: Mapping[str, Any] | None = None,
) -> str:
    """Writes what a check found beside the plan, keeping other levels of the same plan.

    `result` is what the check measured, a document with its own `schema`. Returns a note when checks of an earlier plan
    were dropped, else "". Raises PlannerError for a file of that name that no check wrote.
    """
    path = checks_path(plan_path)
    levels, note = _levels(path, digest)
    judged = list(findings)
    levels[level] = {"ok": passed(judged), "findings": [as_row(finding) for finding in judged]}
    if result is not None:
        levels[level]["result"] = dict(result)
    document = {"schema": CHECKS_SCHEMA, "plan": digest, "levels": dict(sorted(levels.items()))}
    write_text_atomic(path, json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    return note


def _levels(path: Path, digest: str) -> tuple[dict[str, Any], str]:
    if not path.exists():
        return {}, ""
    data = load_document(path).data
    levels = data.get("levels") if isinstance(data, Mapping) and data.get("schema") == CHECKS_SCHEMA else None
    if not isinstance(levels, dict):
        raise PlannerError("is not a file of checks", where=str(path), hint="move it away; checks are written there")
    if data.get("plan") != digest:
        return {}, f"dropped the checks of an earlier plan from {path}: {', '.join(sorted(levels)) or 'none'}"
    return dict(levels), ""

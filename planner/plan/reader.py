"""Reads and validates plans in plain Python, for executors and launchers without pydantic or numpy.

It checks the schema id, every key and every type against the classes of `records`, which `planner.plan.schema` makes
pydantic models of. Whether the plan is any good is for `planner check`.
"""

import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from planner.documents.read import Document, DocumentSyntaxError, load_document
from planner.errors import PlannerError, did_you_mean
from planner.plan.records import Decision, Header, PlanDocument

SCHEMA = "planner.plan/1"

T = TypeVar("T")
Steps = tuple[str | int, ...]
_WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


@dataclass(frozen=True, kw_only=True)
class _Envelope(Header):
    schema: str
    decision: Mapping[str, Any]


def read_plan(path: str | Path) -> PlanDocument:
    """The plan in a file, or on standard input for `-`.

    Raises PlannerError, naming file, line and key, for a file that is missing, cut off, foreign or malformed.
    """
    document = load_plan_document(path)
    envelope = _record(_Envelope, document.data, (), document)
    common = {part.name for part in fields(Decision)}
    shared = {key: value for key, value in envelope.decision.items() if key in common}
    decision = _record(Decision, shared, ("decision",), document)
    _require_roles(decision, document)
    return PlanDocument(
        **vars(decision),
        **{part.name: getattr(envelope, part.name) for part in fields(Header)},
        extra={key: value for key, value in envelope.decision.items() if key not in common},
        source=document.source,
    )


def load_plan_document(path: str | Path) -> Document:
    """The file as plain data whose schema id is that of plans; everything else about it is still unchecked."""
    try:
        document = load_document(path)
    except DocumentSyntaxError as error:
        raise PlannerError(
            error.what,
            where=error.where,
            hint="give a whole plan as `planner solve` writes it; this file may be cut off",
        ) from None
    if not isinstance(document.data, dict) or "schema" not in document.data:
        raise PlannerError(
            "is not a plan: it has no `schema`", where=document.source, hint="give a plan written by `planner solve`"
        )
    schema = document.data["schema"]
    if schema != SCHEMA:
        raise _foreign(schema, document.where(("schema",)))
    return document


def _foreign(schema: object, where: str) -> PlannerError:
    if isinstance(schema, str) and schema.startswith("planner.plan/"):
        return PlannerError(
            f"this plan has the schema `{schema}`, this program reads `{SCHEMA}`",
            where=where,
            hint="use the version of planner that wrote it, or solve again",
        )
    return PlannerError(f"is not a plan but {_shown(schema)}", where=where, hint=f"give a file with `schema: {SCHEMA}`")


def _require_roles(decision: Decision, document: Document) -> None:
    names = [role.name for role in decision.roles]
    if not names or len(set(names)) != len(names):
        raise _wrong(
            "two roles have the same name" if names else "a plan needs at least one role",
            ("decision", "roles"),
            document,
            "give each its own name" if names else "add a role",
        )
    for index, block in enumerate(decision.placement):
        if block.role not in names:
            raise _wrong(
                f"no role is called `{block.role}`",
                ("decision", "placement", index, "role"),
                document,
                f"the roles are {', '.join(f'`{name}`' for name in names)}",
            )


def _shape(record: type[Any]) -> tuple[dict[str, Any], frozenset[str]]:
    """Types by field, and the fields that must be there."""
    required = [part.name for part in fields(record) if part.default is MISSING and part.default_factory is MISSING]
    return get_type_hints(record, include_extras=True), frozenset(required)


def _record(record: type[T], value: Any, path: Steps, document: Document) -> T:  # noqa: ANN401 - parsed JSON
    wanted, required = _shape(record)
    if not isinstance(value, dict):
        raise _wrong(f"must be a mapping, found {_shown(value)}", path, document, "write it as {...}")
    for key in value:
        if key not in wanted:
            listing = f"the keys here are {', '.join(f'`{name}`' for name in wanted)}"
            raise _wrong(
                f"unknown key `{key}`", (*path, key), document, did_you_mean(key, list(wanted), otherwise=listing)
            )
    missing = sorted(required - value.keys())
    if missing:
        raise _wrong(f"`{missing[0]}` is missing", path, document, f"add `{missing[0]}`")
    return record(**{key: _value(wanted[key], below, (*path, key), document) for key, below in value.items()})


def _value(wanted: Any, value: Any, path: Steps, document: Document) -> Any:  # noqa: ANN401 - types are data here
    """`value` as the annotated type `wanted`."""
    if wanted is Any:
        return value
    origin = get_origin(wanted)
    if origin is Annotated:
        number, limit = get_args(wanted)
        return _at_least(limit.least, _value(number, value, path, document), path, document)
    if origin in (Union, types.UnionType):
        return _member(get_args(wanted), value, path, document)
    if origin is tuple:
        return _items(get_args(wanted), value, path, document)
    if origin is Mapping:
        if not isinstance(value, dict):
            raise _wrong(f"must be a mapping, found {_shown(value)}", path, document, "write it as {...}")
        of = get_args(wanted)[1]
        return {key: _value(of, below, (*path, key), document) for key, below in value.items()}
    if wanted in _WORDS:
        return _scalar(wanted, value, path, document)
    return _record(wanted, value, path, document)


def _member(members: tuple[Any, ...], value: Any, path: Steps, document: Document) -> Any:  # noqa: ANN401
    if value is None and types.NoneType in members:
        return None
    plain = [member for member in members if member is not types.NoneType]
    exact = [member for member in plain if type(value) is member]
    return _value(exact[0] if exact else plain[0], value, path, document)


def _items(wanted: tuple[Any, ...], value: Any, path: Steps, document: Document) -> tuple[Any, ...]:  # noqa: ANN401
    if not isinstance(value, list):
        raise _wrong(f"must be a list, found {_shown(value)}", path, document, "write it as [...]")
    if wanted[-1] is not Ellipsis and len(value) != len(wanted):
        raise _wrong(f"must have {len(wanted)} entries, found {len(value)}", path, document, "correct the list")
    return tuple(_value(wanted[0], below, (*path, index), document) for index, below in enumerate(value))


def _at_least(least: int, number: T, path: Steps, document: Document) -> T:
    if number < least:  # type: ignore[operator]  # a limit stands on numbers alone
        raise _wrong(f"must be at least {least}, found {number}", path, document, f"correct `{path[-1]}`")
    return number


def _scalar(wanted: type[Any], value: Any, path: Steps, document: Document) -> Any:  # noqa: ANN401
    right = isinstance(value, (int, float) if wanted is float else wanted)
    if not right or isinstance(value, bool) is not (wanted is bool):
        raise _wrong(f"must be {_WORDS[wanted]}, found {_shown(value)}", path, document, f"correct `{path[-1]}`")
    try:
        return float(value) if wanted is float else value
    except OverflowError:
        raise _wrong("is too large for a number", path, document, f"correct `{path[-1]}`") from None


def _wrong(what: str, path: Steps, document: Document, hint: str) -> PlannerError:
    dotted = ".".join(str(step) for step in path)
    return PlannerError(what, where=f"{document.where(path)}: {dotted}" if dotted else document.where(path), hint=hint)


def _shown(value: object) -> str:
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

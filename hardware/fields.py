"""Parses entries of a hardware file by tables of fields; every error names file, line, key and fix."""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from planner.documents.read import Document
from planner.documents.units import parse_quantity
from planner.errors import PlannerError, did_you_mean

Path = tuple[str | int, ...]
Reader = Callable[[Document, Path, Any], Any]
"""Takes the document, the path of a value in it and the value; returns the value in SI or raises PlannerError."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def error(document: Document, path: Path, what: str, hint: str) -> PlannerError:
    """A PlannerError about the value at `path`, which it names by the dotted path."""
    return PlannerError(f"`{'.'.join(map(str, path))}` {what}", where=document.where(path), hint=hint)


def quantity(units: dict[str, float], *, minimum: float = 0.0) -> Reader:
    """A positive, finite quantity with one of `units`, at least `minimum`, as an SI number."""

    def read(document: Document, path: Path, value: object) -> float:
        try:
            amount = parse_quantity(value, units)
        except PlannerError as problem:
            raise error(document, path, problem.what, problem.hint) from None
        if not (0 < amount < math.inf and amount >= minimum):
            raise error(document, path, f'must be above zero and finite, found "{value}"', "correct the figure")
        return amount

    return read


def ratio(document: Document, path: Path, value: object) -> float:
    """A plain number of at least one, such as an oversubscription."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value < math.inf:
        raise error(document, path, f"must be a number of at least 1, found {value!r}", "write for example `2.0`")
    return float(value)


def count(document: Document, path: Path, value: object) -> int:
    """A whole number above zero."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise error(document, path, f"must be a whole number above zero, found {value!r}", "write for example `8`")
    return value


def text(document: Document, path: Path, value: object) -> str:
    """Text of one line."""
    if not isinstance(value, str) or not value.strip() or "\n" in value:
        raise error(document, path, f"must be text of one line, found {value!r}", "put the value in quotes")
    return value


def one_of(*choices: str) -> Reader:
    """One of a few words."""

    def read(document: Document, path: Path, value: object) -> str:
        if not isinstance(value, str) or value not in choices:
            listed = " or ".join(f"`{choice}`" for choice in choices)
            raise error(document, path, f"must be {listed}, found {value!r}", f"write {listed}")
        return value

    return read


def list_of(item: Reader) -> Reader:
    """A list whose items are each read by `item`, as a tuple."""

    def read(document: Document, path: Path, value: object) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise error(document, path, f"must be a list, found {value!r}", "write `[first, second]`")
        return tuple(item(document, (*path, index), below) for index, below in enumerate(value))

    return read


def map_of(item: Reader) -> Reader:
    """A mapping of free names to values that are each read by `item`."""

    def read(document: Document, path: Path, value: object) -> dict[str, Any]:
        entries = _mapping(document, path, value)
        for name in entries:
            if not _NAME.fullmatch(name):
                raise error(
                    document,
                    (*path, name),
                    f"is no name: {name!r}",
                    "use letters, digits, `_`, `-` and `.`, at most 64",
                )
        return {name: item(document, (*path, name), below) for name, below in entries.items()}

    return read


def record(required: Mapping[str, Reader], optional: Mapping[str, Reader] | None = None) -> Reader:
    """A mapping with exactly the `required` keys and any of the `optional` ones."""
    known = {**required, **(optional or {})}

    def read(document: Document, path: Path, value: object) -> dict[str, Any]:
        entries = _mapping(document, path, value)
        for key in entries:
            if key not in known:
                raise error(
                    document,
                    (*path, key),
                    "is not a known key",
                    did_you_mean(key, list(known), otherwise=f"the keys are {', '.join(known)}"),
                )
        for key in required:
            if key not in entries:
                raise error(document, path, f"lacks the key `{key}`", f"add `{key}:`")
        return {key: known[key](document, (*path, key), below) for key, below in entries.items()}

    return read


def _mapping(document: Document, path: Path, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        shown = "a list" if isinstance(value, list) else repr(value)
        raise error(document, path, f"must be a mapping, found {shown}", "write `key: value` lines below it")
    return value

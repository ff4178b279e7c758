"""Safe YAML and JSON parsing to plain data with positions: no code runs, errors name file and line."""

import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from math import isinf
from pathlib import Path
from typing import Any

from planner.documents.scalars import MAX_DIGITS, check_collection_tag, plain_scalar, tagged_scalar
from planner.documents.tree import MAX_DEPTH, Line, TreeBuilder, json_lines
from planner.errors import PlannerError, nearest

MAX_BYTES = 64 * 2**20
PARSED_VARIABLE = "PLANNER_PARSED_YAML"
"""Where a JSON file maps the SHA-256 of YAML texts to their data, for machines without PyYAML."""

Key = str | int
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")
_LONG = re.compile(rf"[0-9]{{{MAX_DIGITS}}}")
_BRACKET = re.compile(r"[\[\]{}]")


class DocumentSyntaxError(PlannerError):
    """Text that is not well-formed YAML or JSON, cut off perhaps."""


@dataclass(frozen=True)
class Document:
    """Plain data read from `source` (a path as the user gave it, or `<stdin>`), and the line of every part of it."""

    source: str
    data: Any
    _tree: Callable[[], Line] = field(repr=False, compare=False)

    @property
    def lines(self) -> dict[tuple[Key, ...], int]:
        """The line, from 1, of every mapping entry and list item by its path; `()` is the document itself."""
        lines: dict[tuple[Key, ...], int] = {}
        waiting: list[tuple[tuple[Key, ...], Line]] = [((), self._tree())]
        while waiting:
            path, (number, below) = waiting.pop()
            lines[path] = number
            waiting += [((*path, key), line) for key, line in below.items()] if below else []
        return lines

    def where(self, path: tuple[Key, ...] = ()) -> str:
        """`file:line` of the deepest part of `path` that the document has."""
        number, below = self._tree()
        for key in path:
            if not below or key not in below:
                break
            number, below = below[key]
        return f"{self.source}:{number}"


class GivenDocument(Document):
    """Data that came from a program and not from a file: its parts have paths and no lines."""

    @property
    def lines(self) -> dict[tuple[Key, ...], int]:
        return {}

    def where(self, path: tuple[Key, ...] = ()) -> str:
        """Only what the data are called."""
        return self.source


def given_document(data: object, source: str) -> GivenDocument:
    """Data of a program as a document that errors call `source`, limited to what a JSON file could say.

    Raises PlannerError for data that are not plain: other types than those of JSON, numbers that are not finite.
    """
    try:
        text = json.dumps(data, default=plain_json)
    except (TypeError, ValueError, RecursionError) as problem:
        raise PlannerError(
            f"is not plain data: {problem}",
            where=source,
            hint="give mappings with text keys, lists, text, numbers, true, false and null",
        ) from None
    return GivenDocument(source, parse_document(text, source).data, lambda: (1, None))


def plain_json(value: object) -> object:
    """Numbers and arrays of numpy and pandas as those of Python; raises TypeError for what is neither."""
    for name in ("tolist", "to_list"):
        convert = getattr(value, name, None)
        if callable(convert):
            return convert()
    raise TypeError(f"{value!r} is no JSON")


def load_document(path: str | Path) -> Document:
    """The document in a file, or on standard input for `-`.

    Raises PlannerError for a file that is missing, unreadable, above 64 MiB, not UTF-8, or not plain YAML or JSON.
    """
    source = "<stdin>" if str(path) == "-" else str(path)
    return parse_document(decode(read_bytes(path, source), source), source)


def parse_document(text: str, source: str) -> Document:
    """The document in `text`, which errors call `source`.

    Raises PlannerError for text that is not one plain YAML or JSON document: tags that would build objects, keys that
    are not text or come twice, aliases that multiply, several documents, numbers that are not finite.
    """
    bad = _FORBIDDEN.search(text)
    if bad:
        raise PlannerError(
            f"character U+{ord(bad[0]):04X} is not allowed in a document",
            where=f"{source}:{text.count(chr(10), 0, bad.start()) + 1}",
            hint="save the file as plain UTF-8 text",
        )
    if text.lstrip()[:1] in ("{", "[", '"'):
        try:
            return _parse_json(text, source)
        except json.JSONDecodeError as problem:
            if source.endswith((".json", ".jsonl")):
                raise DocumentSyntaxError(
                    f"not valid JSON: {problem.msg}", where=f"{source}:{problem.lineno}", hint="correct this line"
                ) from None
    return _parse_yaml(text, source)


def read_bytes(path: str | Path, source: str) -> bytes:
    """The content of a file of at most 64 MiB, or of standard input for `<stdin>`. Raises PlannerError."""
    try:
        if source == "<stdin>":
            content = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with open(path, "rb") as stream:
                content = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise file_not_found(path, where=source) from None
    except IsADirectoryError:
        raise PlannerError("is a directory, not a file", where=source, hint="name a file inside it") from None
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        raise PlannerError(
            f"cannot be read: {reason}", where=source, hint="check the path and its permissions"
        ) from None
    if len(content) > MAX_BYTES:
        raise PlannerError("is larger than 64 MiB", where=source, hint="split it, or move large arrays to side files")
    return content


def file_not_found(path: str | Path, *, where: str = "", otherwise: str = "check the path") -> PlannerError:
    """The error for a file that is not there; its hint names the nearest file of that folder, or says `otherwise`."""
    return PlannerError("file not found", where=where or str(path), hint=_similar_file(Path(path), otherwise))


def _similar_file(path: Path, otherwise: str) -> str:
    try:
        close = nearest(path.name, sorted(entry.name for entry in path.parent.iterdir()))
    except OSError:
        return f"check the path: there is no directory `{path.parent}`"
    return f"did you mean `{path.parent / close[0]}`?" if close else otherwise


def decode(content: bytes, source: str) -> str:
    """UTF-8 as text. Raises PlannerError."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise PlannerError(
            f"byte 0x{problem.object[problem.start]:02X} is not UTF-8 text",
            where=f"{source}:{content.count(10, 0, problem.start) + 1}",
            hint="save the file as UTF-8",
        ) from None


class _RefusedError(Exception):
    """JSON that Python reads and a document may not hold; `json_lines` finds the place and the words."""


def _parse_json(text: str, source: str) -> Document:
    """JSON by the standard library, for speed; lines are looked up only when an error must be placed."""
    tree: list[Line] = []

    def lines() -> Line:
        if not tree:
            tree.append(json_lines(text, source))
        return tree[0]

    try:
        data = json.loads(text, object_pairs_hook=_unique, parse_float=_finite, parse_constant=_refuse)
        if "\\u" in text:
            json.dumps(data, ensure_ascii=False).encode()
        if "\\u0000" in text or _LONG.search(text):
            lines()
    except json.JSONDecodeError:
        raise
    except (_RefusedError, RecursionError, ValueError):
        lines()
        raise
    if _bracket_depth(text) > MAX_DEPTH:
        lines()
    return Document(source, data, lines)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise _RefusedError
    return entries


def _finite(text: str) -> float:
    value = float(text)
    return _refuse(text) if isinf(value) else value


def _refuse(text: str) -> float:
    raise _RefusedError


def _bracket_depth(text: str) -> int:
    """The deepest nesting of brackets, those inside strings counted too: never below the depth of the JSON value."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return 0
    return max(accumulate(1 if match[0] in "[{" else -1 for match in _BRACKET.finditer(text)), default=0)


def _parsed_before(text: str, source: str) -> Document:
    """The data of a YAML text from the file that $PLANNER_PARSED_YAML names; they have no lines."""
    path = os.environ.get(PARSED_VARIABLE, "")
    known = _parsed_documents(path) if path else {}
    name = hashlib.sha256(text.encode()).hexdigest()
    if name not in known:
        raise PlannerError("is YAML, and PyYAML is not installed", where=source, hint="`pip install pyyaml`")
    return Document(source, known[name], lambda: (1, None))


@cache
def _parsed_documents(path: str) -> Mapping[str, Any]:
    known: Mapping[str, Any] = load_document(path).data
    return known


def _parse_yaml(text: str, source: str) -> Document:
    try:
        import yaml
    except ImportError:
        return _parsed_before(text, source)
    builder = TreeBuilder(source)
    num_documents = 0
    try:
        events: Iterator[Any] = yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        for event in events:
            num_documents += isinstance(event, yaml.DocumentStartEvent)
            if num_documents > 1:
                raise PlannerError(
                    "holds several documents",
                    where=f"{source}:{event.start_mark.line + 1}",
                    hint="keep one document in a file",
                )
            _take(event, builder)
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark
        what = ", ".join(part for part in (problem.context, problem.problem) if part)
        raise DocumentSyntaxError(
            f"not valid YAML: {what}",
            where=source if mark is None else f"{source}:{mark.line + 1}",
            hint="correct the indentation, brackets or quotes here",
        ) from None
    except yaml.YAMLError as problem:
        raise DocumentSyntaxError(
            f"not valid YAML: {problem}", where=source, hint="save it as plain UTF-8 YAML"
        ) from None
    if builder.result is None:
        raise PlannerError("is empty", where=source, hint="check that the right file was named")
    data, tree = builder.result
    return Document(source, data, lambda: tree)


def _take(event: Any, builder: TreeBuilder) -> None:  # noqa: ANN401 - the stubs give events no attributes
    """Hands one event of PyYAML's parser to the builder."""
    kind = type(event).__name__
    if kind == "ScalarEvent":
        line = event.start_mark.line + 1
        if event.tag is not None:
            value = tagged_scalar(event.value, event.tag, builder.source, line)
        else:
            value = plain_scalar(event.value, builder.source, line) if event.implicit[0] else event.value
        builder.scalar(value, line, event.anchor)
    elif kind == "MappingEndEvent" or kind == "SequenceEndEvent":
        builder.close()
    elif kind == "MappingStartEvent" or kind == "SequenceStartEvent":
        line = event.start_mark.line + 1
        is_map = kind == "MappingStartEvent"
        check_collection_tag(event.tag, "map" if is_map else "seq", builder.source, line)
        builder.open({} if is_map else [], line, event.anchor)
    elif kind == "AliasEvent":
        builder.alias(event.anchor, event.start_mark.line + 1)

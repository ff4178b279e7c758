"""Trees of plain data with the line of every entry, built from parser events, and walks over them."""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from planner.documents.scalars import check_text, plain_scalar
from planner.errors import PlannerError

MAX_DEPTH = 200
MAX_ALIASED_NODES = 100_000

Line = tuple[int, "dict[str | int, Line] | None"]  # the line of an entry, and those of the entries below it

_JSON_TOKEN = re.compile(r'"(?:[^"\\]+|\\.)*"|[{}\[\]]|[^\s{}\[\],:"]+|\n')
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:  # noqa: ANN401 - plain data
    """Every scalar and every empty or scalar list in `value`, with its path."""
    if isinstance(value, dict) and value:
        entries: Iterable[tuple[str | int, Any]] = value.items()
    elif isinstance(value, list) and any(isinstance(below, dict | list) for below in value):
        entries = enumerate(value)
    else:
        yield path, value
        return
    for key, below in entries:
        yield from leaves(below, (*path, key))


@dataclass(slots=True)
class _Frame:
    """A mapping or list that is still open."""

    container: Any
    line: int
    anchor: str | None
    lines: dict[str | int, Line]
    num_nodes: int = 1  # with aliases written out
    key: str | None = None
    key_line: int = 0


class TreeBuilder:
    """Takes scalars, openings, closings and aliases; `result` is then the data and its lines, None before the end.

    Raises PlannerError for a key that is not text or comes twice, for text that no file can hold, for aliases that
    multiply, and for deep nesting.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self.result: tuple[Any, Line] | None = None
        self._open: list[_Frame] = []
        self._anchors: dict[str, tuple[Any, Line, int]] = {}
        self._num_aliased = 0

    def scalar(self, value: object, line: int, anchor: str | None = None) -> None:
        """Adds one value that holds no others."""
        check_text(value, self.source, line)
        self._add(value, (line, None), 1, anchor)

    def open(self, container: dict[str, Any] | list[Any], line: int, anchor: str | None = None) -> None:
        """Begins a mapping or a list, empty as given."""
        if self._open and self._awaits_key(self._open[-1]):
            raise self._error(
                "a key must be text, found a list or a mapping", line, "write a plain name before the colon"
            )
        if len(self._open) == MAX_DEPTH:
            raise self._error(f"is nested more than {MAX_DEPTH} levels deep", line, "flatten the document")
        self._open.append(_Frame(container, line, anchor, {}))

    def close(self) -> None:
        """Ends the innermost open mapping or list."""
        frame = self._open.pop()
        self._add(frame.container, (frame.line, frame.lines), frame.num_nodes, frame.anchor)

    def alias(self, anchor: str, line: int) -> None:
        """Adds what the anchor named once more, as the same object."""
        if anchor not in self._anchors:
            raise self._error(f"alias `*{anchor}` names nothing before it", line, f"define `&{anchor}` above this line")
        value, (_, lines), num_nodes = self._anchors[anchor]
        self._num_aliased += num_nodes
        if self._num_aliased > MAX_ALIASED_NODES:
            raise self._error(
                f"aliases repeat more than {MAX_ALIASED_NODES} values",
                line,
                "write the values out, or use fewer aliases",
            )
        self._add(value, (line, lines), num_nodes, None)

    def _add(self, value: object, line: Line, num_nodes: int, anchor: str | None) -> None:
        if anchor is not None:
            self._anchors[anchor] = (value, line, num_nodes)
        if not self._open:
            self.result = (value, line)
            return
        frame = self._open[-1]
        frame.num_nodes += num_nodes
        if isinstance(frame.container, list):
            frame.lines[len(frame.container)] = line
            frame.container.append(value)
        elif frame.key is None:
            frame.key, frame.key_line = self._checked_key(value, frame.container, line[0]), line[0]
        else:
            frame.lines[frame.key] = (frame.key_line, line[1])
            frame.container[frame.key] = value
            frame.key = None

    def _checked_key(self, key: object, taken: dict[str, Any], line: int) -> str:
        if not isinstance(key, str):
            shown = json.dumps(key) if not isinstance(key, dict | list) else "a list or a mapping"
            raise self._error(f"a key must be text, found {shown}", line, f'put it in quotes: `"{shown}":`')
        if key in taken:
            raise self._error(f"key `{key}` appears twice", line, "keep one of the two")
        return key

    @staticmethod
    def _awaits_key(frame: _Frame) -> bool:
        return isinstance(frame.container, dict) and frame.key is None

    def _error(self, what: str, line: int, hint: str) -> PlannerError:
        return PlannerError(what, where=f"{self.source}:{line}", hint=hint)


def json_lines(text: str, source: str) -> Line:
    """The lines of a well-formed JSON text.

    Raises PlannerError with the line for what Python's reader lets pass or refuses without a place: a key that comes
    twice, a number that is not finite or too long, half of a surrogate pair, U+0000, deep nesting.
    """
    builder = TreeBuilder(source)
    line = 1
    for match in _JSON_TOKEN.finditer(text):
        token = match[0]
        if token == "\n":
            line += 1
        elif token in "{[":
            builder.open({} if token == "{" else [], line)
        elif token in "}]":
            builder.close()
        else:
            builder.scalar(_json_scalar(token, source, line), line)
    return builder.result[1] if builder.result else (1, None)


def _json_scalar(token: str, source: str, line: int) -> object:
    if token[0] == '"':
        return json.loads(token)
    if token in _NOT_FINITE:
        raise PlannerError(
            f"`{token}` is not a finite number", where=f"{source}:{line}", hint="write a finite number or leave it out"
        )
    return plain_scalar(token, source, line)

"""`--set` overrides of a problem document: dotted paths and values, applied before validation."""

import copy
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.documents.read import Document, parse_document
from planner.errors import PlannerError, UnknownKeyError
from planner.schema.base import Path, Where
from planner.schema.keys import written_path

_EXAMPLE = "write for example `--set slo.ttft=200ms`"
_DOT = re.compile(r"(?<!\bp\d)(?<!\bp\d\d)\.|\.(?!\d+(?:_s)?$)")  # `slo.ttft.p99.9` ends in one key
_SEGMENT = re.compile(r"(p\d+\.\d+(?:_s)?|[^.\[\]]+)((?:\[\d+\])*)")


@dataclass(frozen=True, slots=True)
class Overridden:
    """A document after its overrides; `origins` holds the flag that set each overridden path."""

    data: Any
    origins: dict[Path, str]


class OverriddenWhere(Where):
    """Locates overridden paths in the command line, all others in the file; SI names under the short one written."""

    def __init__(self, document: Document, overridden: Overridden, short_names: Mapping[str, Collection[str]]) -> None:
        super().__init__(lambda: document.lines, document.source)
        self._data, self._origins, self._short_names = overridden.data, overridden.origins, short_names

    def __call__(self, path: Path) -> str:
        path = self.written(path)
        for length in range(len(path), 0, -1):
            if path[:length] in self._origins:
                return self._at_flag(self._origins[path[:length]], path)
        below = next((flag for known, flag in self._origins.items() if path and known[: len(path)] == path), None)
        return super().__call__(path) if below is None else self._at_flag(below, path)

    def written(self, path: Path) -> Path:
        """The path under the names that the document gives its keys, as far as it goes."""
        return written_path(path, self._data, self._short_names)

    @staticmethod
    def _at_flag(flag: str, path: Path) -> str:
        dotted = ".".join(str(part) for part in path)
        return flag if flag == f"--set {dotted}" else f"{flag}: {dotted}"


def apply_overrides(
    document: Document,
    overrides: Sequence[str],
    *,
    each_workload: Collection[str] = (),
    short_names: Mapping[str, Collection[str]] | None = None,
) -> Overridden:
    """The document's data with every `path=value` set, on a copy.

    A path whose first key is in `each_workload` (such as `slo.ttft`) applies to every workload. A key of `short_names`
    replaces the fields it stands for, so that `price=3USD/h` replaces `usd_per_gpu_hour: 2`. Raises PlannerError naming
    the flag and the part of the path that does not fit the document.
    """
    data, origins = copy.deepcopy(document.data), dict[Path, str]()
    for override in overrides:
        text, equals, value = override.partition("=")
        flag = f"--set {text}"
        if not equals or not text.strip():
            raise PlannerError(f"`{override}` is no `path=value`", where="--set", hint=_EXAMPLE)
        parsed = parse_document(value, flag).data if value.strip() else ""
        for segments in _targets(_split(text.strip(), flag), data, each_workload):
            path = _assign(data, segments, parsed, flag, short_names or {})
            origins = {known: origin for known, origin in origins.items() if known[: len(path)] != path}
            origins[path] = flag
    return Overridden(data, origins)


def _split(text: str, flag: str) -> list[str | int]:
    """The keys of a dotted path, indices in brackets as numbers; plain digits become indices where a list stands."""
    segments: list[str | int] = []
    for part in _DOT.split(text):
        match = _SEGMENT.fullmatch(part)
        if match is None:
            raise PlannerError(f"`{text}` is no dotted path", where=flag, hint=_EXAMPLE)
        segments += [match[1], *(int(index) for index in re.findall(r"\d+", match[2]))]
    return segments


def _targets(segments: list[str | int], data: Any, each_workload: Collection[str]) -> list[list[str | int]]:  # noqa: ANN401
    if segments[0] in each_workload and isinstance(data, dict) and isinstance(data.get("workloads"), list):
        return [["workloads", index, *segments] for index in range(len(data["workloads"]))]
    return [segments]


def _assign(
    data: Any,  # noqa: ANN401 - a document holds whatever was written
    segments: list[str | int],
    value: Any,  # noqa: ANN401
    flag: str,
    short_names: Mapping[str, Collection[str]],
) -> Path:
    """Sets one value in place and returns its path; mappings that are not there yet are made."""
    here, path, rest = data, Path(), list(segments)
    while True:
        key, rest = _next_key(here, rest, path, flag)
        path = (*path, key)
        if not rest:
            break
        if isinstance(here, dict) and not isinstance(here.get(key), dict | list):
            here[key] = {}
        here = here[key]
    if isinstance(here, dict) and isinstance(key, str):
        for name in _same_quantity(key, short_names):
            here.pop(name, None)
    here[key] = value
    return path


def _next_key(here: Any, rest: list[str | int], path: Path, flag: str) -> tuple[str | int, list[str | int]]:  # noqa: ANN401
    """The next key below `here` and what remains; a key of the document may itself hold dots (`Qwen2.5`)."""
    dotted = ".".join(str(part) for part in path) or "the document"
    if isinstance(here, list):
        index = rest[0] if isinstance(rest[0], int) else int(rest[0]) if rest[0].isdecimal() else None
        if index is None or index >= len(here):
            indices = "the only index is 0" if len(here) == 1 else f"use an index from 0 to {len(here) - 1}"
            raise UnknownKeyError(
                f"`{dotted}` is a list and has no `{rest[0]}`",
                where=flag,
                hint=indices if here else f"write `{dotted}` in the file first",
            )
        return index, rest[1:]
    if not isinstance(here, dict) or isinstance(rest[0], int):
        raise UnknownKeyError(f"`{dotted}` has no part `{rest[0]}`", where=flag, hint="check the path against the file")
    for length in range(len(rest), 1, -1):
        joined = ".".join(str(part) for part in rest[:length])
        if joined in here:
            return joined, rest[length:]
    return rest[0], rest[1:]


def _same_quantity(key: str, short_names: Mapping[str, Collection[str]]) -> set[str]:
    """The other names under which the quantity `key` may already stand in the same mapping."""
    fields = set(short_names.get(key, ()))
    shorts = {short for short, names in short_names.items() if key in names}
    return (fields | shorts) - {key}

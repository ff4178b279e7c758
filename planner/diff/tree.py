"""Structural diff of two plain-data documents; list entries are matched by what names them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

Action = Literal["+", "-", "~"]


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One place that differs; nothing, null and empty collections are alike, and stand as None.

    Inside lists whose entries have no name, `listed` is the path of the innermost of them, and `entries` how many the
    longer one has.
    """

    action: Action
    path: str  # dotted
    before: Any
    after: Any
    listed: str = ""
    entries: int = 0

    @property
    def alike(self) -> str:
        """The path with `*` for the number in `listed`; empty outside of lists."""
        return f"{self.listed}.*.{self.place[1]}".rstrip(".") if self.listed else ""

    @property
    def place(self) -> tuple[str, str]:
        """What entry of `listed` it is in, and the path there."""
        entry, _, below = self.path[len(self.listed) + 1 :].partition(".")
        return entry, below


def changes(before: Any, after: Any, path: str = "") -> Iterator[FieldChange]:  # noqa: ANN401 - parsed JSON
    """Every smallest place where two JSON values differ, in the order of `before`, then of `after`.

    Entries of lists are matched by their `name`, else by the words in them, else by position; a whole entry or mapping
    that only one side has is one change.
    """
    before, after = _or_none(before), _or_none(after)
    if before == after and type(before) is type(after):
        return
    if before is None or after is None:
        yield FieldChange("+" if before is None else "-", path, before, after)
    elif isinstance(before, dict) and isinstance(after, dict):
        yield from _by_key(before, after, path)
    elif _are_lists_of_mappings(before, after):
        ours, theirs, named = _keyed(before, after)
        for change in _by_key(ours, theirs, path):
            inner = named or change.listed
            yield change if inner else replace(change, listed=path, entries=max(len(before), len(after)))
    elif before != after:
        yield FieldChange("~", path, before, after)


def _or_none(value: Any) -> Any:  # noqa: ANN401 - parsed JSON
    return None if value in ([], {}, "") else value


def _by_key(before: dict[str, Any], after: dict[str, Any], path: str) -> Iterator[FieldChange]:
    for key in (*before, *(key for key in after if key not in before)):
        yield from changes(before.get(key), after.get(key), f"{path}.{key}" if path else str(key))


def _are_lists_of_mappings(before: Any, after: Any) -> bool:  # noqa: ANN401 - parsed JSON
    both = (*before, *after) if isinstance(before, list) and isinstance(after, list) else ()
    return bool(both) and all(isinstance(entry, dict) for entry in both)


def _keyed(
    before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]
) -> tuple[dict[str, Any], dict[str, Any], bool]:
    """Both lists as mappings under the same kind of key, one that is unique in each; whether it is their name."""
    for name in (_own_name, _words):
        ours, theirs = [name(entry) for entry in before], [name(entry) for entry in after]
        if all((*ours, *theirs)) and len(set(ours)) == len(ours) and len(set(theirs)) == len(theirs):
            return dict(zip(ours, before, strict=True)), dict(zip(theirs, after, strict=True)), name is _own_name
    return {str(i): entry for i, entry in enumerate(before)}, {str(i): entry for i, entry in enumerate(after)}, False


def _own_name(entry: dict[str, Any]) -> str:
    return str(entry.get("name") or "")


def _words(entry: dict[str, Any]) -> str:
    """What names an entry without a name: its words, and where it begins (`first_layer`, `first_device`)."""
    naming = (value for key, value in entry.items() if isinstance(value, str) or key.startswith("first_"))
    return "/".join(str(value) for value in naming if value != "")

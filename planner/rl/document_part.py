"""Reads a part of a document field by field; every error has its line and path."""

from collections.abc import Iterator, Sequence
from math import isfinite
from typing import Any, TypeVar

import numpy as np

from planner.arrays import Floats, Ints
from planner.documents.read import Document, Key
from planner.errors import PlannerError, did_you_mean

T = TypeVar("T", bound=str)


class DocumentPart:
    """The data at `path` of a document."""

    def __init__(self, document: Document, data: Any, path: tuple[Key, ...] = ()) -> None:  # noqa: ANN401 - plain data
        self.document, self.data, self.path = document, data, path

    def refuse(self, what: str, hint: str, *keys: Key) -> PlannerError:
        """An error at `keys` of this part."""
        path = (*self.path, *keys)
        dotted = ".".join(str(key) for key in path)
        where = self.document.where(path)
        return PlannerError(what, where=f"{where}: {dotted}" if dotted else where, hint=hint)

    def __contains__(self, key: Key) -> bool:
        return isinstance(self.data, dict) and self.data.get(key) is not None

    def part(self, key: Key) -> "DocumentPart":
        """The mapping at `key`."""
        value = self._get(key)
        if not isinstance(value, dict):
            raise self.refuse(f"must be a mapping, found {_shown(value)}", "write `{...}`", key)
        return DocumentPart(self.document, value, (*self.path, key))

    def parts(self, key: Key) -> list["DocumentPart"]:
        """The mappings of the list at `key`, at least one."""
        value = self._get(key)
        if not isinstance(value, list) or not value:
            raise self.refuse(f"must be a list that is not empty, found {_shown(value)}", "write `[{...}]`", key)
        if not all(isinstance(entry, dict) for entry in value):
            raise self.refuse("must be a list of mappings", "write `[{...}]`", key)
        return [DocumentPart(self.document, entry, (*self.path, key, index)) for index, entry in enumerate(value)]

    def entries(self) -> Iterator[tuple[str, "DocumentPart"]]:
        """(name, mapping) of every entry that is not null."""
        for key in self.data:
            if key in self:
                yield str(key), self.part(key)

    def text(self, key: Key, default: str | None = None) -> str:
        if default is not None and key not in self:
            return default
        value = self._get(key)
        if not isinstance(value, str) or not value:
            raise self.refuse(f"must be text, found {_shown(value)}", "write a name", key)
        return value

    def one_of(self, key: Key, known: Sequence[T], default: T | None = None) -> T:
        """The text at `key`, one of `known`."""
        value = self.text(key, default)
        return self._known(value, known, key)

    def some_of(self, key: Key, known: Sequence[T]) -> list[T]:
        """The list of texts at `key`, each one of `known`; all of them where the key is absent."""
        if key not in self:
            return list(known)
        value = self._get(key)
        if not isinstance(value, list) or not value:
            raise self.refuse(f"must be a list, found {_shown(value)}", f"write some of {', '.join(known)}", key)
        return [self._known(entry, known, key) for entry in value]

    def _known(self, value: object, known: Sequence[T], key: Key) -> T:
        for name in known:
            if value == name:
                return name
        raise self.refuse(
            f"unknown value {_shown(value)}",
            did_you_mean(str(value), list(known), otherwise=f"use one of {', '.join(known)}"),
            key,
        )

    def number(self, key: Key, default: float | None = None, *, least: float = 0.0, positive: bool = False) -> float:
        """The number at `key`, at least `least`, or above 0 where `positive`."""
        if default is not None and key not in self:
            return default
        value = self._get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
            raise self.refuse(f"must be a number, found {_shown(value)}", "write a number", key)
        if value < least or (positive and value <= 0):
            bound = "above 0" if positive else f"at least {least:g}"
            raise self.refuse(f"must be {bound}, found {_shown(value)}", f"write a number {bound}", key)
        return value

    def count(self, key: Key, default: int | None = None, *, least: int = 1) -> int:
        """The whole number at `key`."""
        value = self.number(key, default, least=least)
        if value != int(value):
            raise self.refuse(f"must be a whole number, found {_shown(value)}", f"write {round(value)}", key)
        return int(value)

    def numbers(self, key: Key) -> Floats:
        """The list of numbers at `key`."""
        value = self._get(key)
        numeric = isinstance(value, list) and all(
            isinstance(entry, (int, float)) and not isinstance(entry, bool) and isfinite(entry) for entry in value
        )
        if not numeric or not value:
            raise self.refuse(f"must be a list of numbers, found {_shown(value)}", "write `[1, 2, ...]`", key)
        return np.array(value, float)

    def counts(self, key: Key, *, least: int = 1) -> Ints:
        """The list of whole numbers at `key`."""
        values = self.numbers(key)
        wrong = np.flatnonzero((values != np.floor(values)) | (values < least))
        if len(wrong):
            index = int(wrong[0])
            raise self.refuse(
                f"must be at least {least} and whole, found {values[index]:g}",
                f"write whole numbers of at least {least}",
                key,
                index,
            )
        return values.astype(np.int64)

    def _get(self, key: Key) -> Any:  # noqa: ANN401 - plain data
        if key not in self:
            names = [str(name) for name in self.data] if isinstance(self.data, dict) else []
            raise self.refuse(f"`{key}` is missing", did_you_mean(str(key), names, otherwise=f"add `{key}`"))
        return self.data[key]


def _shown(value: object) -> str:
    text = repr(value)
    return f"`{text if len(text) <= 40 else text[:37] + '...'}`"

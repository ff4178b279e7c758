"""Typed access to the fields of one config.json; a missing or odd field is an error with its name."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from planner.errors import PlannerError

Kind = TypeVar("Kind")
_MAX_LAYERS = 10_000
_MAX_COUNT = 10**12
_HINT = "write the field as the model's publisher does, or use a catalog entry (`planner models list`)"


@dataclass(frozen=True, slots=True)
class ConfigFields:
    """One JSON object and where it lies, for messages. `null` counts as absent everywhere."""

    data: Mapping[str, object]
    where: str

    def has(self, *names: str) -> bool:
        """Whether any of `names` is present and not null."""
        return any(self.data.get(name) is not None for name in names)

    def child(self, name: str) -> "ConfigFields":
        """The object under `name`, empty when absent. Raises PlannerError when it is not an object."""
        return ConfigFields(self._of_kind(dict, name, "an object", {}), f"{self.where}: {name}")

    def count(self, *names: str, default: int | None = None) -> int:
        """The positive whole number under the first of `names` that is present.

        Raises PlannerError when it is absent without a default, or not a positive whole number.
        """
        name, value = self._first(names, default)
        return self._bounded(name, value, 1, "a positive whole number")

    def optional_count(self, *names: str) -> int:
        """As `count`, with 0 for absent or zero."""
        name, value = self._first(names, 0)
        return self._bounded(name, value, 0, "a whole number")

    def flag(self, name: str, *, default: bool = False) -> bool:
        """The boolean under `name`. Raises PlannerError when it is something else."""
        return self._of_kind(bool, name, "true or false", default)

    def text(self, name: str, *, default: str | None = None) -> str:
        """The string under `name`. Raises PlannerError when it is absent without a default or not a string."""
        return self._of_kind(str, name, "a string", default)

    def sequence(self, name: str) -> list[object]:
        """The list under `name`, empty when absent. Raises PlannerError when it is not a list."""
        return self._of_kind(list, name, "a list", [])

    def per_layer(self, name: str, num_layers: int, *, extra: int = 0) -> list[object]:
        """The list under `name` with one item a layer (up to `extra` more are dropped: they describe MTP heads)."""
        values = self.sequence(name)
        if not num_layers <= len(values) <= num_layers + extra:
            raise self.wrong(name, f"a list of {num_layers} items, one a layer", f"{len(values)} items")
        return values[:num_layers]

    def wrong(self, name: str, wanted: str, given: object) -> PlannerError:
        """The error for a field of the wrong kind or value."""
        return PlannerError(f"field `{name}` must be {wanted}, found {given!r}", where=self.where, hint=_HINT)

    def _bounded(self, name: str, value: object, least: int, wanted: str) -> int:
        most = _MAX_LAYERS if "layer" in name else _MAX_COUNT
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.wrong(name, wanted, value)
        if value > most:
            raise self.wrong(name, f"at most {most}", value)
        return value

    def _of_kind(self, kind: type[Kind], name: str, wanted: str, default: Kind | None) -> Kind:
        value = self._first((name,), default)[1]
        if not isinstance(value, kind):
            raise self.wrong(name, wanted, value)
        return value

    def _first(self, names: tuple[str, ...], default: object) -> tuple[str, object]:
        for name in names:
            if self.data.get(name) is not None:
                return name, self.data[name]
        if default is None:
            raise PlannerError(f"field `{names[0]}` is missing", where=self.where, hint=_HINT)
        return names[0], default

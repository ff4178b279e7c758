"""Typed access to fields of a report by dotted path; a missing or mistyped field is one error with its place."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planner.errors import PlannerError

_MOST = 1e15  # no count, time or rate of a benchmark comes near


@dataclass(frozen=True, slots=True)
class Fields:
    """A mapping inside a report of `generator`; `path` leads there, `source` is the file."""

    data: Mapping[str, Any]
    generator: str
    source: str
    path: str = ""

    def wrong(self, name: str, what: str) -> PlannerError:
        """The error about one field."""
        place = f"{self.path}.{name}" if self.path else name
        return PlannerError(
            f"is no whole report of {self.generator}: `{place}` {what}",
            where=self.source,
            hint="give the report as the load generator wrote it, or run it again",
        )

    def has(self, name: str) -> bool:
        return self.data.get(name) is not None

    def section(self, name: str) -> "Fields":
        """The mapping under `name`; an error where there is none."""
        if not self.has(name):
            raise self.wrong(name, "is missing")
        return self.part(name)

    def part(self, name: str) -> "Fields":
        """The mapping under `name`, an empty one where the report leaves it out (genai-perf writes an empty text)."""
        value = self.data.get(name)
        return self._child(name, value if value not in (None, "") else {})

    def parts(self, name: str) -> list["Fields"]:
        """The mappings of the list under `name`, none where the report leaves it out."""
        value = self.data.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.wrong(name, "must be a list")
        return [self._child(f"{name}.{index}", item) for index, item in enumerate(value)]

    def _child(self, name: str, value: object) -> "Fields":
        if not isinstance(value, Mapping):
            raise self.wrong(name, f"must be a mapping, found {_short(value)}")
        return Fields(value, self.generator, self.source, f"{self.path}.{name}" if self.path else name)

    def number(self, name: str) -> float | None:
        """The number under `name`, None where it is absent or not finite; an error for text and below 0."""
        value = self.data.get(name)
        if value is None:
            return None
        if isinstance(value, float) and not math.isfinite(value):
            return None
        if not isinstance(value, int | float) or isinstance(value, bool) or abs(value) > _MOST:
            raise self.wrong(name, f"must be a number, found {_short(value)}")
        if value < 0:
            raise self.wrong(name, f"must be at least 0, found {_short(value)}")
        return float(value)

    def asked(self, *names: str) -> float | None:
        """The first positive number under `names`, alone or in a list of one; None for anything else.

        What a user asked a generator for has many forms (sweeps, ramps, empty texts); only one number is a load.
        """
        for name in names:
            value = self.data.get(name)
            amount = value[0] if isinstance(value, list) and len(value) == 1 else value
            if isinstance(amount, int | float) and not isinstance(amount, bool) and 0 < amount < _MOST:
                return float(amount)
        return None

    def amount(self, name: str) -> float:
        """The number under `name`; an error where there is none."""
        value = self.number(name)
        if value is None:
            raise self.wrong(name, "is missing")
        return value

    def text(self, name: str) -> str | None:
        """The text under `name`, None where it is absent, empty or something else."""
        value = self.data.get(name)
        return value if isinstance(value, str) and value.strip() else None

    def numbers(self, name: str) -> list[float]:
        """The finite numbers of the list under `name`, none where the report leaves it out."""
        value = self.data.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.wrong(name, "must be a list")
        sound = [item for item in value if isinstance(item, int | float) and not isinstance(item, bool)]
        return [float(item) for item in sound if abs(item) <= _MOST]

    def statistics(self, names: Mapping[str, str], scale: float = 1.0) -> dict[str, float]:
        """Statistics by our names, of fields called by `names`; those that are absent are left out."""
        known = {ours: self.number(theirs) for ours, theirs in names.items()}
        return {ours: value * scale for ours, value in known.items() if value is not None}

    def scale(self, name: str, units: Mapping[str, float]) -> float:
        """Seconds (or tokens) of the unit that stands under `name`."""
        unit = self.text(name)
        if unit is None or unit not in units:
            fault = f"is `{unit}`" if unit is not None else "is missing"
            raise self.wrong(name, f"{fault}, and must be one of {', '.join(units)}")
        return units[unit]


def _short(value: object) -> str:
    if isinstance(value, Mapping | list):
        return "a mapping" if isinstance(value, Mapping) else "a list"
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**20 else "a number without end"
    return text if len(text) <= 40 else f"{text[:37]}..."
